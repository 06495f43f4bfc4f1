"""The examples in docs/examples run, and YAML finds what they define."""

import importlib
import runpy
from pathlib import Path
from typing import Any

import pytest

from sluice.encoders.foundation.build import build
from sluice.encoders.table import ENCODERS
from sluice.indexing.table import INDEXES
from sluice.training.losses import LOSSES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "examples"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py"))


def test_there_is_one_of_each() -> None:
    parts = ("encoder", "index", "loss", "measure", "stage")
    assert [f"own_{part}.py" for part in parts] == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spec", "table"),
    [
        ({"type": "own_loss:TripletMargin", "margin": 0.3}, LOSSES),
        ({"type": "own_index:MatrixIndex"}, INDEXES),
        ({"type": "own_encoder:TripleEncoder", "width": 512}, ENCODERS),
    ],
)
def test_yaml_finds_it(spec: Any, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    part = build(spec, table, where="part")
    assert f"{type(part).__module__}:{type(part).__name__}" == spec["type"]
    importlib.invalidate_caches()
