"""Finds the tables of the state that a save replaces: what they hold is not needed after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST

TYPE = "pgvector"  # of the index, in the manifests of what holds it


def former_tables(folder: Path, dsn: str, own: str) -> dict[str, list[str]]:
    """Return the tables of the state before that of ``folder``, other than ``own``: their marks.

    Of an index inside another the outer one's manifest names it.
    """
    manifests = (parent / MANIFEST for parent in list(folder.parents)[:3])
    manifest = next((each for each in manifests if each.exists()), None)
    found = {}
    for facts in _facts(read_json(manifest) if manifest else {}):
        name = facts.get("name")
        if facts.get("dsn") == dsn and isinstance(name, str) and name != own:
            found[name] = [str(facts.get("mark")), str(facts.get("former"))]
    return found


def _facts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the facts of indexes of this type in a manifest, inner ones too."""
    if isinstance(value, dict):
        if value.get("type") == TYPE and isinstance(value.get("index"), dict):
            yield value["index"]
        for inner in value.values():
            yield from _facts(inner)
