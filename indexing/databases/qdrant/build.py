"""What a killed build leaves in its work folder, so that the same command continues it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.indexing.databases.former import former_facts
from sluice.indexing.databases.qdrant.collection import NAME
from sluice.indexing.databases.qdrant.settings import Settings

NOTE, CHUNKS = "qdrant.json", "qdrant.jsonl"


class BuildNotes:
    """Which collection a build fills, and which of its chunks are on the disk there."""

    def __init__(self, folder: Path) -> None:
        self._note, self._lines = folder / NOTE, folder / CHUNKS
        self._stored: dict[int, tuple[int, str]] = {}

    def begun(self, own: Mapping[str, Any]) -> str | None:
        """Return the collection of a killed build of the same settings, if it stored anything."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
            lines = self._lines.read_text("utf-8").split("\n")[:-1]  # a cut line is not ended
            stored = [json.loads(line) for line in lines]
            if {**note, "name": ""} != {**own, "name": ""} or not stored:
                return None
            name = _name(note)
            self._stored = {int(first): (int(stop), str(digest)) for first, stop, digest in stored}
            return name
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def abandoned(self) -> str | None:
        """Return the collection of a killed build, whatever its settings were."""
        try:
            return _name(json.loads(self._note.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def begin(self, own: Mapping[str, Any], name: str) -> None:
        """Note the collection, before it is created."""
        self._note.parent.mkdir(parents=True, exist_ok=True)
        self._lines.unlink(missing_ok=True)
        write_json(self._note, {**own, "name": name})

    def stored(self, first: int, stop: int, digest: str) -> bool:
        """Return whether a killed build stored these very rows."""
        return self._stored.get(first) == (stop, digest)

    def note(self, first: int, stop: int, digest: str) -> None:
        """Note a chunk that is on the collection's disk."""
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([first, stop, digest]) + "\n")


def _name(note: Mapping[str, Any]) -> str:
    """Return the collection that a note names; ``ValueError`` for a name that is not ours."""
    if NAME.fullmatch(note["name"]) is None:
        raise ValueError(note["name"])
    return str(note["name"])


def former_names(folder: Path, type_name: str, settings: Settings) -> set[str]:
    """Return the collections, in the same place, of the state before that of ``folder``."""
    names = set()
    for facts in former_facts(folder, type_name):
        name, had = facts.get("name"), facts.get("settings")
        here = isinstance(had, dict) and (had.get("path"), had.get("url")) == (
            settings.path, settings.url,
        )  # fmt: skip
        if here and isinstance(name, str) and NAME.fullmatch(name):
            names.add(name)
    return names


def digest_of(vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of vectors and payloads."""
    hashed = hashlib.blake2b(digest_size=16)
    parts = [vectors] if not hasattr(vectors, "indptr") else [
        vectors.indptr, vectors.indices, vectors.data
    ]  # fmt: skip
    for part in parts:
        hashed.update(part.tobytes())
    hashed.update(json.dumps(payloads, sort_keys=True).encode())
    return hashed.hexdigest()
