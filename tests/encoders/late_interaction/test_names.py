"""Token vectors have the names of the tokens they are of."""

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import TokenEncoder

TEXTS = ["the river, stone. water!", "gold - sluice", "", "a deep, sparse. query " * 9]


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.5])
def test_every_vector_has_a_name(bert: Path, factor: float) -> None:
    options = {"dim": 8, "query_length": 12, "document_length": 40}
    encoder = TokenEncoder.from_pretrained(bert, pool_factor=factor, **options)  # type: ignore[arg-type]
    documents, names = encoder.encode_documents(TEXTS), encoder.token_texts(TEXTS, "document")
    assert [len(each) for each in names] == documents.lengths.tolist()
    queries = encoder.token_texts(TEXTS, "query")
    assert [len(each) for each in queries] == [12, 12, 12, 12]
    assert queries[1][-1] == "[MASK]"
    if factor == 1:
        assert names[0][2:-1] == ["the", "river", "stone", "water", "[UNK]"]  # no comma, no stop
        assert names[0][0] == "[CLS]"
    else:
        whole = TokenEncoder.from_pretrained(bert, **options)  # type: ignore[arg-type]
        alone = whole.token_texts(TEXTS, "document")
        for of_text, parts, vectors, pooled in zip(
            names, alone, whole.encode_documents(TEXTS), documents, strict=True
        ):
            assert sorted(" + ".join(of_text).split(" + ")) == sorted(parts)
            # The vector of a joined name is the mean of those of its parts.
            for name, vector in zip(of_text, pooled, strict=True):
                members = name.split(" + ")
                if len(set(parts)) == len(parts):
                    mean = np.mean([vectors[parts.index(each)] for each in members], axis=0)
                    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_every_vector_has_its_places(bert: Path, factor: float) -> None:
    """What stands at a token's places is its name; marks, prompts and masks stand nowhere."""
    encoder = TokenEncoder.from_pretrained(
        bert, dim=8, query_length=12, document_length=40, pool_factor=factor,
        query_prompt="gold: ", document_prompt="the river: ",
    )  # fmt: skip
    texts = [*TEXTS, "The 🪙 River", "  stone\n\nwater  "]
    for side in ("query", "document"):
        names, places = encoder.token_texts(texts, side), encoder.token_places(texts, side)
        assert list(map(len, places)) == list(map(len, names))
        for text, of_text, its_places in zip(texts, names, places, strict=True):
            found = ["".join(text[a:b] for a, b in spans) for spans in its_places]
            for name, at in zip(of_text, found, strict=True):
                parts = [p for p in name.split(" + ") if p.isalpha() or p in ",.-!"]
                assert not at or "[UNK]" in name or set(at.lower()) <= set("".join(parts))
            inside = [p for p in "".join(found).lower() if p.isalpha()]
            if side == "document" and len(text) < 100:  # all of it is somewhere, once
                assert sorted(inside) == sorted(p for p in text.lower() if p.isalpha())
            assert not any(spans for name, spans in zip(of_text, its_places, strict=True)
                           if set(name.split(" + ")) <= {"[CLS]", "[SEP]", "[MASK]"})  # fmt: skip
    first = encoder.token_places(["gold river"], "query")[0]
    assert [span for spans in first for span in spans] == [(0, 4), (5, 10)]
    slow = encoder.token_places(["a deep " * 90], "document")[0]
    assert max(end for spans in slow for _, end in spans) < 40 * 7


def test_no_text_has_no_names(bert: Path) -> None:
    encoder = TokenEncoder.from_pretrained(bert, dim=8)
    assert encoder.token_places([], "query") == []
    assert encoder.token_texts([], "query") == encoder.token_texts([], "document") == []
