"""How libraries wait and what they keep is set at import, unless the environment has it."""

import os
import subprocess
import sys

import pytest

from sluice.encoders.foundation.libraries import KEEPING, KEPT_SHAPES, WAITING

SHOW = f"; import os; print(*(os.environ.get(name) for name in {(*WAITING, *KEEPING)}))"


def environment(**settings: str) -> dict[str, str]:
    known = (*WAITING, *KEEPING)
    return {k: v for k, v in os.environ.items() if k not in known} | settings


def seen(code: str, **settings: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code + SHOW], env=environment(**settings), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    values = dict(zip((*WAITING, *KEEPING), done.stdout.split(), strict=True))
    return {name: value for name, value in values.items() if value != "None"}


@pytest.mark.parametrize("package", ["sluice", "sluice.encoders.foundation.errors"])
def test_importing_sluice_says_how_libraries_wait(package: str) -> None:
    expected = {"OMP_WAIT_POLICY": "passive", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KEPT_SHAPES)}
    assert seen(f"import {package}") == expected


@pytest.mark.parametrize("names", [WAITING, KEEPING])
def test_what_the_user_says_stays(names: tuple[str, ...]) -> None:
    other = seen("import sluice").keys() - set(names)
    for name in names:
        found = seen("import sluice", **{name: "1"})
        assert found[name] == "1"
        assert found.keys() == {name} | other


def test_nothing_changes_once_torch_is_loaded() -> None:
    assert seen("import sys; sys.modules['torch'] = sys; import sluice") == {}


def test_openmp_takes_it_from_the_environment() -> None:
    # OMP_DISPLAY_ENV makes OpenMP print its settings when torch loads it.
    done = subprocess.run(
        [sys.executable, "-c", "import sluice, torch"], env=environment(OMP_DISPLAY_ENV="true"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this torch's OpenMP does not print its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
