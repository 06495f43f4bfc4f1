"""What is fastest here: the choice, what is kept of it, and what another machine does not see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.encoders.foundation import measured as module
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.measured import Measured, forced, measured


class Machine:
    """A clock that the ways themselves move on."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.now, self.calls = seconds, 0.0, 0

    def __call__(self) -> float:
        return self.now

    def ways(self) -> dict[str, Callable[[], object]]:
        def way(name: str) -> Callable[[], object]:
            def run() -> None:
                self.calls += 1
                self.now += self.seconds[name]

            return run

        return {name: way(name) for name in self.seconds}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    monkeypatch.delenv("SLUICE_ARITHMETIC", raising=False)
    monkeypatch.setattr(module, "_HERE", {})
    return tmp_path


def chosen(machine: Machine, task: str = "products") -> Measured:
    return measured(task, machine.ways(), clock=machine)


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ({"float32": 2.0, "bfloat16": 1.0}, "bfloat16: 2.0 times as fast as float32 here"),
        ({"float32": 1.0, "bfloat16": 1.8}, "float32: 1.8 times as fast as bfloat16 here"),
        ({"float32": 1.0, "bfloat16": 0.98}, "float32: 1.0 times as fast as bfloat16 here"),
        (
            {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0},
            "int8: 2.0 times as fast as bfloat16 here",
        ),
        ({"float32": 1.0}, "float32: the only one here"),
    ],
)
def test_the_fastest_is_taken_unless_it_is_chance(seconds: dict[str, float], line: str) -> None:
    times = chosen(Machine(**seconds))
    assert str(times) == line
    assert times.fastest == line.partition(":")[0]


def test_each_is_timed_once_for_a_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Machine(float32=1e-3, bfloat16=5e-4)
    times = chosen(first)
    assert first.now < 0.04, "a few milliseconds"
    monkeypatch.setattr(module, "_HERE", {})  # as in another process
    second = Machine(float32=1.0, bfloat16=5.0)
    assert chosen(second) == times
    assert second.calls == 0
    assert chosen(second, "other products").fastest == "float32"
    monkeypatch.setattr(module, "machine", lambda: "another processor")
    monkeypatch.setattr(module, "_HERE", {})
    assert chosen(second).fastest == "float32"
    assert len(json.loads((cache / "measured.json").read_text())) == 3


def test_measure_asks_again_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(Machine(float32=1.0, bfloat16=5.0))
    monkeypatch.setattr(module, "_HERE", {})
    monkeypatch.setenv("SLUICE_ARITHMETIC", "measure")
    again = Machine(float32=5.0, bfloat16=1.0)
    assert chosen(again).fastest == "bfloat16"
    calls = again.calls
    assert chosen(again).fastest == "bfloat16"
    assert again.calls == calls


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": {"float32": "fast"}}', "{", "\0"])
def test_a_damaged_file_is_measured_anew(cache: Path, content: str) -> None:
    (cache / "measured.json").write_text(content)
    assert chosen(Machine(float32=1.0, bfloat16=5.0)).fastest == "float32"
    assert len(json.loads((cache / "measured.json").read_text())) == 1


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "file" / "below"))
    assert chosen(Machine(float32=1.0, bfloat16=5.0)).fastest == "float32"


def test_ways_that_were_not_timed_then_are_timed_now() -> None:
    chosen(Machine(float32=2.0, bfloat16=1.0))
    assert chosen(Machine(float32=4.0, bfloat16=2.0, int8=1.0)).fastest == "int8"


def test_what_is_asked_for_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forced() == ""
    monkeypatch.setenv("SLUICE_ARITHMETIC", " BFloat16 ")
    assert forced() == "bfloat16"
    monkeypatch.setenv("SLUICE_ARITHMETIC", "bfloat")
    with pytest.raises(ConfigError, match=r"SLUICE_ARITHMETIC: 'bfloat'.*mean 'bfloat16'"):
        forced()
