"""``negatives.folds``: each query's negatives are of a first stage that never saw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_world import write_marked

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import run
from sluice.retrieval.experiments.training.folds import FoldedLists
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.runs.run import Run


class Fixed(Stage):
    """Answers every query with one document, and notes what it was asked."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, dict[str, type]()

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        self.asked |= dict.fromkeys(queries, type(queries))
        return Run({query: [(self.name, 1.0)] for query in queries})


def test_each_query_is_asked_of_its_fold_and_others_of_the_whole() -> None:
    whole, a, b = Fixed("whole"), Fixed("a"), Fixed("b")
    lists = FoldedLists(whole, [a, b], {"1": 0, "2": 1, "3": 0})
    found = lists.run(SelfExcluding({"2": "x", "9": "y", "1": "z", "3": "w"}))
    assert {query: next(iter(found[query]))[0] for query in found} == {
        "1": "a", "2": "b", "3": "a", "9": "whole",
    }  # fmt: skip
    assert list(found) == ["2", "9", "1", "3"]
    assert set(a.asked.values()) == set(whole.asked.values()) == {SelfExcluding}
    assert list(lists.run({"2": "x"})) == ["2"]
    assert len(lists.run({})) == 0


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    trainer = {"max_steps": 2, "per_device_train_batch_size": 4}
    mined = {"type": "mined", "per_query": 1, "mode": "naive"}
    return {
        "dataset": str(write_marked(tmp_path / "a", "red")), "output": str(tmp_path / "out"),
        "train": {
            "dense-ft": {
                "encoder": {"type": "dense", "model": str(bert)}, "loss": "info_nce",
                "trainer": trainer,
            },
            "cross-ft": {
                "encoder": {"type": "cross_encoder", "model": str(bert), "head": "similarity"},
                "loss": "localized_softmax", "trainer": trainer,
                "negatives": {**mined, "retriever": "first", "folds": 2},
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "dense", "model": "dense-ft"}},
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": "cross-ft"}},
        "pipelines": {"first": "fitted(bm25, dense)", "c": "first >> cross(depth=3)"},
        "evaluate": {"latency_queries": 0},
    }  # fmt: skip


def test_the_models_of_a_fold_are_trained_without_its_queries(
    config: dict[str, Any], tmp_path: Path
) -> None:
    run(config)
    work = tmp_path / "out/training/cross-ft/folds"
    assert {path.name for path in work.iterdir()} == {"2-0", "2-1"}
    counts = [read_json(work / f"2-{n}/models/dense-ft/manifest.json")["examples"] for n in (0, 1)]
    whole = read_json(tmp_path / "out/models/dense-ft/manifest.json")["examples"]
    assert sum(counts) == whole  # each lacks what the other has
    assert min(counts) > 0
    before = (work / "2-0/models/dense-ft/manifest.json").stat().st_mtime_ns
    run(config)  # all is there
    assert (work / "2-0/models/dense-ft/manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("bm25", "'bm25' has no model that learns from the same queries"),
        (["first", "bm25"], "name one pipeline or retriever"),
        ("run.trec", "name one pipeline or retriever"),
    ],
)
def test_folds_that_would_change_nothing_are_refused(
    config: dict[str, Any], named: object, says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 1.0 r\n")
    monkeypatch.chdir(tmp_path)
    config["train"]["cross-ft"]["negatives"]["retriever"] = named
    with pytest.raises(ConfigError, match=says):
        run(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folds", [1, 0, "two"])
def test_folds_are_two_or_more(config: dict[str, Any], folds: object) -> None:
    config["train"]["cross-ft"]["negatives"]["folds"] = folds
    with pytest.raises(ConfigError, match=r"train\.cross-ft\.negatives\.folds"):
        run(config)
