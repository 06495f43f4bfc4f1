"""Finds what the state that a save replaces has in a database: it is not needed after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST


def former_facts(folder: Path, type_name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the facts of the indexes of a type in the state before that of ``folder``.

    Of an index inside another the outer one's manifest has them.
    """
    manifests = (parent / MANIFEST for parent in list(folder.parents)[:3])
    manifest = next((each for each in manifests if each.exists()), None)
    yield from _facts(read_json(manifest) if manifest else {}, type_name)


def _facts(value: Any, type_name: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if value.get("type") == type_name and isinstance(value.get("index"), dict):
            yield value["index"]
        for inner in value.values():
            yield from _facts(inner, type_name)
