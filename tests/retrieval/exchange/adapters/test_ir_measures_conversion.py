"""Runs and judgements as records of ir_measures: the same order and values, there and back."""

import random

import pytest

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import Ranking, Run, evaluate
from sluice.retrieval.exchange.adapters.evaluation import (
    from_ir_qrels,
    from_scored_docs,
    to_ir_qrels,
    to_scored_docs,
)

ir_measures = pytest.importorskip("ir_measures")
QRELS = {"tied": {"a": 1, "c": 3}, "turned": {"x": 2, "z": 0}, "missing": {"q": 1}}
TIED = Run({
    "tied": Ranking(["b", "a", "c"], [1.0, 1.0, 1.0]),  # neither id order
    "turned": Ranking(["y", "x", "z"], [1.0, 2.0, 3.0]),
    "unjudged": Ranking(["n"], [0.5]),
})  # fmt: skip


def test_every_provider_keeps_the_order() -> None:
    """trec_eval orders ties by id, the provider of Judged as they come: neither finds any."""
    names = ["nDCG@2", "AP", "RR", "R@2", "P@1", "Judged@2"]
    measures = [ir_measures.parse_measure(name) for name in names]
    found = ir_measures.calc_aggregate(measures, to_ir_qrels(QRELS), to_scored_docs(TIED))
    expected = evaluate(TIED, QRELS, names).mean
    assert {str(m): value for m, value in found.items()} == pytest.approx(dict(expected), abs=1e-7)


def test_records() -> None:
    records = list(to_scored_docs(TIED))
    assert all(isinstance(record, ir_measures.ScoredDoc) for record in records)
    assert [r.doc_id for r in records] == ["b", "a", "c", "y", "x", "z", "n"]
    tied = [record.score for record in records[:3]]
    assert tied[0] == 1.0
    assert tied == sorted(set(tied), reverse=True)
    assert tied == pytest.approx([1.0, 1.0, 1.0], abs=2e-7)
    plain = Run({"q": {"a": 0.1, "b": -3.5}})
    assert {r.doc_id: r.score for r in to_scored_docs(plain)} == dict(plain["q"])


def test_there_and_back() -> None:
    back = from_scored_docs(to_scored_docs(TIED), name="again")
    assert {q: list(r.doc_ids) for q, r in back.items()} == {
        q: list(r.doc_ids) for q, r in TIED.items()
    }
    assert back.name == "again"
    shuffled = list(to_scored_docs(back))
    random.Random(3).shuffle(shuffled)
    assert dict(from_scored_docs(shuffled)) == dict(back)
    qrels = list(to_ir_qrels(QRELS))
    assert all(isinstance(qrel, ir_measures.Qrel) for qrel in qrels)
    assert from_ir_qrels(qrels) == QRELS


def test_ties_of_theirs_go_by_id_as_in_trec_eval() -> None:
    records = [ir_measures.ScoredDoc("q", doc, 1.0) for doc in "bca"]
    assert list(from_scored_docs(records)["q"].doc_ids) == ["c", "b", "a"]


def test_twice_is_an_error() -> None:
    records = [ir_measures.ScoredDoc("q", "a", score) for score in (1.0, 2.0)]
    with pytest.raises(DataError, match="'a' is in the list twice"):
        from_scored_docs(records)
    with pytest.raises(DataError, match="'q' judges 'a' twice"):
        from_ir_qrels(ir_measures.Qrel("q", "a", 1, iteration) for iteration in "12")
