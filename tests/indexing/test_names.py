"""The public names: listed, loaded lazily, and light to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import indexing
from encoders.build import resolve
from indexing import INDEXES, AutoIndex, Index


def test_names_and_table() -> None:
    for name in indexing.__all__:
        assert getattr(indexing, name) is not None
    assert set(indexing.__all__) <= set(dir(indexing))
    for name, target in INDEXES.items():
        found = resolve(target)
        assert issubclass(found, Index) or found is AutoIndex
        assert found.type_name == name
    with pytest.raises(AttributeError, match="NoIndex"):
        indexing.NoIndex  # noqa: B018


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
        "import sys; from indexing import FlatIndex\n"
        "print({'faiss', 'numba', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
