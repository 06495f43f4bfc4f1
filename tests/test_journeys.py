"""The ten journeys of ``scripts/journeys.py``, in this process and with a tiny model."""

import contextlib
import importlib.util
import io
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from command_line import Call
from places import ROOT


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("journeys", ROOT / "scripts" / "journeys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JOURNEYS = _script().JOURNEYS


class Here:
    """Makes journeys in this process, in a folder that is the current one."""

    def __init__(self, folder: Path, model: Path, shell: Call) -> None:
        self.folder, self.model, self._shell = folder, str(model), shell

    def sluice(self, *words: str, code: int = 0) -> str:
        ended, out, err = self._shell(*words)
        assert ended == code, (words, out, err)
        return out + err

    def python(self, lines: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(textwrap.dedent(lines), {"__name__": "journey"})
        return printed.getvalue()

    def write(self, name: str, text: str, *, counted: bool = False) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text) if counted else text, encoding="utf-8")


def test_there_are_ten() -> None:
    assert len(JOURNEYS) == 10
    assert all(journey.__doc__ for journey in JOURNEYS.values())


@pytest.mark.thorough
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey(
    name: str, tmp_path: Path, bert: Path, shell: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    JOURNEYS[name](Here(tmp_path, bert, shell))
