"""The table of index types, and that the package is light to import."""

from __future__ import annotations

import subprocess
import sys

from sluice.encoders.foundation.build import resolve
from sluice.indexing import INDEXES, AutoIndex, Index


def test_table() -> None:
    for name, target in INDEXES.items():
        found = resolve(target)
        assert issubclass(found, Index) or found is AutoIndex
        assert found.type_name == name


def test_import_is_light() -> None:
    program = (
        "import sys, indexing; indexing.INDEXES\n"
        "print({'faiss', 'numba', 'torch', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
    program = (
        "import sys; from sluice.indexing import FlatIndex\n"
        "print({'faiss', 'numba', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
