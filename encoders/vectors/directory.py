"""Finds the place of each text's vector by the text's hash: sorted arrays, 24 bytes a text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.bytes_]  # S16
Places = NDArray[np.int64]  # -1: nowhere

ROW_BITS = 32  # a place is shard << 32 | row


def text_hash(text: str | Mapping[str, str]) -> bytes:
    """Return the 16 bytes that stand for what an encoder reads: a text, or its fields by name."""
    if not isinstance(text, str):
        text = "\x00" + json.dumps(text, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def text_hashes(texts: Iterable[str | Mapping[str, str]]) -> Hashes:
    """Return the hashes of texts, ``S16 [n]``."""
    return np.frombuffer(b"".join(map(text_hash, texts)), "S16")


class HashDirectory:
    """Maps hashes to places, for millions of texts; a hash added twice has either place."""

    def __init__(self) -> None:
        self._levels: list[tuple[Hashes, Places]] = []

    def __len__(self) -> int:
        return sum(len(places) for _, places in self._levels)

    def add(self, hashes: Hashes, places: Places) -> None:
        """Add texts; levels join like the digits of a binary counter, so that few are searched.

        Each text is sorted O(log n) times.
        """
        joined, total = [(hashes, places)], len(places)
        while self._levels and len(self._levels[-1][1]) <= total:
            joined.append(self._levels.pop())
            total += len(joined[-1][1])
        keys, values = (np.concatenate(part) for part in zip(*joined, strict=True))
        order = np.argsort(keys, kind="stable")
        self._levels.append((keys[order], values[order]))

    def find(self, hashes: Hashes) -> Places:
        """Return the place of each hash, -1 where there is none."""
        found = np.full(len(hashes), -1, np.int64)
        for keys, places in self._levels:
            if len(keys):
                at = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
                here = keys[at] == hashes
                found[here] = places[at[here]]
        return found

    def forget(self, shard: int) -> None:
        """Remove every text of a shard."""
        kept = [(keys, places, places >> ROW_BITS != shard) for keys, places in self._levels]
        self._levels = [(keys[mask], places[mask]) for keys, places, mask in kept]
