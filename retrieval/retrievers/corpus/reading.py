"""How much of the documents an encoder reads, and what to do about the rest."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of

log = logging.getLogger("sluice")

READING = "reading"  # in a retriever's origin
LENGTH, OVERLAP = 200, 50  # of the passages that are advised


class Reading(NamedTuple):
    """Of ``documents`` whose tokens were counted, how many are ``cut`` at ``limit`` tokens.

    ``unread`` of all their ``tokens`` are not read.
    """

    documents: int
    cut: int
    tokens: int
    unread: int
    limit: int

    @classmethod
    def of(cls, encoder: Any, tokens: NDArray[Any] | None) -> Self | None:
        """Return the summary for documents of so many ``tokens``, -1 where they are not known.

        None where nothing is known, or the encoder has no limit.
        """
        lengths = hooks_of(encoder).lengths
        if tokens is None or "document" not in lengths:
            return None
        known, limit = tokens[tokens >= 0].astype(np.int64), int(lengths["document"])
        if not len(known):
            return None
        beyond = np.maximum(known - limit, 0)
        return cls(len(known), int((beyond > 0).sum()), int(known.sum()), int(beyond.sum()), limit)

    @classmethod
    def noted(cls, origin: dict[str, Any]) -> Self | None:
        """Return the summary in a retriever's origin, None without a valid one."""
        facts = origin.get(READING)
        if not isinstance(facts, dict) or facts.keys() != set(cls._fields):
            return None
        return cls(**facts) if all(isinstance(value, int) for value in facts.values()) else None

    @property
    def unread_share(self) -> float:
        """The share of the text that is not read, by tokens."""
        return self.unread / max(1, self.tokens)

    @property
    def cure(self) -> str:
        """The passages that read all, in YAML."""
        length = max(1, min(LENGTH, 4 * self.limit // 5))
        return f"passages: {{length: {length}, overlap: {min(OVERLAP, length // 4)}}}"

    def __str__(self) -> str:
        if not self.cut:
            return f"all {self.documents:,} documents are read to the end"
        verb = "is" if self.cut == 1 else "are"
        return (
            f"{self.cut:,} of {self.documents:,} documents {verb} longer than {self.limit:,} "
            f"tokens; {percent(self.unread_share)} of the text is not read"
        )


def warn_of_cuts(name: str, reading: Reading | None, *, cure: bool = True) -> None:
    """Log one warning if documents are cut."""
    if reading is not None and reading.cut:
        advice = f" ({reading.cure} reads everything)" if cure else ""
        log.warning("%s: %s%s", name, reading, advice)


def percent(share: float) -> str:
    """Return a share in per cent; what is above none is never shown as 0."""
    return f"{100 * share:.0f} %" if share >= 0.005 or not share else "less than 1 %"
