"""The package's face: its names, and that importing it loads nothing heavy."""

import subprocess
import sys

import training


def test_public_names_resolve() -> None:
    assert sorted(training.__all__) == sorted(training._HOMES)
    for name in training.__all__:
        assert getattr(training, name) is not None
    assert dir(training) == sorted(training.__all__)


def test_import_is_light() -> None:
    code = (
        "import sys, training; from training import LOSSES, Mining, Example;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
