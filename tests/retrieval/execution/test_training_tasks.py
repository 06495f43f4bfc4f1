"""A training whose negatives and teacher's scores come from an executor's tasks."""

from pathlib import Path
from typing import Any

import pytest
from other_process import OtherProcess
from small_training import BM25, short_training

from sluice.retrieval import train
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.execution import executor as executors
from sluice.retrieval.execution.executor import planning
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.training_data import list_tasks

KINDS: list[str] = []


class Noted(OtherProcess):
    """Notes what all its objects carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = KINDS


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    KINDS.clear()
    monkeypatch.setattr(list_tasks, "SLICE", 5)
    monkeypatch.setitem(executors.EXECUTORS, "noted", f"{__name__}:Noted")  # type: ignore[index]


def config(folder: Path, bert: Path, pair_bert: Path, executor: str) -> dict[str, Any]:
    mined = {"type": "mined", "retriever": [BM25, "self"], "per_query": 2, "judge": str(pair_bert)}
    made = short_training(folder, bert, loss="kl_div", negatives=mined)
    teacher = ["bm25", str(pair_bert)]
    return {**made, "teacher": teacher, "executor": executor, "output": str(folder / executor)}


@pytest.mark.thorough
def test_a_training_run_has_the_same_examples_by_any_executor(
    tmp_path: Path, bert: Path, pair_bert: Path
) -> None:
    made: dict[str, list[tuple[str, bytes]]] = {}
    for name in ("local", "noted"):
        with planning():  # a job that needs a model trains it first
            train(config(tmp_path, bert, pair_bert, name))
        work = tmp_path / name / "training"
        files = [*work.glob("mining*"), *work.glob("negatives*"), *work.glob("teacher*")]
        made[name] = sorted((path.name, path.read_bytes()) for path in files)
    assert made["local"] == made["noted"]
    names = [name for name, _ in made["local"]]
    assert names == ["mining.json", "negatives.parquet", "teacher.parquet"]
    assert set(KINDS) == {"lists", "score"}


def test_the_executor_is_no_part_of_what_is_trained(
    tmp_path: Path, bert: Path, pair_bert: Path
) -> None:
    values = config(tmp_path, bert, pair_bert, "local")
    keys = set()
    for name in ("local", "noted"):
        settings = checked({**values, "executor": name}, TrainConfig)
        alone = Experiment(checked({"dataset": settings.dataset}, ExperimentConfig))
        keys.add(Dependencies(alone.config).keys_of(settings))
    assert len(keys) == 1
