"""A training in several processes that a YAML key starts: gradients, bits, kills, errors."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from launched_training import check_struck, training

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    MissingPackageError,
    ModelError,
)
from sluice.retrieval import train
from sluice.retrieval.execution import ProcessExecutor, group as groups, processes
from sluice.retrieval.execution.executor import Task
from sluice.retrieval.execution.group import Group, Order, join

TWO = {"type": "processes", "workers": 2, "threads": 1}


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return training(tmp_path)


@pytest.mark.thorough
def test_two_processes_share_a_batch_though_one_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_struck(tmp_path, TWO)
    assert "training: a process is lost (process " in caplog.text


class Scripted(Group):
    """Attempts that end as a script says."""

    type_name = "scripted"
    threads = 1

    def __init__(self, ends: list[str], tries: int) -> None:
        super().__init__(2, tries)
        self.ends = ends

    def attempt(self, order: Order, work: Path) -> str:
        end = self.ends.pop(0)
        if end == "refused":
            with pytest.raises(DataError):
                join(order)
        return end


def test_processes_that_are_lost_again_and_again_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task("train", "training", {}, tmp_path / "model", lambda advance: {})
    assert Scripted(["killed", "killed", ""], 3).carry_out(task, tmp_path) == 2
    with pytest.raises(ModelError, match=r"training: processes were lost 2 times.*because killed;"):
        Scripted(["killed", "killed"], 2).carry_out(task, tmp_path)
    assert caplog.text.count("continue from the last checkpoint") == 3


def test_an_error_that_another_try_would_meet_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: str, args: Any) -> None:
        raise DataError(f"{kind} {args['name']}: refused")

    monkeypatch.setattr(groups, "carry_out", refuse)
    monkeypatch.setattr(groups, "limit_threads", lambda threads: None)
    task = Task("train", "training", {"name": "ft"}, tmp_path / "model", lambda advance: {})
    group = Scripted(["refused", "never"], 3)
    with pytest.raises(DataError, match=r"^train ft: refused$"):
        group.carry_out(task, tmp_path)
    assert group.ends == ["never"]
    assert not (tmp_path / groups.REPORT).exists()


def test_processes_of_a_member_are_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A miner that process 0 starts must not wait to join the others."""
    seen: list[dict[str, str]] = []

    def start(command: Any, env: dict[str, str], **options: Any) -> Any:
        seen.append(env)
        raise OSError("not started")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(processes.subprocess, "Popen", start)
    with ProcessExecutor(1).crew() as crew, pytest.raises(OSError, match="not started"):
        crew.submit(Task("mine", "a", {}, Path("a"), lambda advance: {}))
    assert not {"WORLD_SIZE", "RANK"} & seen[0].keys()


def test_workers_that_a_thread_waits_for_can_be_ended() -> None:
    """As a training does that ends early, while its negatives are being mined."""
    lost: list[str] = []
    for _ in range(3):
        with ProcessExecutor(1).crew() as crew:
            crew.submit(Task("mine", "a", {}, Path("a"), lambda advance: {}))
            (process,) = crew._busy.values()  # type: ignore[attr-defined]
            process.send_signal(signal.SIGSTOP)
            waiting = Thread(target=lambda crew: lost.append(crew.next(len).lost), args=(crew,))
            waiting.start()
            time.sleep(0.05)
        waiting.join()
    assert len(lost) == 3
    assert all(lost)


def test_the_number_of_processes_decides_the_model_and_where_they_are_does_not(
    config: dict[str, Any],
) -> None:
    from sluice.retrieval.config.sections import TrainConfig, checked
    from sluice.retrieval.experiments.suites.training_jobs import training_job

    def key(launch: Any) -> str:
        return training_job(checked({**config, "launch": launch}, TrainConfig)).keys.key

    assert key(TWO) == key({"type": "ray", "workers": 2, "address": "auto", "tries": 9})
    assert key({"type": "processes", "workers": 1}) == key(None)
    assert len({key(None), key(TWO), key({**TWO, "workers": 3})}) == 3


def test_a_launch_within_torchrun_and_bad_settings_are_refused(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for launch, message in (
        ({"type": "processes"}, r"launch: processes needs 'workers'"),
        ({**TWO, "workers": 0}, r"launch.workers: 0; expected"),
        ({"type": "ray", "workers": 2, "num_cpu": 1}, r"launch.num_cpu: unknown key"),
        ({"type": "ray", "workers": 2, "num_gpus": 2}, r"num_gpus: 2; expected 0 or 1"),
        ({"type": "slurm", "workers": 2}, r"launch"),
    ):
        with pytest.raises(ConfigError, match=message):
            train({**config, "launch": launch})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="launch: torchrun has started the processes already"):
        train({**config, "launch": TWO})


def test_without_ray_the_package_is_named(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[ray\]'"):
        train({**config, "launch": {"type": "ray", "workers": 2}})
