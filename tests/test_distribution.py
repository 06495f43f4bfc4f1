"""The wheel: what is in it, and that nothing a checkout has is missing."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.thorough

PACKAGES = ("encoders", "indexing", "training", "retrieval")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the sources, without what lies beside them."""
    pytest.importorskip("setuptools")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("sluice", "configs", *PACKAGES):
        shutil.copytree(ROOT / name, source / name, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__", "*.nb[ic]"))  # fmt: skip
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    words = [sys.executable, "-c", BUILD, str(built)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (file,) = built.glob("*.whl")
    return zipfile.ZipFile(file)


def test_everything_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    sources = {
        f"sluice/{file.relative_to(ROOT).as_posix()}"
        for package in (*PACKAGES, "configs")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix[:3] != ".nb"
    }
    assert sorted(sources - names) == []
    assert {"sluice/__init__.py", "sluice/__main__.py", "sluice/py.typed"} <= names
    assert "sluice/configs/quickstart.yaml" in names
    assert "sluice/configs/sluice.schema.json" in names
    assert {Path(name).parts[0] for name in names if ".dist-info" not in name} == {"sluice"}


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (each for each in wheel.namelist() if each.endswith("/METADATA"))
    text = wheel.read(name).decode()
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in text
    assert "License-Expression: Apache-2.0\n" in text
    assert re.search(r"^Requires-Python: >=3\.11$", text, flags=re.M)
    entry = name.replace("METADATA", "entry_points.txt")
    assert "sluice = sluice.retrieval.cli:main" in wheel.read(entry).decode()
