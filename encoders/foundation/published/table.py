"""The table of published checkpoints, each with its packages, hashes, licence and use."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.bounded_input import load_yaml
from sluice.encoders.foundation.disk.files import cache_folder


class Packed(NamedTuple):
    """A file in a package or archive: its name there, its size and its sha256."""

    member: str
    bytes: int
    sha256: str


class Published(NamedTuple):
    """A row of the table; ``table.yaml`` says what each field is."""

    name: str
    type: str
    about: str
    licence: str
    packages: tuple[str, ...]
    files: Mapping[str, Packed]
    also: str = ""
    parts: tuple[Packed, ...] = ()
    write: Mapping[str, Any] = {}
    convert: str = ""
    needs: str = ""
    installed: str = ""

    @property
    def bytes(self) -> int:
        """The size of the files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def folder(self) -> Path:
        """Where the model is on this machine once it was fetched."""
        return cache_folder() / "models" / self.name

    @property
    def use(self) -> str:
        """The line of YAML that uses it."""
        role = "reranker" if self.type == "generative" else "encoder"
        return f"{role}: {{type: {self.type}, model: {self.name}}}"


@functools.cache
def published() -> Mapping[str, Published]:
    """Return the rows by name."""
    text = Path(__file__).with_name("table.yaml").read_text(encoding="utf-8")
    return {name: _row(name, row) for name, row in load_yaml(text).items()}


def _row(name: str, row: dict[str, Any]) -> Published:
    files = {file: Packed(*packed) for file, packed in row.pop("files").items()}
    parts = tuple(Packed(*part) for part in row.pop("parts", ()))
    return Published(name, files=files, parts=parts, packages=tuple(row.pop("packages")), **row)


@functools.cache
def _ids() -> Mapping[str, Published]:
    rows = published()
    return {**rows, **{row.also: row for row in rows.values() if row.also}}


def find_published(name: str) -> Published | None:
    """Return the row of a name or of a hub's id."""
    return _ids().get(name)


def known_names() -> list[str]:
    """Return the names and the hub's ids of the table."""
    return list(_ids())
