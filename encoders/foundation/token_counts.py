"""Collects how many tokens texts have, and how many of them an encoder reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenCounts(NamedTuple):
    """The tokens of texts, int32 ``[texts]``, special ones and prompts included.

    ``full`` are those that a text has, ``read`` those that the encoder's limit leaves. Of a pair of
    texts that is cut, ``full`` is one more than ``read``.
    """

    full: NDArray[np.int32]
    read: NDArray[np.int32]

    @classmethod
    def joined(cls, parts: Sequence[TokenCounts], texts: int) -> TokenCounts | None:
        """Return the counts of parts as one, None unless they are those of so many texts."""
        if sum(len(part.full) for part in parts) != texts:
            return None
        empty = np.zeros(0, np.int32)
        return cls(
            np.concatenate([empty, *(part.full for part in parts)]),
            np.concatenate([empty, *(part.read for part in parts)]),
        )


_COUNTS: ContextVar[list[TokenCounts] | None] = ContextVar("sluice_token_counts", default=None)


@contextmanager
def counting_tokens() -> Iterator[list[TokenCounts]]:
    """Collect the counts of the texts that are encoded inside the block, in their order.

    Encoders that report none leave the list empty.
    """
    counts: list[TokenCounts] = []
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)


def is_counting() -> bool:
    """Return whether anybody wants the counts: finding them costs a little."""
    return _COUNTS.get() is not None


def report_tokens(counts: TokenCounts | None) -> None:
    """Hand the counts of the next texts to the block that collects them, if there is one."""
    block = _COUNTS.get()
    if block is not None and counts is not None:
        block.append(counts)
