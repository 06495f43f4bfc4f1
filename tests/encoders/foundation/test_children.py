"""How a child process ended, its errors by name, and what it inherits."""

import subprocess

import pytest

from sluice.encoders.foundation import children
from sluice.encoders.foundation.errors import ModelError, SluiceError


def test_an_end_and_an_error_are_named() -> None:
    assert [children.end_cause(code) for code in (3, -9, -11)] == [
        "exit code 3",
        "killed",
        "SIGSEGV",
    ]
    ends = [children.end_phrase(code) for code in (3, -9, -11)]
    assert ends == ["ended with exit code 3", "was killed", "died of SIGSEGV"]
    assert type(children.error_from(*children.describe_error(ModelError("no model")))) is ModelError
    assert type(children.error_from("MissingPackageError", "pip install it")) is SluiceError
    assert children.error_from("RecursionError", "too deep") is None
    assert [children.longer_pause(pause) for pause in (0.0, 1.0, 25.0)] == [1.0, 2.0, 30.0]


def test_a_child_of_a_member_is_of_no_group_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code = (
        "import os; print(*(os.environ.get(n) for n in ('RANK', 'WORLD_SIZE', 'MKL_NUM_THREADS')))"
    )
    seen = children.start(
        "timeit", "-n1", "-r1", code, threads=3, settings={"RANK": "1"},
        stdout=subprocess.PIPE, encoding="utf-8",
    ).communicate()[0]  # fmt: skip
    assert seen.startswith("1 None 3\n")
