"""Negatives mined by another process while training continues, from YAML to the model."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_training import BM25, MINED, TRAINER, short_training
from small_world import write_marked

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.progress import Advance
from sluice.retrieval import run, train
from sluice.retrieval.execution.executor import Crew, Executor, Outcome, Task
from sluice.retrieval.execution.processes import ProcessExecutor
from sluice.retrieval.execution.worker import answer_of
from sluice.retrieval.training_data import refreshing_miner as miner
from sluice.retrieval.training_data.refreshing_miner import RefreshSettings

SELF = {**MINED, "retriever": ["self", BM25]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits are compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return short_training(tmp_path, bert)


class SameProcess(Executor):
    """Answers as a worker does, in the thread that waits for it; no process is started."""

    type_name = "processes"

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        yield _Same()


class _Same(Crew):
    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def next(self, advance: Advance) -> Outcome:
        task = self.tasks.popleft()
        return Outcome.from_answer(task, json.dumps(answer_of(task.order)))


@pytest.fixture
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RefreshSettings, "miner", lambda self, where: SameProcess())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def ages(output: str) -> list[int]:
    file = Path(output) / "training" / "metrics.jsonl"
    found = map(json.loads, file.read_text().splitlines())
    return [line["negatives_age"] for line in found if "loss" in line]


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["summary"]["negatives_age"]


def refreshed(config: dict[str, Any], refresh: Any, name: str, **changes: Any) -> dict[str, Any]:
    negatives = {**SELF, "refresh": refresh}
    return {**config, "negatives": negatives, "output": f"{config['output']}-{name}", **changes}


@pytest.mark.thorough
def test_a_process_that_is_killed_is_replaced_and_the_bits_are_those_of_training_alone(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    struck: list[Any] = []
    submit = miner._MiningCrew.submit

    def strike(self: Any, task: Task) -> None:
        submit(self, task)
        if not struck:
            struck.extend(self._crew._busy.values())
            struck[0].kill()

    monkeypatch.setattr(miner._MiningCrew, "submit", strike)
    alone = train(refreshed(config, 2, "alone"))
    beside = refreshed(config, {"every": 2, "lag": 0}, "beside")
    section = {key: value for key, value in beside.items() if key not in ("dataset", "output")}
    section["negatives"] = {**section["negatives"], "retriever": ["self", "bm25"]}
    dense = {"encoder": {**config["encoder"], "model": "ft"}}
    retrievers, base = {"bm25": BM25, "dense": dense}, {k: beside[k] for k in ("dataset", "output")}
    run({**base, "train": {"ft": section}, "retrievers": retrievers, "pipelines": {"d": "dense"}})
    folder = Path(beside["output"]) / "models" / "ft"
    assert struck[0].returncode == -9
    assert equal(alone, folder)
    assert facts(folder) | {"waited": 0} == {
        "max": 2, "mean": 1.5, "refreshes": 1, "restarts": 1, "waited": 0,
    }  # fmt: skip
    work = Path(beside["output"]) / "training" / "ft"
    assert json.loads((work / "mining-2.json").read_text())["positive_share"] == 0.0
    assert not (work / miner.COPIES).exists()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["splade", "lora", "towers", "several"])
@pytest.mark.usefixtures("same_process")
def test_without_a_lag_every_kind_has_the_bits_of_training_alone(
    config: dict[str, Any], tmp_path: Path, masked_bert: Path, kind: str
) -> None:
    changes: dict[str, Any] = {}
    if kind == "splade":
        changes["encoder"] = {"type": "splade", "model": str(masked_bert)}
    elif kind == "lora":
        changes["tuning"] = {"type": "lora", "rank": 2}
    elif kind == "towers":
        one = config["encoder"]
        changes["encoder"] = {"type": "towers", "query": one, "document": one}
    elif kind == "several":
        marked = str(write_marked(tmp_path / "marked", "amber"))
        changes |= {"dataset": None, "datasets": [config["dataset"], marked]}
    folders = [
        train(refreshed(config, refresh, name, **changes))
        for refresh, name in ((2, "alone"), ({"every": 2, "lag": 0}, "beside"))
    ]
    first = next(folders[0].rglob("model.safetensors")).relative_to(folders[0]).parent
    assert equal(folders[0] / first, folders[1] / first)
    before = facts(folders[0])
    assert before["refreshes"] > 0
    assert facts(folders[1]) | {"waited": 0.0} == before


@pytest.mark.thorough
@pytest.mark.usefixtures("same_process")
def test_the_age_is_what_was_asked_for_and_positives_are_never_mined(
    config: dict[str, Any],
) -> None:
    trainer = {**TRAINER, "max_steps": 8}
    lagged = refreshed(config, {"every": 3, "lag": 1}, "lag", trainer=trainer)
    folder = train(lagged)
    assert ages(lagged["output"]) == [1, 2, 3, 4, 2, 3, 4, 2]
    assert facts(folder) | {"waited": 0.0} == {
        "max": 4, "mean": 2.625, "refreshes": 2, "restarts": 0, "waited": 0.0,
    }  # fmt: skip
    unsaid = refreshed(config, {"every": 3, "executor": "processes"}, "unsaid", trainer=trainer)
    train(unsaid)  # used when the next mining begins
    assert ages(unsaid["output"]) == [1, 2, 3, 4, 5, 6, 4, 5]
    bounded = refreshed(config, {"every": 2, "max_age": 3}, "bounded", trainer=trainer)
    assert facts(train(bounded))["max"] <= 3
    assert max(ages(bounded["output"])) <= 3
    for config in (lagged, unsaid, bounded):
        for report in (Path(config["output"]) / "training").glob("mining-*.json"):
            assert json.loads(report.read_text())["positive_share"] == 0.0


@pytest.mark.thorough
def test_who_mines_does_not_decide_the_model(
    config: dict[str, Any], same_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = refreshed(config, {"every": 2, "lag": 1}, "one")
    folder = train(first)
    monkeypatch.setattr(RefreshSettings, "miner", lambda self, where: 1 / 0)
    other = refreshed(config, {"every": 2, "lag": 1, "executor": {"type": "ray"}}, "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RefreshSettings, "miner", lambda self, where: ProcessExecutor(1))
        assert train(other) == folder  # made before


def test_a_copy_that_comes_back_as_another_encoder_is_refused(
    config: dict[str, Any], same_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.retrieval.experiments.suites import training_jobs

    opened = training_jobs.reopened
    start = config["encoder"]["model"]
    monkeypatch.setattr(
        training_jobs, "reopened", lambda folder, own, options: opened(start, own, options)
    )
    with pytest.raises(ModelError, match=r"negatives.refresh: the encoder saved and reopened"):
        train(refreshed(config, {"every": 2, "lag": 1}, "other"))
