"""Explanations: the parts are the score, whatever the sparse encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.lexical.variants import Variant
from sluice.indexing.inverted.approximate import ApproximateIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.explanation import term_texts


def check(retriever: Retriever, query: str, k: int = 10) -> None:
    for rank, hit in enumerate(retriever.search(query, 1000)[:k], 1):
        found = retriever.explain(query, hit.doc_id)
        assert (found.doc_id, found.score, found.rank) == (hit.doc_id, hit.score, rank)
        parts = [part.contribution for part in found.terms]
        assert parts == sorted(parts, reverse=True)
        assert np.isclose(sum(parts), found.score, rtol=1e-5)
        for part in found.terms:
            product = np.float32(part.query_weight) * np.float32(part.impact)
            assert part.contribution == float(product) > 0


def test_bm25_names_its_terms() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    query = "Golden rivers of gold: word0"
    check(retriever, query)
    found = retriever.explain(query, "d00")
    assert found.rank == 1
    assert found.terms[0].term == "word0"
    assert {part.term for part in found.terms} <= set(retriever.encoder.vocabulary)
    assert retriever.encoder.terms([0, 1]) == list(retriever.encoder.vocabulary)[:2]


@pytest.mark.parametrize("variant", ["plus", "l"])
def test_variants_are_explained_after_a_change_and_from_the_folder(
    tmp_path: Path, variant: Variant
) -> None:
    retriever = Retriever.build(BM25Encoder(variant=variant), documents(), path=tmp_path / "r")
    retriever.delete(["d03"])
    retriever.add([Document("n", "", "golden rivers and no other")])
    opened = Retriever.open(tmp_path / "r")
    check(opened, "Golden rivers of gold: word0")
    assert opened.search("golden rivers", 99) == retriever.search("golden rivers", 99)


def test_splade_names_its_tokens(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, device="cpu")
    retriever = Retriever.build(encoder, documents(8))
    check(retriever, "gold in the river", 3)
    found = retriever.explain("gold in the river", "d03")
    assert {part.term for part in found.terms} <= set(encoder.tokenizer.get_vocab())
    gold = encoder.tokenizer.convert_tokens_to_ids("gold")
    assert encoder.terms([gold, 10**6]) == ["gold", "[1000000]"]


def test_what_is_no_hit_has_no_parts() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    for query in ("word7", "nothing-shared", "", "  "):
        assert retriever.explain(query, "d00")[:4] == ("d00", 0.0, None, [])


def test_a_rank_below_the_depth_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    monkeypatch.setattr("sluice.retrieval.retrievers.retriever.DEPTH", 1)
    found = [retriever.explain("gold", hit.doc_id) for hit in retriever.search("gold", 9)]
    assert [explanation.rank for explanation in found] == [1] + [None] * (len(found) - 1)
    assert all(explanation.terms for explanation in found)


def test_deletions_and_updates_are_seen() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    retriever.update([Document("d07", "", "gold gold brandnew")])
    check(retriever, "brandnew gold")
    assert retriever.explain("brandnew", "d07").terms[0].term == "brandnew"
    retriever.delete(["d07"])
    with pytest.raises(DataError, match="no document 'd07' to explain"):
        retriever.explain("gold", "d07")


def test_what_cannot_be_explained() -> None:
    dense = Retriever.build(WordEncoder(), documents())
    with pytest.raises(ConfigError, match=r"explain needs a sparse index .* has FlatIndex"):
        dense.explain("gold", "d00")
    with pytest.raises(ConfigError, match="expected text"):
        Retriever.build(BM25Encoder(), documents()).explain(7, "d00")  # type: ignore[arg-type]
    assert term_texts(WordEncoder(), [3, 4]) == ["[3]", "[4]"]


def test_the_planners_choice_is_told(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    found = retriever.explain("gold word7", "d00", k=5)
    index: Any = retriever.index
    assert found.plan is not None
    assert found.plan == index.plan(retriever.encoder.encode_queries(["gold word7"]), 5)[0]
    assert found.plan_text.startswith(f"engine: {found.plan.engine}, {found.plan.reason}")
    made = found.as_dict()
    assert made["plan"]["engine"] in ("blocks", "terms")
    assert made["terms"][0].keys() == {"term", "query_weight", "impact", "contribution"}
    by_block = found.plan._replace(engine="blocks", scored_blocks=1234, blocks=5000)
    assert found._replace(plan=by_block).plan_text.endswith(", 1,234 of 5,000 blocks scored")
    assert "no document has a term" in retriever.explain("zzz", "d00").plan_text


def test_an_index_without_a_planner_is_explained_too(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    monkeypatch.delattr(ApproximateIndex, "plan")
    found = retriever.explain("gold", "d00")
    assert (found.plan, found.plan_text, found.as_dict()["plan"]) == (None, "", None)
    assert found.terms
