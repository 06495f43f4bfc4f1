"""The scripts that make the documentation and the lock, as modules."""

import importlib
import sys
from types import ModuleType

from places import ROOT


def site_script(name: str) -> ModuleType:
    """Return ``scripts/NAME.py``, ``scripts/site/NAME.py`` or ``scripts/versions/NAME.py``."""
    for folder in (str(ROOT / "scripts" / each) for each in ("", "site", "versions")):
        if folder not in sys.path:
            sys.path.append(folder)
    return importlib.import_module(name)
