"""Loads a package's public names when they are first asked for (PEP 562)."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package's ``__init__``.

    ``package`` is its ``__name__``. Its public names are those that its ``__init__`` imports under
    ``if TYPE_CHECKING:``, where type checkers see them; this call is the ``else`` of that block. A
    name's module is imported at its first use, so that importing the package loads nothing. The
    source of the ``__init__`` is read: an installation without sources has no public names.
    """
    home_of = _imports_of(Path(str(sys.modules[package].__file__)))
    public = sorted(home_of)

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: list(public), public


def _imports_of(file: Path) -> dict[str, str]:
    """Return the module of each name that a file imports under ``if TYPE_CHECKING:``."""
    blocks = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.If))
    return {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
