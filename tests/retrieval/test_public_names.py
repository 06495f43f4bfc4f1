"""Every public name is what it says, in whatever order modules were imported."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


@pytest.fixture(scope="module")
def modules() -> set[str]:
    """The names of all modules, each of them imported."""
    names = {module.name for module in pkgutil.walk_packages(sluice.__path__, "sluice.")}
    for name in names:
        importlib.import_module(name)
    return {"sluice", *names}


def test_public_names_are_not_hidden_by_modules(modules: set[str]) -> None:
    homes = [importlib.import_module(name) for name in sorted(modules)]
    doors = [home for home in homes if hasattr(home, "__path__") and hasattr(home, "__all__")]
    assert {"sluice", "sluice.encoders", "sluice.retrieval.evaluation"} <= {
        door.__name__ for door in doors
    }
    for door in doors:
        for name in door.__all__:
            assert not inspect.ismodule(getattr(door, name)), f"{door.__name__}.{name}"
        with pytest.raises(AttributeError):
            door.no_such_name  # noqa: B018


def imports_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yield what the Python blocks of a page import from Sluice: module and name."""
    for code in PYTHON.findall(page.read_text(encoding="utf-8")):
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a signature
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sluice"):
                yield from ((str(node.module), each.name) for each in node.names)


def test_pages_import_public_names() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.name != "experiments.md"]
    imports = {(page, *names) for page in pages for names in imports_of(page)}
    assert len(imports) > 50
    for page, module, name in sorted(imports):
        public = getattr(importlib.import_module(module), "__all__", ())
        assert name in public, f"{page.relative_to(DOCS)}: from {module} import {name}"


def test_the_names_of_the_contract_import() -> None:
    from sluice.encoders import BM25Encoder, CrossEncoder, DenseEncoder, SpladeEncoder  # noqa: F401
    from sluice.indexing import FaissIndex, FlatIndex, Hits, InvertedIndex, open_index  # noqa: F401
    from sluice.training import fit  # noqa: F401
