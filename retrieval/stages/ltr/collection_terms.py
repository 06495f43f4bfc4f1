"""The terms of every document of a corpus, in their order, and what is counted over them.

It is what features of (query, candidate) read: a forward index of titles and bodies with document
frequencies, collection frequencies and lengths by field.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.generations import new_generation, open_generation
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.progress import progress

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore

log = logging.getLogger("sluice")

FORMAT, VERSION = "sluice.collection_terms", 1
FIELDS = ("title", "body", "all")  # ``all`` is the title followed by the body
CHUNK = 1 << 22  # terms sorted at a time

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CollectionTerms:
    """Terms by document row, and statistics by term column and field.

    ``bounds`` ``[rows + 1, 3]`` are where a row's title begins in ``terms``, where it ends (and the
    body begins), and where the body ends; the last row, which is also row -1, is an empty document
    that stands for any the store does not hold. ``frequencies`` ``[3, columns + 1]`` counts the
    documents with a term in the title, the body, and either; ``occurrences`` ``[3, columns + 1]``
    the times it stands there; the last column, all zeros, is of terms that no document has.
    ``norms`` ``[rows + 1, 3]`` are the lengths of the tf-idf vectors of ``cosine`` features.
    """

    language: str
    fingerprint: str  # of the documents
    vocabulary: dict[str, int]
    terms: NDArray[np.int32]
    bounds: Integers
    frequencies: Integers
    occurrences: Integers
    norms: NDArray[np.float32]
    documents: int

    @cached_property
    def lengths(self) -> Integers:
        """Number of terms of each row's title, body, and both ``[rows + 1, 3]``."""
        begin, middle, end = self.bounds.T
        return np.stack([middle - begin, end - middle, end - begin], axis=1)

    @cached_property
    def holders(self) -> Floats:
        """N of each field: documents with any term in it; of ``all`` empty documents too."""
        counts = np.count_nonzero(self.lengths[:, :2], axis=0)
        return np.array([*counts, self.documents], np.float64)

    @cached_property
    def totals(self) -> Floats:
        """Number of terms of each field over the collection."""
        found: Floats = self.lengths.sum(axis=0).astype(np.float64)
        return found

    @cached_property
    def averages(self) -> Floats:
        """Average length of each field over its holders, 1 where it has none."""
        found: Floats = self.totals / np.maximum(self.holders, 1)
        return np.where(found > 0, found, 1.0)

    def save(self, path: Path) -> None:
        """Write the folder ``path`` in one step."""
        facts = {
            "language": self.language,
            "fingerprint": self.fingerprint,
            "documents": self.documents,
        }
        with new_generation(path, FORMAT, VERSION, facts) as folder:
            text = "".join(f"{term}\n" for term in self.vocabulary)
            (folder / "vocabulary.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
            for name in _ARRAYS:
                np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, path: Path) -> CollectionTerms:
        """Open a folder; the arrays are mapped. ``IndexFormatError`` for one that is damaged."""
        facts, folder = open_generation(path, FORMAT, VERSION)
        arrays = {
            name: open_array(folder / f"{name}.npy", dtype, shape)
            for name, (dtype, shape) in _ARRAYS.items()
        }
        try:
            text = (folder / "vocabulary.txt").read_bytes().decode("utf-8", "surrogatepass")
            vocabulary = {term: column for column, term in enumerate(text.split("\n")[:-1])}
            found = cls(
                language=str(facts["language"]),
                fingerprint=str(facts["fingerprint"]),
                vocabulary=vocabulary,
                documents=int(facts["documents"]),
                **arrays,
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise IndexFormatError(
                f"{path}: not as Sluice writes it ({error}); train it again"
            ) from None
        columns, rows = len(vocabulary) + 1, len(found.bounds)
        fits = (
            found.frequencies.shape == found.occurrences.shape == (3, columns)
            and found.norms.shape == (rows, 3)
            and found.documents >= 0
            and min(found.frequencies.min(), found.occurrences.min(), found.bounds.min()) >= 0
            and (np.diff(found.bounds, axis=1) >= 0).all()
            and found.bounds[:, 2].max() <= len(found.terms)
        )
        if not fits:
            raise IndexFormatError(f"{path}: its arrays do not belong together; train it again")
        return found


_ARRAYS: dict[str, tuple[DTypeLike, tuple[int | None, ...]]] = {
    "terms": (np.int32, (None,)),
    "bounds": (np.int64, (None, 3)),
    "frequencies": (np.int64, (3, None)),
    "occurrences": (np.int64, (3, None)),
    "norms": (np.float32, (None, 3)),
}


def collection_terms(store: DocumentStore, language: str = "en") -> CollectionTerms:
    """Read every document of a store once and count its terms.

    Memory: 4 bytes a term, and 44 bytes a document.
    """
    from sluice.encoders.lexical.analyzer import analyzer

    chosen = analyzer(language)
    vocabulary = _Growing()
    rows = np.setdiff1d(np.arange(store.rows_total), store.deleted)
    parts: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    lengths: list[Integers] = [np.empty(0, np.int64)]
    for codes in _coded(store, chosen, vocabulary):
        lengths.append(np.diff(np.flatnonzero(codes < 0), prepend=-1) - 1)
        parts.append(codes[codes >= 0])
    terms = np.concatenate(parts)
    cuts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    bounds = np.zeros((store.rows_total + 1, 3), np.int64)
    bounds[rows] = np.stack([cuts[:-1:2], cuts[1::2], cuts[2::2]], axis=1)
    width = len(vocabulary) + 1
    frequencies = np.zeros((3, width), np.int64)
    occurrences = np.zeros((3, width), np.int64)
    for _, field, term, count in _counts(terms, bounds, rows):
        frequencies[field] += np.bincount(term, minlength=width)
        occurrences[field] += np.bincount(term, count, minlength=width).astype(np.int64)
    found = CollectionTerms(
        language=chosen.language,
        fingerprint=store.fingerprint,
        vocabulary=dict(vocabulary),
        terms=terms,
        bounds=bounds,
        frequencies=frequencies,
        occurrences=occurrences,
        norms=np.zeros((len(bounds), 3), np.float32),
        documents=len(rows),
    )
    for row, field, term, count in _counts(terms, bounds, rows):
        squares = tf_idf(count, frequencies[field][term], found.holders[field]) ** 2
        sums = np.bincount(row, squares, minlength=len(bounds))
        found.norms[:, field] += np.sqrt(sums).astype(np.float32)  # a row is in one chunk only
    return found


def tf_idf(count: Any, frequency: Any, documents: float) -> Floats:
    """Return ``(1 + ln tf) ln(1 + N / df)``, 0 where either count is 0."""
    there = (np.asarray(count) > 0) & (np.asarray(frequency) > 0)
    damped = 1.0 + np.log(np.where(there, count, 1))
    return np.where(there, damped * np.log1p(documents / np.where(there, frequency, 1)), 0.0)


class _Growing(dict[str, int]):
    def __missing__(self, term: str) -> int:
        self[term] = column = len(self)
        return column


def _coded(
    store: DocumentStore, chosen: Any, vocabulary: dict[str, int]
) -> Iterator[NDArray[np.int32]]:
    from sluice.encoders.lexical.term_counts import coded

    show = len(store) > 50_000
    with progress("terms of the corpus", len(store), "documents", show=show) as advance:

        def texts() -> Iterator[str]:
            for document in store:
                yield document.title
                yield document.text
                advance()

        yield from coded(texts(), chosen, vocabulary.__getitem__)


def _counts(
    terms: NDArray[np.int32], bounds: Integers, rows: Integers
) -> Iterator[tuple[Integers, int, Integers, Integers]]:
    """Yield (rows, field, columns, counts) of each field's distinct terms, many rows at a time."""
    if not len(rows):
        return
    # Deleted rows are empty and stand between the others: ends of live rows ascend.
    ends = bounds[rows, 2]
    stops = np.unique(np.searchsorted(ends, np.arange(CHUNK, ends[-1] + CHUNK, CHUNK), "left") + 1)
    first = 0
    for stop in np.minimum(stops, len(rows)).tolist():
        some = rows[first:stop]
        first = stop
        if not len(some):
            continue
        low, high = bounds[some[0], 0], bounds[some[-1], 2]
        row = np.repeat(some, bounds[some, 2] - bounds[some, 0])
        in_title = np.arange(low, high) < bounds[row, 1]
        columns = terms[low:high].astype(np.int64)
        for field, part in enumerate((in_title, ~in_title, slice(None))):
            keys, count = np.unique((row[part] << 32) | columns[part], return_counts=True)
            yield keys >> 32, field, keys & 0xFFFFFFFF, count
