"""Checkpoints of ``sluice model get`` on this machine: tests read them, and bring none."""

import os
from pathlib import Path

import pytest

# tests/conftest.py keeps the user's own cache folder here before it gives tests another
HERE = Path(os.environ["SLUICE_TEST_FETCHED"]).expanduser() / "models"


def fetched(name: str) -> Path:
    """Return a checkpoint's folder; skip the test where it was not fetched."""
    folder = HERE / name
    if not folder.is_dir():
        pytest.skip(f"sluice model get {name} was not run on this machine")
    return folder
