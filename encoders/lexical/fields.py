"""The fields that BM25 reads from a document, their weights, and their statistics.

A field is scored by its own statistics, and a document's score is the weighted sum over its fields
(Lucene's query over several fields). As vectors: a column is a term in a field, written
``title:gold``, and the weight is on the query's side, so one inverted index is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.lexical.term_counts import TAGS, TermCounts

SEPARATOR = ":"
Lengths = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # [documents, fields], terms of each


class Fields:
    """Names and weights, in order; without a mapping, the one unnamed field of plain texts."""

    def __init__(self, weights: Mapping[str, float] | None) -> None:
        self.weights = {"": 1.0} if weights is None else _checked(weights)
        self.named = weights is not None
        self.prefixes = [f"{name}{SEPARATOR}" if self.named else "" for name in self.weights]

    def of(self, vocabulary: Collection[str], known: Any) -> np.ndarray[tuple[int], Any]:
        """Return the number of each column's field; ``known`` has those of the first columns."""
        if not self.named:
            return np.zeros(len(vocabulary), np.int8)
        number = {name: place for place, name in enumerate(self.weights)}
        new = []
        for term in islice(vocabulary, len(known), None):
            if (field := number.get(term.partition(SEPARATOR)[0])) is None:
                raise IndexFormatError(
                    f"bm25.fields: the term {term!r} belongs to none of {', '.join(number)}; "
                    "rebuild"
                )
            new.append(field)
        return np.concatenate([known, np.array(new, np.int8)])

    def holders(self, lengths: Lengths) -> np.ndarray[tuple[int], Any]:
        """Return N of each field: the number of documents with the field."""
        if not self.named:  # empty ones too
            return np.array([len(lengths)])
        return np.asarray(np.count_nonzero(lengths, axis=0))

    def repeated(self, texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Yield each text once for every field."""
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        times = len(self.weights)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"texts[{place}]: {type(text).__name__}; expected str")
            yield (text,) * times

    def parted(self, documents: Iterable[Any], *, complete: bool = False) -> Iterator[Any]:
        """Yield the tuple of each document's fields, empty for those it lacks.

        Raises ``DataError`` unless a document is a mapping of names to texts; with ``complete``
        also ``ConfigError``, after the last document, if no document has some field.
        """
        if not self.named:
            yield from self.repeated(documents)
            return
        absent, place, document = set(self.weights), -1, dict[str, str]()
        for place, document in enumerate(documents):
            if not isinstance(document, Mapping):
                raise DataError(
                    f"documents[{place}]: {type(document).__name__}; this BM25 reads fields: "
                    f"expected a mapping with {', '.join(self.weights)}"
                )
            texts = tuple([document.get(name, "") for name in self.weights])
            for name, text in zip(self.weights, texts, strict=True):
                if not isinstance(text, str):
                    raise DataError(
                        f"documents[{place}][{name!r}]: {type(text).__name__}; expected str"
                    )
            if absent:
                absent.difference_update(document)
            yield texts
        if complete and absent and place >= 0:
            name = min(absent)
            raise ConfigError(
                f"bm25.fields.{name}: none of {place + 1:,} documents has it; they have "
                f"{', '.join(map(str, document))}{suggest(name, map(str, document))}"
            )


def _checked(weights: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(weights, Mapping) or not 1 <= len(weights) <= len(TAGS):
        raise ConfigError(
            f"bm25.fields: {weights!r}; expected a mapping of 1 to {len(TAGS)} names to weights, "
            "such as {title: 1.0, text: 1.0}, or null to score title and text as one"
        )
    for name, weight in weights.items():
        if not isinstance(name, str) or not name or SEPARATOR in name or not name.isprintable():
            raise ConfigError(
                f"bm25.fields: the name {name!r}; expected one line of text without '{SEPARATOR}'"
            )
        if not is_number(weight) or weight <= 0:
            raise ConfigError(
                f"bm25.fields.{name}: {weight!r}; expected a number above 0: leave out a field "
                "that should not count"
            )
    return {name: float(weight) for name, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Totals:
    """BM25's counts over a collection."""

    frequencies: np.ndarray[tuple[int], np.dtype[np.int64]]  # [vocabulary] documents with the term
    documents: int
    holders: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] N of each field
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] terms of all documents together

    def plus(self, counts: TermCounts, width: int, fields: Fields, sign: int = 1) -> Totals:
        """Return the totals with ``counts`` added or subtracted, for ``width`` terms."""
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
        """Return avgdl of each field, 0 if no document has it."""
        return self.lengths / np.maximum(self.holders, 1)
