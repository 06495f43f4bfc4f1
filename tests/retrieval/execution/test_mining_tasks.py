"""Mining by tasks: the same negatives, report and provenance, also after real kills."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from other_process import OtherProcess
from places import SUPPORT
from small_world import documents, write_beir
from struck_queries import built, dataset, mined

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Dataset, Retriever
from sluice.retrieval.execution import ProcessExecutor
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import Sources
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data import list_tasks
from sluice.retrieval.training_data.mining import mine_negatives
from sluice.retrieval.training_data.teachers import judges as judge_tasks

Call = Callable[..., tuple[int, str, str]]
PLAIN = {"per_query": 3}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_tasks, "SLICE", 4)
    monkeypatch.setattr(judge_tasks, "SHARD", 20)
    return


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    files = mined(folder)
    assert len(files) == 3
    assert sorted(path.name for path in folder.iterdir() if "negatives" not in path.name) == ["r"]
    return files


@pytest.mark.thorough
def test_a_killed_worker_costs_a_try_and_no_bit(
    tmp_path: Path, undisturbed: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    assert mined(tmp_path, "itself", ProcessExecutor(2)) == undisturbed
    assert caplog.text.count("its worker is lost (it was killed)") == 1
    assert not (tmp_path / "n.parts").exists()


@pytest.mark.thorough
def test_a_killed_driver_is_continued_to_the_same_bits(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    command = [sys.executable, str(SUPPORT / "struck_queries.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, timeout=600, check=False)
    assert done.returncode == -9
    assert (tmp_path / "mark").exists()
    assert (tmp_path / "n.parts").exists()
    assert mined(tmp_path) == undisturbed


def test_a_killed_call_searches_only_what_is_open(
    tmp_path: Path, undisturbed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(judge_tasks, "score_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mined(tmp_path)
    executor = OtherProcess()
    assert mined(tmp_path, executor=executor) == undisturbed
    assert set(executor.kinds) == {"score"}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def found(source: Any, data: Dataset, work: Path, **options: Any) -> Any:
    mined = mine_negatives(source, data, PLAIN, seed=1, work=work, **options)
    return mined.negatives, repr(list(mined.rows)), mined.report.as_dict()


def test_pipelines_and_several_sources_are_opened_again(tmp_path: Path) -> None:
    """A pipeline is saved for the workers, its search parameters too; positives stay out."""
    data, dense = dataset(), built(tmp_path)
    bm25 = Retriever.build(BM25Encoder(), documents(), name="bm25")  # in a temporary folder
    bm25.params = {"alpha": 0.5}
    fused = (bm25 | dense) % 15
    run = dense.run(data.queries, None, 20)
    sources = Sources([("bm25", bm25), ("fused", fused), ("run", run)])
    executor = OtherProcess()
    shared = found(sources, data, tmp_path / "w", executor=executor)
    assert shared == found(sources, data, tmp_path / "w")
    assert executor.kinds == ["lists"] * 6  # of two sources; a run is looked up
    negatives = shared[0]
    assert all(not set(data.qrels[query]) & set(docs) for query, docs in negatives.items())
    assert mine_negatives(sources, data, PLAIN, seed=1).negatives == negatives


class Own(Stage):
    """A stage of one's own, which no expression makes."""

    name = "own"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return self.stage.rank(queries, given, k)


def test_what_cannot_be_sent_is_searched_here_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, executor = dataset(), OtherProcess()
    stage = Own(Retriever.build(BM25Encoder(), documents(), name="bm25"))
    assert found(stage, data, tmp_path / "w", executor=executor)[0]
    assert "mine: own: a Own cannot be saved as a pipeline" in caplog.text
    assert executor.kinds == []


def test_somebodys_folder_stays(tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()
    (work / "notes").write_text("x")
    with pytest.raises(ConfigError, match="holds 'notes'"):
        found(built(tmp_path), dataset(), work)
    assert (work / "notes").exists()


@pytest.mark.thorough
def test_the_command_plans_and_writes_the_same(tmp_path: Path, sluice: Call) -> None:
    world = write_beir(tmp_path / "world")
    Retriever.build(BM25Encoder(), documents(), path=tmp_path / "bm25", name="bm25")
    words = ["mine", tmp_path / "bm25", world, "--per-query", 2, "--mode", "margin", "--output"]
    assert sluice(*words, tmp_path / "a.jsonl")[0] == 0
    one = ["--executor", "{type: processes, workers: 1}"]
    code, out, err = sluice(*words, tmp_path / "b.jsonl", *one, "--plan")
    assert (code, out.partition(", 1 done; about ")[0]) == (0, "mine: 3 tasks"), err
    assert not (tmp_path / "b.jsonl").exists()
    assert sluice(*words, tmp_path / "b.jsonl")[0] == 0
    for ending in ("jsonl", "report.json", "provenance.parquet"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    code, _, err = sluice(*words, tmp_path / "c.jsonl", "--executor", "{workers: 2}")
    assert code == 2
    assert "executor" in err
