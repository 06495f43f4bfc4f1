"""Bearer keys: random texts of which a file keeps the SHA-256 alone, each with its scopes."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_json, replaced_file, writable
from sluice.encoders.foundation.disk.generations import swap_lock
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError, suggest

log = logging.getLogger("sluice.serve")

# Read and ask models; change documents; judge them; metrics.
SCOPES = ("search", "write", "judge", "admin")
PREFIX = "sluice_"
RANDOM_BYTES = 32  # too many to guess, so that a plain hash is enough
ENTRY = {"name", "sha256", "scopes"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the file has it."""

    name: str
    sha256: str
    scopes: frozenset[str]


class Keys:
    """The keys of a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._now()
        self._keys = read_keys(path)

    def find(self, text: str) -> Key | None:
        """Return the key that a client sent, None for one that is not known."""
        if (stamp := self._now()) != self._stamp:
            self._keys, self._stamp = [], stamp  # none is valid while the file cannot be read
            try:
                self._keys = read_keys(self.path)
            except (SluiceError, OSError) as error:
                log.error("no key is valid until this is mended: %s", error)
        given = digest(text)
        found = None
        for key in self._keys:  # all of them: the time says nothing of which
            if hmac.compare_digest(given, key.sha256):
                found = key
        return found

    def _now(self) -> tuple[int, int]:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return stat.st_mtime_ns, stat.st_size


def digest(text: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file; ``DataError`` for anything else."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; sluice key {path} NAME makes one with a key")
    content = read_json(path)
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{path}: not a file of keys; sluice key {path} NAME makes one")
    return [_key(path, place, entry) for place, entry in enumerate(entries)]


def _key(path: Path, place: int, entry: Any) -> Key:
    if not isinstance(entry, dict) or set(entry) != ENTRY:
        raise DataError(f"{path}: keys[{place}]: expected name, sha256 and scopes")
    if not all(isinstance(entry[name], str) for name in ("name", "sha256")):
        raise DataError(f"{path}: keys[{place}]: name and sha256 are texts")
    scopes = _scopes(entry["scopes"], f"{path}: keys[{place}]")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise DataError(f"{path}: keys[{place}]: sha256 is not 64 hexadecimal digits")
    return Key(entry["name"], entry["sha256"], scopes)


def add_key(path: Path, name: str, scopes: Collection[str]) -> str:
    """Make a key, add its hash to a file, and return the key: it is nowhere else.

    A key of the same name is replaced. Others that change the file meanwhile wait. Of a link the
    file that it leads to is changed: services that name that one must not keep a replaced key.
    """
    checked = _scopes(list(scopes), f"key {name}")
    if not name.strip():
        raise ConfigError("name: blank; expected what tells this key from others")
    text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    path = Path(os.path.realpath(path))
    with swap_lock(writable(path)):
        kept = [key for key in read_keys(path) if key.name != name] if path.exists() else []
        keys = [*kept, Key(name, digest(text), checked)]
        listed = [{"name": k.name, "sha256": k.sha256, "scopes": sorted(k.scopes)} for k in keys]
        with replaced_file(path, 0o600) as stream:
            stream.write(json.dumps({"keys": listed}, indent=2).encode() + b"\n")
    return text


def _scopes(scopes: Any, where: str) -> frozenset[str]:
    if not isinstance(scopes, list) or not scopes:
        raise ConfigError(f"{where}: scopes: {scopes!r}; expected some of {', '.join(SCOPES)}")
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(
                f"{where}: scope {scope!r}; expected one of {', '.join(SCOPES)}"
                f"{suggest(str(scope), SCOPES)}"
            )
    return frozenset(scopes)
