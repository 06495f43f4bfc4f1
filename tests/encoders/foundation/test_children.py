"""How a child process ended, its errors by name, and what it inherits."""

import subprocess

import pytest

from sluice.encoders.foundation import processes
from sluice.encoders.foundation.errors import ModelError, SluiceError


def test_an_end_and_an_error_are_named() -> None:
    assert [processes.end_cause(code) for code in (3, -9, -11)] == [
        "exit code 3",
        "killed",
        "SIGSEGV",
    ]
    ends = [processes.end_phrase(code) for code in (3, -9, -11)]
    assert ends == ["ended with exit code 3", "was killed", "died of SIGSEGV"]
    told = processes.describe_error(ModelError("no model"))
    assert type(processes.error_from(*told)) is ModelError
    assert type(processes.error_from("MissingPackageError", "pip install it")) is SluiceError
    assert processes.error_from("RecursionError", "too deep") is None
    assert [processes.longer_pause(pause) for pause in (0.0, 1.0, 25.0)] == [1.0, 2.0, 30.0]


def test_a_child_of_a_member_is_of_no_group_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code = (
        "import os; print(*(os.environ.get(n) for n in ('RANK', 'WORLD_SIZE', 'MKL_NUM_THREADS')))"
    )
    seen = processes.start(
        "timeit", "-n1", "-r1", code, threads=3, settings={"RANK": "1"},
        stdout=subprocess.PIPE, encoding="utf-8",
    ).communicate()[0]  # fmt: skip
    assert seen.startswith("1 None 3\n")


@pytest.mark.parametrize(("value", "left"), [(processes.SPINS, "None"), ("7", "7")])
def test_a_child_does_not_wait_awake_as_its_parent(
    monkeypatch: pytest.MonkeyPatch, value: str, left: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", value)
    code = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"
    seen = processes.start(
        "timeit", "-n1", "-r1", code, threads=1, stdout=subprocess.PIPE, encoding="utf-8"
    ).communicate()[0]
    assert seen.startswith(f"{left}\n")
