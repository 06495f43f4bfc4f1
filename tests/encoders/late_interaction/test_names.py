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


def test_no_text_has_no_names(bert: Path) -> None:
    encoder = TokenEncoder.from_pretrained(bert, dim=8)
    assert encoder.token_texts([], "query") == encoder.token_texts([], "document") == []
