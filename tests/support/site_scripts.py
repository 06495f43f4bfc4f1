"""The scripts that make the documentation, as modules."""

import importlib
import sys
from types import ModuleType

from places import ROOT


def site_script(name: str) -> ModuleType:
    """Return ``scripts/NAME.py`` or ``scripts/site/NAME.py``."""
    for folder in (str(ROOT / "scripts"), str(ROOT / "scripts" / "site")):
        if folder not in sys.path:
            sys.path.append(folder)
    return importlib.import_module(name)
