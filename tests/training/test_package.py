"""Importing the package loads nothing heavy."""

import subprocess
import sys

import pytest


@pytest.mark.thorough
def test_import_is_light() -> None:
    code = (
        "import sys; from sluice.training import LOSSES, Mining, Example;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
