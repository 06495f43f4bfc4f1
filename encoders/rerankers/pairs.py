"""Checks the pairs that scorers are called with."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.encoders.foundation.errors import ModelError


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Raise ``ModelError`` for anything but pairs of strings."""
    for number, pair in enumerate(pairs):
        parts = pair if isinstance(pair, list | tuple) else ()
        if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise ModelError(f"pair {number} is {pair!r:.80}, expected (query, document): strings")
