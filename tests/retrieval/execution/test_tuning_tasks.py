"""Pairs for tuning by tasks: the same scores and trials as of one process, also after kills."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import SUPPORT
from struck_tuning import config, tuned

from sluice.retrieval.execution import executor as executors
from sluice.retrieval.experiments.tuning import pair_tasks
from sluice.retrieval.experiments.tuning.pair_tasks import covering
from sluice.retrieval.jobs import index, tune

Call = Callable[..., tuple[int, str, str]]
TWO = {"type": "processes", "workers": 2}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_tasks, "SLICE", 3)
    monkeypatch.setitem(executors.EXECUTORS, "other", "other_process:OtherProcess")  # type: ignore[index]


def scores(folder: Path) -> set[tuple[bytes, bytes, bytes]]:
    """What the cache holds, by the hashes of queries and documents."""
    statement = "SELECT query, documents, scores FROM batches JOIN contents USING (id)"
    with contextlib.closing(sqlite3.connect(folder / "out/tune/scores.sqlite")) as database:
        found = database.execute(statement).fetchall()
    assert len(found) == len(set(found))
    return set(found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    trials = tuned(folder)
    assert len(trials) == 21  # the retriever, and the reranker at five depths and four shares
    assert not (folder / "out/tune/parts").exists()
    return trials, scores(folder)


@pytest.mark.thorough
def test_a_killed_worker_costs_a_try_and_no_bit(
    tmp_path: Path, undisturbed: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert tuned(tmp_path, TWO, "itself") == undisturbed[0]
    assert scores(tmp_path) == undisturbed[1]
    assert caplog.text.count("its worker is lost (it was killed)") == 1


@pytest.mark.thorough
def test_a_killed_driver_is_continued_to_the_same_bits(
    tmp_path: Path, undisturbed: tuple[Any, Any]
) -> None:
    command = [sys.executable, str(SUPPORT / "struck_tuning.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, timeout=600, check=False)
    assert done.returncode == -9
    assert (tmp_path / "mark").exists()
    assert (tmp_path / "out/tune/parts").exists()
    assert tuned(tmp_path) == undisturbed[0]
    assert scores(tmp_path) == undisturbed[1]


@pytest.mark.thorough
def test_what_is_known_is_not_scored_again(
    tmp_path: Path, undisturbed: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while scores are taken over; then another tuning, which needs none of them anew."""
    absorbed: list[Path] = []
    absorb = pair_tasks.ScoreCache.absorb

    def once(self: Any, path: Path) -> None:
        absorb(self, path)
        absorbed.append(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair_tasks.ScoreCache, "absorb", once)
        with pytest.raises(KeyboardInterrupt):
            tuned(tmp_path, "other")
    assert absorbed
    assert tuned(tmp_path, "other") == undisturbed[0]
    before = scores(tmp_path)
    assert before == undisturbed[1]
    grid = {"pipelines": ["bm25 % 100 >> struck(depth={d})"], "choices": {"d": [5, 20]}}
    assert len(tuned(tmp_path, "other", **grid)) == 2
    assert scores(tmp_path) == before


class Lists:
    """A reranker of lists."""

    def score_lists(self, queries: Any, heads: Any, documents: Any) -> Any:
        return {query: [float(len(d)) for d in head.doc_ids] for query, head in heads.items()}


def test_rerankers_of_lists_are_tried_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = config(tmp_path, "other", pipelines=["bm25", "bm25 >> lists(depth=3)"])
    values["rerankers"] = {"lists": {"type": f"{__name__}:Lists"}}
    _, found = tune(values)
    assert len(found.trials) == 2
    assert "tune: rerankers of lists, or without a fingerprint, have no scores" in caplog.text
    assert "executor: other shares out other work" in caplog.text


@pytest.mark.parametrize(
    ("pipelines", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a >> c(depth=5)", "a >> c(depth=20, interpolate=0.5)"], ["a >> c(depth=20)"]),
        (["a >> c(depth=9) >> d(depth=5)", "a >> d(depth=5)"],
         ["a >> c(depth=9) >> d(depth=5)", "a >> d(depth=5)"]),
        (["a >> c(depth=9, exit=0.3)"], ["a >> c(depth=9, exit=0.3)"]),
    ],
)  # fmt: skip
def test_pipelines_that_cover_the_others(pipelines: Sequence[str], expected: Sequence[str]) -> None:
    assert covering(pipelines) == expected


def test_the_command_plans(tmp_path: Path, sluice: Call) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(config(tmp_path)))
    code, out, _ = sluice("tune", file, "--plan")  # an index is built first, by sluice index
    assert (code, out) == (0, "index: no open task; the rest is done in this process\n")
    index({key: value for key, value in config(tmp_path).items() if key != "tune"})
    code, out, err = sluice("tune", file, "--plan")
    assert (code, out.partition(", 1 done; about ")[0]) == (0, "tune: pairs: 4 tasks"), err
    assert not (tmp_path / "out/tune/front.json").exists()
    code, _, err = sluice("tune", file, "--plan", "--rebuild")
    assert (code, "--plan: replaces nothing" in err) == (2, True)
