"""Conversions to ranx and back, for a process of its own: ranx compiles for minutes otherwise."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import Ranking, Run, evaluate
from sluice.retrieval.exchange.adapters.evaluation import (
    from_ranx_qrels,
    from_ranx_run,
    to_ranx_qrels,
    to_ranx_run,
)

QRELS = {"tied": {"d3": 1, "d5": 3, "d4": 0}, "turned": {"x": 2, "z": 1}, "missing": {"q": 1}}
NAMES = {"nDCG@3": "ndcg@3", "AP": "map", "RR": "mrr", "R@2": "recall@2", "P@1": "precision@1"}


def tied_run() -> Run:
    """Many ties and an order against the scores, which are what no sort is to decide."""
    ids = [f"d{i}" for i in np.random.default_rng(5).permutation(40)]
    return Run({
        "tied": Ranking(ids, np.ones(40)), "turned": Ranking(["y", "x", "z"], [1.0, 2.0, 3.0]),
        "empty": Ranking([], []),
    }, name="odd")  # fmt: skip


def ranx_keeps_the_order_and_has_the_values() -> None:
    import ranx

    run = tied_run()
    theirs = to_ranx_run(run)
    assert theirs.name == "odd"
    assert {q: list(hits) for q, hits in theirs.to_dict().items()} == {
        query: list(run[query].doc_ids) for query in ("tied", "turned")
    }
    found = ranx.evaluate(to_ranx_qrels(QRELS), theirs, list(NAMES.values()), make_comparable=True)
    expected = evaluate(run, QRELS, NAMES).mean
    for ours, other in NAMES.items():
        assert found[other] == pytest.approx(expected[ours], abs=1e-9), ours


def there_and_back() -> None:
    import ranx

    run = tied_run()
    back = from_ranx_run(to_ranx_run(run))
    assert back.name == "odd"
    assert list(back["tied"].doc_ids) == list(run["tied"].doc_ids)
    plain = Run({"q": {"a": 0.1, "b": -3.5, "c": 7.0}})
    assert from_ranx_run(to_ranx_run(plain))["q"] == plain["q"]  # distinct scores come back as are
    qrels = from_ranx_qrels(to_ranx_qrels({**QRELS, "none": {}}))
    assert qrels == QRELS
    assert all(type(grade) is int for grades in qrels.values() for grade in grades.values())
    ties = ranx.Run({"q": {"b": 1.0, "c": 1.0, "a": 1.0}})
    assert list(from_ranx_run(ties)["q"].doc_ids) == ["c", "b", "a"]
    assert from_ranx_run(ties).name == "run"


def nothing_is_an_error() -> None:
    with pytest.raises(DataError, match="no query has a hit"):
        to_ranx_run(Run({"q": {}}, name="none"))
    with pytest.raises(DataError, match="no judgements"):
        to_ranx_qrels({"q": {}})


if __name__ == "__main__":
    ranx_keeps_the_order_and_has_the_values()
    there_and_back()
    nothing_is_an_error()
