"""The FM-index: n-grams of token sequences counted, continued and found; documents by n-grams."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.tokens import Ngram, TokenSequences, WeightedNgrams
from sluice.indexing.hits import Hits, LiveRows, Mask, Rows, best_first
from sluice.indexing.index import Index
from sluice.indexing.own.fm import segment_list
from sluice.indexing.own.fm.segment import Keep, Occurrences
from sluice.indexing.own.fm.segment_list import (
    MOST_TOKENS,
    Continuations,
    Ranges,
    Remembered,
    Segments,
)
from sluice.indexing.own.fm.trie import Part, by_first_token, document_parts, ranked_keys
from sluice.indexing.storage.rows import DenseSpool, fact

SEGMENT_TOKENS: Final = 1 << 24  # sorting them takes about 400 MB
WIDE: Final = 4_096  # occurrences above which what follows an n-gram is remembered


@dataclass(frozen=True, slots=True)
class Prefix:
    """An n-gram that occurs ``count`` times, as a place in the index as it was when asked."""

    length: int
    count: int
    ranges: Ranges
    segments: Segments


class FmIndex(Index):
    """Documents as sequences of token ids, found by n-grams; queries are ``WeightedNgrams``.

    Documents are added as ``TokenSequences``. ``count``, ``continuations`` and ``locate`` answer
    for live documents, exactly, and no n-gram goes from one document into the next. ``prefix`` and
    ``extended`` do so token by token, for a decoder.

    ``search`` scores as SEAL does (Bevilacqua et al. 2022, section 3.3): the n-grams of at most
    ``most_hits`` occurrences vote with their squared weights, the best ``candidates`` documents are
    read, and each n-gram adds its squared weight where it overlaps no heavier one, lowered by up to
    ``repeated`` for tokens that others had. With both numbers as large as the corpus the result is
    that of scoring every document. Documents without an n-gram that votes are never hits.

    ``most_hits``: n-grams of more occurrences find no documents, they only score them.
    ``repeated``: what a token that another n-gram had is worth less, from 0 to 1.
    ``segment_tokens``: so many are sorted at a time, which bounds the memory of a build.

    A token takes 12 bytes on disk. Sorting takes about 24 bytes for each; a document of more than
    ``segment_tokens`` is a segment of its own.
    """

    type_name = "fm"

    def __init__(
        self,
        *,
        most_hits: int = 1_500,
        candidates: Annotated[
            int, "Documents that are read and scored whole, 1500, or as many as asked for."
        ] = 1_500,
        repeated: float = 0.8,
        segment_tokens: int = SEGMENT_TOKENS,
    ) -> None:
        super().__init__()
        self.most_hits = whole_number(most_hits, "most_hits", 1)
        self.candidates = whole_number(candidates, "candidates", 1)
        self.segment_tokens = whole_number(segment_tokens, "segment_tokens", 1)
        if self.segment_tokens > MOST_TOKENS:
            raise ConfigError(
                f"segment_tokens: {segment_tokens:,}, expected at most {MOST_TOKENS:,}"
            )
        if isinstance(repeated, bool) or not 0 <= repeated <= 1:
            raise ConfigError(f"repeated: {repeated!r}, expected a number from 0 to 1")
        self.repeated = float(repeated)
        # Replaced together, so that a reader without the lock sees both as they were at one time:
        # the segments, and what was added and is not yet in one.
        self._parts: tuple[Segments, tuple[TokenSequences, ...]] = (), ()
        self._waiting = 0  # tokens and marks of what is in none
        self._folder: Path | None = None  # of a spool
        self._changing = OwnLock()
        self._wide = Remembered()
        self._frozen = False  # a reader: no change reaches it
        self._present: Self | None = None  # what readers share until the next change

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which remembers nothing."""
        return {**self.__dict__, "_wide": Remembered(), "_present": None}

    def settings(self) -> dict[str, Any]:
        """Return the arguments that make an index like this one."""
        names = ("most_hits", "candidates", "repeated", "segment_tokens")
        return {name: getattr(self, name) for name in names}

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(**self.settings())

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(placed.segment.size_bytes for placed in self._flushed())

    @property
    def tokens(self) -> int:
        """The number of tokens of live documents."""
        return segment_list.tokens(self._flushed())

    def spool(self, folder: Path) -> None:
        """Keep the arrays of segments in files of ``folder`` until saved."""
        self._folder = folder

    # What may be asked of n-grams.

    def prefix(self, ngram: Ngram = ()) -> Prefix:
        """Return the place of an n-gram, to be ``extended``; the empty one is everywhere."""
        segments = self._flushed()
        place = Prefix(0, segment_list.tokens(segments), segment_list.every(segments), segments)
        for token in _ids(ngram):
            place = self.extended(place, token)
        return place

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        """Return the place of an n-gram with one token more; its count is 0 if it never occurs."""
        ranges = segment_list.narrowed(prefix.segments, prefix.ranges, token)
        found = segment_list.total(prefix.segments, ranges)
        return Prefix(prefix.length + 1, found, ranges, prefix.segments)

    def count(self, ngram: Ngram) -> int:
        """Return how often an n-gram occurs; the empty one as often as there are tokens."""
        return self.prefix(ngram).count

    def continuations(self, prefix: Ngram | Prefix = ()) -> Continuations:
        """Return the tokens that follow an n-gram in some document, with their counts.

        After the empty one every token follows. What follows an n-gram of many occurrences is read
        once and then remembered.
        """
        place = prefix if isinstance(prefix, Prefix) else self.prefix(prefix)
        wide = place.count > WIDE
        known = self._wide.find(place.segments, place.ranges) if wide else None
        if known is not None:
            return known
        found = Continuations(*segment_list.followed(place.segments, place.ranges))
        if wide:
            self._remember(place, found)
        return found

    def _remember(self, place: Prefix, found: Continuations) -> None:
        for array in found:
            array.setflags(write=False)
        with self._changing:
            if place.segments is self._segments:
                self._wide.keep(place.segments, place.ranges, found)

    def locate(self, ngram: Ngram) -> Occurrences:
        """Return the rows and positions at which an n-gram begins, ascending.

        ``DataError`` for the empty one, which begins everywhere.
        """
        reader = self._reader()
        place = reader.prefix(ngram)
        if not place.length:
            raise DataError("locate: an empty n-gram begins everywhere; give at least one token")
        return reader._located(place)

    def _located(self, place: Prefix) -> Occurrences:
        found = segment_list.occurrences(place.segments, place.ranges, place.length)
        allowed = self._live.allowed()
        if allowed is None:
            return found
        live = allowed[found.rows]
        return Occurrences(found.rows[live], found.positions[live])

    def explain(self, query: WeightedNgrams, row: int) -> list[Part]:
        """Return what each n-gram of one query adds to the score of ``row``, as it was taken."""
        pairs = self._checked(query, "queries")
        if len(pairs) != 1:
            raise DataError(f"explain: got {len(pairs)} queries, expected one")
        if not 0 <= row < self.rows:
            raise DataError(f"explain: no row {row}; this index has {self.rows:,} rows")
        keys = ranked_keys(pairs.query(0))
        text = self.documents([row]).ids
        return document_parts(text, keys, by_first_token(keys), self.repeated)

    # What an index is.

    @property
    def _segments(self) -> Segments:
        return self._parts[0]

    def _reader(self) -> Self:
        """Return this index as it is now, which no change reaches; added documents are in it."""
        if self._frozen:
            return self
        reader = self._present
        if reader is None:
            with self._changing:
                self._flushed()
                reader = object.__new__(type(self))
                reader.__dict__.update(self.__dict__)
                reader._live = copy.copy(self._live)
                reader._frozen, reader._present = True, None
                self._present = reader
        return reader

    def _flushed(self) -> Segments:
        """Return the segments, after making one of what was added."""
        segments, pending = self._parts
        if not pending:
            return segments
        with self._changing:  # whose holder may be adding still
            segments, pending = self._parts
            if pending:
                segments = self._joined(segments, pending, self.rows)
                self._parts, self._waiting = (segments, ()), 0
            return segments

    def _joined(self, segments: Segments, pending: Sequence[TokenSequences], end: int) -> Segments:
        """Return segments with the documents that wait, whose last is the row before ``end``.

        The caller holds the lock.
        """
        texts = TokenSequences.joined(pending)
        return segment_list.extended(
            segments, texts, end - len(texts), self.segment_tokens, self._kept()
        )

    def _kept(self) -> Keep:
        if self._folder is None:
            return lambda array: array
        spool = DenseSpool(self._folder, np.int32)
        return spool.append

    def _changed(self) -> None:
        self._present = None

    def _checked(self, vectors: Any, what: str) -> Any:
        expected = WeightedNgrams if what == "queries" else TokenSequences
        if not isinstance(vectors, expected):
            raise DataError(
                f"{what}: {type(vectors).__name__}, expected {expected.__name__}; an FM-index "
                "holds token ids, not vectors: encode with an encoder of type seal"
            )
        return vectors

    def _append(self, documents: TokenSequences) -> None:
        longest = int(documents.lengths.max())
        if longest >= MOST_TOKENS:
            raise DataError(
                f"documents: one has {longest:,} tokens, expected below {MOST_TOKENS:,}; split it"
            )
        segments, waiting = self._segments, self._waiting
        pending, start = list(self._parts[1]), 0
        sizes = documents.bounds + np.arange(len(documents) + 1)
        while start < len(documents):
            room = self.segment_tokens - waiting
            stop = int(np.searchsorted(sizes, sizes[start] + room, "right")) - 1
            if not pending:
                stop = max(stop, start + 1)
            if stop > start:
                part = documents[start:stop]
                pending.append(TokenSequences(part.ids.copy(), part.bounds))
                waiting += int(sizes[stop] - sizes[start])
                start = stop
            else:
                segments = self._joined(segments, pending, self.rows + start)
                pending, waiting = [], 0
        # Something waits, so a reader waits for the lock, and then has all rows or, before, none.
        self._parts, self._waiting = (segments, tuple(pending)), waiting

    def delete(self, rows: Any) -> None:
        """Put tombstones on ``rows``; no count, continuation or search has them any more."""
        with self._changing:
            after = LiveRows(self._live.total, self._live.deleted)
            after.delete(rows)
            dying = np.setdiff1d(after.deleted, self._live.deleted)
            if not len(dying):
                return
            try:
                segments = self._flushed()
                texts = segment_list.texts_of(segments, dying)
                segments = segment_list.extended(
                    segments, texts, -1, self.segment_tokens, self._kept()
                )
            except OSError as error:  # of the spool
                raise DataError(
                    f"delete: {self._folder}: {error.strerror or error}; nothing was deleted: free "
                    "space there and try again"
                ) from error
            self._live = after
            self._parts = segments, ()
            self._changed()

    def _keep_only(self, allowed: Mask) -> None:
        kept: Segments = ()
        for placed in self._flushed():
            if placed.first >= 0:
                rows = np.flatnonzero(allowed[placed.first : placed.first + placed.segment.texts])
                if len(rows) == placed.segment.texts:  # as it is, under other rows
                    moved = int(np.count_nonzero(allowed[: placed.first]))
                    kept = (*kept, placed._replace(first=moved))
                elif len(rows):
                    first = int(np.count_nonzero(allowed[: placed.first]))
                    texts = placed.segment.read(rows)
                    kept = segment_list.extended(
                        kept, texts, first, self.segment_tokens, self._kept()
                    )
        self._parts = kept, ()

    def _stored_rows(self) -> int:
        return sum(placed.segment.texts for placed in self._segments if placed.first >= 0)

    def _documents(self, rows: Rows) -> TokenSequences:
        return segment_list.texts_of(self._flushed(), rows)

    def _search(
        self, queries: WeightedNgrams, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        hits = Hits.missing(len(queries), k)
        live = self._live.allowed() if allowed is None else allowed
        for number in range(len(queries)):
            rows, scores = self._found(queries.query(number), k, live)
            hits.rows[number, : len(rows)], hits.scores[number, : len(rows)] = rows, scores
        return hits

    def _found(
        self, pairs: Sequence[tuple[Ngram, float]], k: int, allowed: Mask | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the best rows for one query's n-grams, and their scores."""
        keys = ranked_keys(pairs)
        votes = np.zeros(self.rows)
        for ngram, weight in keys:
            place = self.prefix(ngram)
            if 0 < place.count <= self.most_hits:
                votes[np.unique(self._located(place).rows)] += weight**2
        if allowed is not None:
            votes[~allowed] = 0
        some = np.flatnonzero(votes)
        order = np.lexsort((some, -votes[some]))[: max(k, self.candidates)]
        candidates = some[order]
        grouped = by_first_token(keys)
        parts = (
            document_parts(text, keys, grouped, self.repeated)
            for text in self._documents(candidates)
        )
        scores = np.array([sum(part.contribution for part in each) for each in parts])
        return best_first(candidates, scores.astype(np.float32), k)

    def _write(self, folder: Path) -> dict[str, Any]:
        described = segment_list.write_segments(self._flushed(), folder)
        return {**self.settings(), "segments": described}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        numbers = {
            name: fact(facts, name, int, folder)
            for name in ("most_hits", "candidates", "segment_tokens")
        }
        opened = cls(**numbers, repeated=float(fact(facts, "repeated", float, folder)))
        segments = segment_list.open_segments(folder, fact(facts, "segments", list, folder))
        opened._parts = segments, ()
        return opened


def _ids(ngram: Ngram) -> list[int]:
    ids = np.asarray(ngram)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise DataError(f"n-gram: {ngram!r}, expected token ids, whole numbers in a list")
    tokens: list[int] = ids.tolist()
    return tokens
