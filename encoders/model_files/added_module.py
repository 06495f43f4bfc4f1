"""Adds a module that only Sluice has to a written model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_model_json, write_json
from sluice.encoders.model_files.layout import SIDECAR, read_sidecar


def add_module(folder: Path, kind: str, facts: dict[str, Any]) -> Path:
    """Add a module to ``modules.json`` and ``facts`` to ``sluice.json``; return its own folder.

    sentence-transformers refuses the folder then, where it would make other vectors.
    """
    entries = read_model_json(folder / "modules.json")
    place = folder / f"{len(entries)}_{kind}"
    write_json(place / "config.json", {"opened_by": "sluice"})
    entries.append({"idx": len(entries), "name": str(len(entries)), "path": place.name,
                    "type": f"sluice.{kind}"})  # fmt: skip
    write_json(folder / "modules.json", entries)
    write_json(folder / SIDECAR, {**read_sidecar(folder), **facts})
    return place
