"""What BM25 counts over a collection: document frequencies, N and lengths, per field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.encoders.lexical.fields import Fields
from sluice.encoders.lexical.term_counts import TermCounts


@dataclass(frozen=True, slots=True)
class Totals:
    """What BM25 counts over a collection."""

    frequencies: np.ndarray[tuple[int], np.dtype[np.int64]]  # [vocabulary] documents with the term
    documents: int
    holders: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] N of each field
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] terms of all documents together

    def plus(self, counts: TermCounts, width: int, fields: Fields, sign: int = 1) -> Totals:
        """Return the totals with ``counts`` added, or taken away; at ``width`` terms."""
        frequencies = sign * np.bincount(counts.terms, minlength=width)
        frequencies[: len(self.frequencies)] += self.frequencies
        return Totals(
            frequencies,
            self.documents + sign * len(counts.lengths),
            self.holders + sign * fields.holders(counts.lengths),
            self.lengths + sign * counts.lengths.sum(axis=0),
        )

    @classmethod
    def none(cls, fields: Fields) -> Totals:
        """Return the totals of no documents."""
        none = np.zeros(len(fields.weights), np.int64)
        return cls(np.zeros(0, np.int64), 0, none, none)

    def averages(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return avgdl of each field, 0 where no document has it."""
        return self.lengths / np.maximum(self.holders, 1)
