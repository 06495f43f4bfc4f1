"""Readings of memory, the warning near the limit, and the word after a kill."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from forks import run_forked
from places import SUPPORT

import sluice.training.loop.callbacks as memory_watch
from sluice.encoders.foundation.errors import DataError
from sluice.training import fit
from sluice.training.loop.callbacks import (
    ADVICE,
    RUNNING,
    Journal,
    Memory,
    MemoryWatch,
    read_memory,
    reported_kill,
)
from sluice.training.losses.contrastive.softmax import InfoNCE

GIB = 2**30
STATUS = (
    "VmHWM:\t 9000 kB\nVmRSS:\t 5000 kB\nRssAnon:\t 3000 kB\nRssFile:\t1500 kB\n"
    "RssShmem:\t 500 kB\n"
)
System = Callable[[dict[str, str]], Path]


@pytest.fixture
def system(tmp_path: Path) -> System:
    def made(files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 16_000 * 1024),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16_000 * 1024),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "8192000\n"}, 8_192_000),
        (
            {
                "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            4_096_000,
        ),  # the group above limits too
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n3:cpuset:/\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000000\n",
            },
            5_000_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/elsewhere\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            16_000 * 1024,
        ),  # no limit is a very large number in version 1
    ],
)  # fmt: skip
def test_readings(system: System, files: dict[str, str], limit: int) -> None:
    root = system({"proc/self/status": STATUS, "proc/meminfo": "MemTotal: 16000 kB\n", **files})
    assert read_memory(root) == Memory(3500 * 1024, 9000 * 1024, limit)


def test_other_systems_say_nothing(tmp_path: Path) -> None:
    assert read_memory(tmp_path) is None
    older = {"proc/self/status": "VmRSS:\t 5000 kB\n", "proc/meminfo": "MemTotal: 16000 kB\n"}
    for name, text in older.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_memory(tmp_path) == Memory(5000 * 1024, 5000 * 1024, 16000 * 1024)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_of_this_process() -> None:
    memory = read_memory()
    assert memory is not None
    assert 2**24 < memory.held <= memory.peak
    assert memory.held < memory.limit


def watched(
    monkeypatch: pytest.MonkeyPatch, folder: Path, readings: list[Memory | None]
) -> MemoryWatch:
    left = iter(readings)
    monkeypatch.setattr(memory_watch, "read_memory", lambda: next(left))
    watch = MemoryWatch(folder)
    watch.on_train_begin(None, SimpleNamespace(global_step=0), None)
    for step in range(1, len(readings)):
        watch.on_step_end(None, SimpleNamespace(global_step=step), None)
    return watch


def of(held: float, peak: float = 0.0) -> Memory:
    return Memory(int(held * GIB), int(max(held, peak) * GIB), 10 * GIB)


def test_warning_comes_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched(monkeypatch, tmp_path, [of(1), of(5), of(9.2), of(9.5)])
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("training: step 2 used 9.2 GiB of the memory limit of 10.0 GiB")
    assert said.endswith(ADVICE)
    assert json.loads((tmp_path / RUNNING).read_text()) == {
        "pid": os.getpid(), "step": 2, "held": int(9.2 * GIB), "limit": 10 * GIB,
    }  # fmt: skip


def test_peak_counts_if_training_made_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched(monkeypatch, tmp_path, [of(1, 9.5), of(2, 9.5)])
    assert not caplog.records
    watched(monkeypatch, tmp_path, [of(1, 2), of(2, 9.5)])
    assert "step 1 used 9.5 GiB" in caplog.text


def test_nothing_known_nothing_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched(monkeypatch, tmp_path, [None, None])
    assert not caplog.records
    assert not (tmp_path / RUNNING).exists()


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"step": 40, "held": 85, "limit": 100}, "after step 40, when it used"),
        ({"step": 0, "held": 10, "limit": 100}, "before it logged a step; if it ran out"),
        ({"step": 40, "held": 50, "limit": 100}, None),
        ({"step": 40}, None),
        ("no note", None),
    ],
)
def test_what_a_note_says(
    note: object, said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = {"pid": 2**22 + 5}  # above the largest process number
    whole = {**dead, **note} if isinstance(note, dict) else note
    (tmp_path / RUNNING).write_text(json.dumps(whole))
    with reported_kill(tmp_path, first=False):
        assert not caplog.records
    with reported_kill(tmp_path):
        assert (said is None) == (not caplog.records)
        assert said is None or said in caplog.text
    assert not (tmp_path / RUNNING).exists()


def test_run_that_still_goes_on_was_not_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = {"pid": os.getppid(), "step": 3, "held": 99, "limit": 100}
    (tmp_path / RUNNING).write_text(json.dumps(note))
    with reported_kill(tmp_path):
        assert not caplog.records


@pytest.mark.thorough
def test_killed_run_is_told_of_by_the_next(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_forked(SUPPORT / "killed_full.py", tmp_path) == -signal.SIGKILL
    note = json.loads((tmp_path / RUNNING).read_text())
    assert (note["step"], note["held"], note["limit"]) == (4, 95 * GIB, 100 * GIB)
    caplog.set_level(logging.INFO, logger="sluice")
    report = fit(
        tiny.Splade(), tiny.examples(), InfoNCE(similarity="dot"), output=tmp_path, **tiny.JOB
    )
    assert report.resumed_step == 4
    assert "killed after step 4, when it used 95.0 GiB of the memory limit" in caplog.text
    assert "set gradient_cache" in caplog.text
    assert not (tmp_path / RUNNING).exists()


def test_ordinary_exception_leaves_no_note(tiny: ModuleType, tmp_path: Path) -> None:
    class Broken(InfoNCE):
        def __call__(self, *args: object, **kwargs: object) -> float:  # type: ignore[override]
            assert (tmp_path / RUNNING).exists()
            raise DataError("broken")

        def bound_to(self, similarity: str) -> "Broken":
            return self

    with pytest.raises(DataError, match="broken"):
        fit(tiny.Splade(), tiny.examples(), Broken(similarity="dot"), output=tmp_path, **tiny.JOB)
    assert not (tmp_path / RUNNING).exists()


def test_free_memory_is_given_back_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(memory_watch, "give_back_memory", lambda: called.append("all"))
    watched(monkeypatch, tmp_path, [of(1), of(2)])
    assert called == ["all"]


def test_lines_of_progress_and_the_last_one_say_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_watch, "peak_memory_bytes", lambda: 1_690_000_000)
    caplog.set_level(logging.INFO, "sluice")
    journal, state = Journal(tmp_path, lines=True), SimpleNamespace(global_step=2, max_steps=2)
    for logs in ({"loss": 0.5}, {"train_runtime": 3.0, "train_loss": 0.5}):
        journal.on_log(None, state, None, logs)
    assert [record.getMessage() for record in caplog.records] == [
        "training: step 2 of 2, loss 0.5, at most 1.69 GB of memory",
        "training: finished 2 steps in 3.0 s, mean loss 0.5, at most 1.69 GB of memory",
    ]
