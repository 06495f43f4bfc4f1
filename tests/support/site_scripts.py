"""The scripts that build the documentation site, as modules."""

import importlib
import sys
from types import ModuleType

from places import ROOT


def site_script(name: str) -> ModuleType:
    """Return ``scripts/site/NAME.py``; only its own folder may hold what it imports."""
    folder = str(ROOT / "scripts" / "site")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
