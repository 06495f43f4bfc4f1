"""A plugin of pytest: fails a run in which a package that Sluice imports was not imported by it.

What counts is an import statement of Sluice's own code that is carried out while the tests run.
``third_party`` finds these statements in the source; a package is named by what is before the dot.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = {"psutil"} if sys.platform != "win32" else set()  # imported on Windows alone
# Sluice imports these in processes of their own alone, which a plugin does not see.
APART = {"accelerate", "ranx"}
used: set[str] = set()
original = builtins.__import__


def third_party() -> Iterator[tuple[Path, str]]:
    """Yield each file of the product with an import statement of another project's package."""
    for room in ("encoders", "indexing", "training", "retrieval"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in _carried_out(ast.parse(file.read_text(encoding="utf-8"))):
                first = node.names[0].name if isinstance(node, ast.Import) else str(node.module)
                if first.split(".")[0] not in {"sluice", *sys.stdlib_module_names}:
                    yield file, ast.unparse(node)


def _carried_out(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield import statements but those for type checkers."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which holds none, and is most of a file
            yield from _carried_out(child)


def packages() -> set[str]:
    """Return the names of the packages that the product imports."""
    return {statement.split()[1].split(".")[0] for _, statement in third_party()}


def _noted(name: str, globals: Any = None, *rest: Any, **more: Any) -> Any:
    if str((globals or {}).get("__name__")).startswith("sluice."):
        used.add(name.split(".")[0])
    return original(name, globals, *rest, **more)


if "used_packages" in " ".join(sys.argv):  # as a plugin: before any conftest.py imports Sluice
    builtins.__import__ = _noted


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    there = {name for name in packages() - PLATFORM - APART if importlib.util.find_spec(name)}
    missing = there - used
    if missing:
        session.exitstatus = 1
    said = f"not imported by Sluice in these tests: {', '.join(sorted(missing))}"
    count = f"all {len(there)} packages that Sluice imports and that are installed were used"
    sys.stderr.write(f"\n{said if missing else count}\n")
