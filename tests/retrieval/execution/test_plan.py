"""Plans: what is open is carried out once, lost workers are replaced, errors end them."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from places import SUPPORT
from struck_encoders import StruckEncoder, arrays, build
from token_functions import token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, ModelError
from sluice.encoders.foundation.progress import Advance, show_progress
from sluice.indexing import FmIndex
from sluice.retrieval import Retriever
from sluice.retrieval.execution import Executor, LocalExecutor, ProcessExecutor, executor as plan
from sluice.retrieval.execution.executor import (
    TRIES,
    Crew,
    Facts,
    Outcome,
    Plan,
    Planned,
    Task,
    carry_out,
    planning,
    run_plan,
)
from sluice.retrieval.retrievers import retriever
from sluice.retrieval.retrievers.corpus.passages import Passages


def task(folder: Path, name: str, *, size: int = 1, **options: Any) -> Task:
    output = folder / name

    def here(advance: Advance) -> Facts:
        output.write_text(name)
        return {"seconds": 2.0 * size}

    return Task("test", name, {}, output, here, size, **options)


class Fake(Executor, Crew):
    """Two workers in this process; ``fates`` says how the tries of a task end, by its name."""

    type_name, slots = "fake", 2

    def __init__(self, **fates: list[str]) -> None:
        self.fates, self.busy, self.tried = fates, list[Task](), list[str]()

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        yield self

    def submit(self, task: Task) -> None:
        self.busy.append(task)
        assert len(self.busy) <= self.slots

    def next(self, advance: Advance) -> Outcome:
        task = self.busy.pop()
        self.tried.append(task.name)
        fate = (self.fates.get(task.name) or ["done"]).pop(0)
        if fate == "lost":
            return Outcome(task, {}, lost="it was killed")
        if fate == "absent":
            return Outcome(task, {})
        if fate != "done":
            return Outcome.failed(task, fate, "what was wrong")
        return Outcome(task, task.here(advance))


def test_what_is_there_is_not_carried_out_again(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    (tmp_path / "b").write_text("of before")
    for executor in (LocalExecutor(), Fake()):
        facts = run_plan(Plan("work", [task(tmp_path, name) for name in names]), executor)
        assert sorted(facts) == (["a", "c"] if isinstance(executor, LocalExecutor) else [])
    assert (tmp_path / "b").read_text() == "of before"
    again = task(tmp_path, "b", kept=False)
    assert run_plan(Plan("work", [again]), LocalExecutor())["b"] == {"seconds": 2.0}
    assert (tmp_path / "b").read_text() == "b"


def test_a_lost_task_is_given_to_another_worker(tmp_path: Path) -> None:
    steps: list[str] = []
    tasks = [
        task(
            tmp_path, name, prepare=lambda n=name: steps.append(f"+{n}"),
            finish=lambda n=name: steps.append(f"-{n}"),
        )
        for name in "abc"
    ]  # fmt: skip
    executor = Fake(b=["lost", "lost"])
    executor.fates["b"].append("done")
    assert sorted(run_plan(Plan("work", tasks), executor)) == ["a", "b", "c"]
    assert executor.tried.count("b") == 3
    assert steps.count("+b") == 3  # the input is written anew for each
    assert [step for step in steps if step[0] == "-"].count("-b") == 1
    hopeless = Fake(d=["lost"] * TRIES)
    with pytest.raises(ModelError, match=rf"d: its worker was lost {TRIES} times.*it was killed"):
        run_plan(Plan("work", [task(tmp_path, "d")]), hopeless)


def test_a_task_alone_whose_workers_are_lost_does_not_end_the_others(tmp_path: Path) -> None:
    steps: list[str] = []
    tasks = [
        task(tmp_path, name, alone=True, finish=lambda n=name: steps.append(n)) for name in "abc"
    ]
    facts = run_plan(Plan("work", tasks), Fake(b=["lost"] * TRIES))
    assert sorted(facts) == sorted(steps) == ["a", "b", "c"]
    assert facts["b"].keys() == {"failed"}
    assert facts["b"]["failed"].startswith(f"its worker was lost {TRIES} times, at last because it")
    assert not (tmp_path / "b").exists()


def test_an_error_ends_the_plan_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SETTLING", 0)
    tasks = [task(tmp_path, name) for name in "abc"]
    with pytest.raises(DataError, match="what was wrong"):
        run_plan(Plan("work", tasks), Fake(a=["DataError"]))
    with pytest.raises(ModelError, match="a: a worker failed with RecursionError"):
        run_plan(Plan("work", tasks[:1]), Fake(a=["RecursionError"]))
    assert (tmp_path / "b").exists()
    with pytest.raises(IndexFormatError, match="every worker must see the same folders"):
        run_plan(Plan("work", [task(tmp_path, "e")]), Fake(e=["absent"]))


def test_an_output_that_is_seen_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            (tmp_path / "e").write_text("of another machine")

    monkeypatch.setattr(time, "sleep", sleep)
    assert run_plan(Plan("work", [task(tmp_path, "e")]), Fake(e=["absent"])) == {"e": {}}
    assert len(waited) == 2


def test_a_plan_estimates_by_a_task_that_did_not_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def failed(advance: Advance) -> Facts:
        return {"seconds": 0.0, "failed": "no such folder"}

    first = Task("test", "a", {}, tmp_path, failed, kept=False)
    with planning(), pytest.raises(Planned, match=r"3 tasks, 1 done; about 4\.0 s"):
        run_plan(Plan("work", [first, task(tmp_path, "b"), task(tmp_path, "c")]), LocalExecutor())
    assert "a: no such folder" in caplog.text


def test_progress_counts_units_of_the_open_tasks(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    sizes = {"a": 5, "b": 3, "c": 4}
    seen: list[tuple[str, int, int | None]] = []
    for executor in (LocalExecutor(), Fake()):
        seen.clear()
        show_progress(lambda label, done, total: seen.append((label, done, total)))
        try:
            tasks = [task(tmp_path, name, size=size) for name, size in sizes.items()]
            run_plan(Plan("work", tasks), executor)
        finally:
            show_progress()
        assert seen[-1] == ("work", 7, 7)
        for name in "bc":
            (tmp_path / name).unlink()


def test_a_plan_estimates_by_its_first_task(tmp_path: Path) -> None:
    """Two seconds and a byte a unit: 6 units are left, of which two workers do at least 4."""
    (tmp_path / "a").write_text("")
    sizes = {"a": 1, "b": 1, "c": 2, "d": 4}
    tasks = [task(tmp_path, name, size=size) for name, size in sizes.items()]
    with planning(), pytest.raises(Planned, match=r"4 tasks, 2 done; about 8\.0 s for the rest"):
        run_plan(Plan("work", tasks), Fake())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    with planning():
        assert run_plan(Plan("work", tasks[:2]), Fake()) == {}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The arrays of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    build(folder)
    assert len(arrays(folder)) == 4 + 2 * 3
    return arrays(folder)


@pytest.mark.thorough
def test_a_killed_worker_costs_a_try_and_no_bit(
    tmp_path: Path, undisturbed: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    build(tmp_path, "itself", ProcessExecutor(2))
    assert arrays(tmp_path) == undisturbed
    assert caplog.text.count("its worker is lost (it was killed)") == 1
    assert not list(tmp_path.glob("r/.encoding"))


@pytest.mark.thorough
def test_a_killed_driver_is_continued_to_the_same_bits(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    command = [sys.executable, str(SUPPORT / "struck_encoders.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"}
    done = subprocess.run(command, env=environment, timeout=600, check=False)
    assert done.returncode == -9
    assert (tmp_path / "mark").exists()
    assert not (tmp_path / "r/retriever.json").exists()
    build(tmp_path)  # what was complete is reused by any executor
    assert arrays(tmp_path) == undisturbed


class Here(Fake):
    """Carries out what another process would be told, in this one; ``allowed`` kinds only."""

    remote = True

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.allowed = allowed

    def next(self, advance: Advance) -> Outcome:
        task = self.busy.pop()
        assert task.kind in self.allowed
        sent = json.loads(json.dumps({"kind": task.kind, "args": dict(task.args)}))
        return Outcome(task, carry_out(**sent))


def test_filled_shards_outlive_a_killed_build(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(retriever, "committed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, executor=Here("encode", "index_shard"))
    build(tmp_path, executor=Here())
    assert arrays(tmp_path) == undisturbed
    (tmp_path / "r/retriever.json").unlink()
    for path in (tmp_path / "cache").glob("*/*.vectors"):
        path.unlink()
    build(tmp_path, executor=Here("encode", "index_shard"))
    assert arrays(tmp_path) == undisturbed


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_what_is_no_plan_is_said_and_not_begun_by_planning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, aggregate: Literal["max", "mean"]
) -> None:
    learner = BM25Encoder()
    passages = Passages(aggregate=aggregate, length=20, overlap=0)
    with planning(), pytest.raises(Planned, match="index: no open task"):
        Retriever.build(learner, ["red fox"], path=tmp_path / "b", passages=passages)
    with pytest.raises(ModelError):
        learner.encode_queries(["red"])  # nothing was counted
    Retriever.build(learner, ["red fox"], executor=Here(), passages=passages)
    assert caplog.text.count("index: the encoder learns from the whole corpus, so this") == 1
    caplog.clear()
    vectors = np.ones((1, 16), np.float32)
    Retriever.build(StruckEncoder(), ["red fox"], vectors=vectors, executor=Here())
    assert caplog.text.count("index: the documents' vectors are given, so this process") == 1


def test_token_sequences_are_not_indexed_by_planning(tmp_path: Path) -> None:
    class Writer(StruckEncoder):
        similarity = "ngrams"

        def encode_documents(self, texts: Sequence[str]) -> Any:
            raise AssertionError("the work has begun")

    with planning(), pytest.raises(Planned, match="index: no open task"):
        Retriever.build(Writer(), ["red fox"], index=FmIndex(), path=tmp_path / "r")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_planned_build_stops_after_a_task_of_each_kind(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    for left in (3, 2):
        with planning(), pytest.raises(Planned, match=f"encode: {left + 1} tasks, 1 done; about"):
            build(tmp_path, executor=Here("encode"))
    with pytest.raises(AssertionError):
        build(tmp_path, executor=Here("encode"))  # shards are to be filled
    with planning(), pytest.raises(Planned, match="index: 2 tasks, 1 done; about"):
        build(tmp_path, executor=Here("index_shard"))
    with planning(), pytest.raises(Planned, match="index: 2 tasks, 2 done; about"):
        build(tmp_path, executor=Here("index_shard"))
    with planning(), pytest.raises(Planned, match="index: no open task"):
        build(tmp_path, executor=Here())
    build(tmp_path)
    assert arrays(tmp_path) == undisturbed


def test_an_encoder_that_cannot_be_sent_is_refused_before_any_work(tmp_path: Path) -> None:
    given = FunctionEncoder(token_vectors, name="words")
    with pytest.raises(ConfigError, match=r"executor: a function is not saved"):
        Retriever.build(given, ["gold"], path=tmp_path / "r", executor=Here())
    assert not (tmp_path / "r/retriever.json").exists()


@pytest.mark.parametrize(
    ("options", "message"), [({"workers": 0}, "workers is 0"), ({"threads": 0}, "threads is 0")]
)
def test_bad_settings_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProcessExecutor(**options)
