"""The folder of cached vectors: where it is, what it holds, and how it stays within its bound."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.files import read_json
from sluice.encoders.foundation.generations import MANIFEST
from sluice.encoders.vectors.cache import FORMAT, unused_key

log = logging.getLogger("sluice")

PLACE = "SLUICE_CACHE"
BOUND = "SLUICE_CACHE_BYTES"
DEFAULT_BYTES = 20_000_000_000


class CachedKey(NamedTuple):
    """One encoder's vectors in one form: folder, size, last use, and what the manifest says."""

    path: Path
    bytes: int
    used: float  # seconds since 1970
    encoder: str
    fingerprint: str
    store: str


def cache_root() -> Path:
    """Return where vectors are cached: ``$SLUICE_CACHE/vectors``, else in the user's cache."""
    place = os.environ.get(PLACE)
    root = Path(place).expanduser() if place else Path("~/.cache/sluice").expanduser()
    return root / "vectors"


def cache_bound() -> int:
    """Return how many bytes the cache may have, from ``$SLUICE_CACHE_BYTES``."""
    text = os.environ.get(BOUND, "")
    if not text:
        return DEFAULT_BYTES
    try:
        bound = int(float(text))
    except (ValueError, OverflowError):
        bound = -1
    if bound < 0:
        raise ConfigError(f"{BOUND}: {text!r}; expected a number of bytes such as 20e9")
    return bound


def cached_keys(root: Path) -> list[CachedKey]:
    """Return what the cache holds, least recently used first."""
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        try:
            manifest = read_json(folder / MANIFEST)
            size = sum(file.stat().st_size for file in folder.iterdir())
            used = folder.stat().st_mtime
        except (IndexFormatError, OSError):  # not ours, or going away just now
            continue
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            names = (str(manifest.get(name, "")) for name in ("encoder", "fingerprint", "store"))
            found.append(CachedKey(folder, size, used, *names))
    return sorted(found, key=lambda each: (each.used, each.path.name))


def keep_within(root: Path, bound: int) -> list[CachedKey]:
    """Remove least recently used keys until the rest is within ``bound`` bytes; return those gone.

    A key in use stays, whatever its size.
    """
    keys = cached_keys(root)
    total, gone = sum(each.bytes for each in keys), []
    for each in keys:
        if total <= bound:
            break
        if removed(each):
            total -= each.bytes
            gone.append(each)
            log.info("%s: %s bytes of cached vectors removed", each.path, f"{each.bytes:,}")
    return gone


def removed(key: CachedKey) -> bool:
    """Remove a key's folder unless a process uses it; say whether it went."""
    with unused_key(key.path.parent, key.path.name) as unused:
        if unused:
            shutil.rmtree(key.path, ignore_errors=True)
        return unused
