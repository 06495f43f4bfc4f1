"""Adds a module to a written model folder, mostly one that only Sluice has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.model_files.layout import OWN_HOME, SIDECAR, append_module, read_sidecar


def add_module(folder: Path, kind: str, facts: dict[str, Any], *, target: str = "") -> Path:
    """Add a module to ``modules.json`` and ``facts`` to ``sluice.json``; return its own folder.

    ``target`` is the name of sentence-transformers' class. It has none of the modules that are ours
    alone and refuses the folder, where it would make other vectors.
    """
    place = append_module(folder, kind, target or f"{OWN_HOME}.{kind}")
    write_json(place / "config.json", {"opened_by": "sluice"})
    write_json(folder / SIDECAR, {**read_sidecar(folder), **facts})
    return place
