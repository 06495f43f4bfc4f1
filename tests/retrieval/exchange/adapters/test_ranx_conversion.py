"""Runs and judgements to ranx and back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranx_conversions


@pytest.mark.thorough
def test_conversions() -> None:
    """Everything that calls ranx, in Python: its compilation would take minutes."""
    script = Path(ranx_conversions.__file__)
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env=environment, cwd=script.parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
