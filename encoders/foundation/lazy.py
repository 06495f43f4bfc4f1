"""Loads a package's public names when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package's ``__init__``.

    ``package`` is its ``__name__``; ``homes`` lists the public names by the module they are defined
    in. A name's module is imported at its first use, so that importing the package loads nothing.
    Type checkers read the same names from imports under ``TYPE_CHECKING``, of which these three are
    the ``else``: a name that does not exist is then an error for them too.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    public = sorted(home_of)

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: list(public), public
