"""Adds a module to a written model folder, mostly one that only Sluice has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_model_json, write_json
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar


def add_module(folder: Path, kind: str, facts: dict[str, Any], *, target: str = "") -> Path:
    """Add a module to ``modules.json`` and ``facts`` to ``sluice.json``; return its own folder.

    ``target`` is the name of sentence-transformers' class. It has none of the modules that are ours
    alone and refuses the folder, where it would make other vectors.
    """
    entries = read_model_json(folder / "modules.json")
    place = folder / f"{len(entries)}_{kind}"
    write_json(place / "config.json", {"opened_by": "sluice"})
    entries.append({"idx": len(entries), "name": str(len(entries)), "path": place.name,
                    "type": target or f"sluice.{kind}"})  # fmt: skip
    write_json(folder / "modules.json", entries)
    write_json(folder / SIDECAR, {**read_sidecar(folder), **facts})
    return place
