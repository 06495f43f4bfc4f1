"""What a training writes down about itself."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sluice.training.journal.log import Journal


def test_journal_lines_are_valid_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lines=False)
    state = SimpleNamespace(global_step=3, max_steps=4)
    journal.on_log(None, state, None, {"loss": 0.5, "grad_norm": float("inf")})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 3,
        "loss": 0.5,
        "grad_norm": None,
    }
