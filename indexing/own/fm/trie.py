"""The trie of whole token sequences, and scores by the n-grams that documents contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.tokens import Ngram, TokenSequences, WeightedNgrams
from sluice.indexing.hits import Hits, Mask, Rows, best_first
from sluice.indexing.index import Index
from sluice.indexing.own.fm.segment_list import Continuations
from sluice.indexing.storage.rows import fact, write_array


class Key(NamedTuple):
    """An n-gram of a query: its token ids and its weight, above 0."""

    ngram: tuple[int, ...]
    weight: float


class Part(NamedTuple):
    """What one n-gram adds to a document's score.

    ``term`` are its token ids, ``query_weight`` its weight and ``impact`` the same again, lowered
    for tokens that other n-grams had; ``contribution`` is their product.
    """

    term: tuple[int, ...]
    query_weight: float
    impact: float
    contribution: float


def ranked_keys(pairs: Sequence[tuple[Ngram, float]]) -> list[Key]:
    """Return the n-grams of weight above 0 as documents take them, each once, its best weight.

    Those of two tokens and more come before single tokens; then the heavier, the longer, and the
    one of lower ids.
    """
    best: dict[tuple[int, ...], float] = {}
    for ids, weight in pairs:
        ngram = tuple(int(token) for token in ids)
        if weight > best.get(ngram, 0.0):
            best[ngram] = float(weight)
    keys = [Key(ngram, weight) for ngram, weight in best.items()]
    keys.sort(key=lambda key: (len(key.ngram) == 1, -key.weight, -len(key.ngram), key.ngram))
    return keys


Grouped = Mapping[int, Sequence[int]]  # the places of n-grams by their first token


def by_first_token(keys: Sequence[Key]) -> Grouped:
    """Return the places in ``keys`` of the n-grams that begin with each token."""
    grouped: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        grouped.setdefault(key.ngram[0], []).append(place)
    return grouped


def document_parts(
    document: NDArray[np.int32], keys: Sequence[Key], grouped: Grouped, repeated: float
) -> list[Part]:
    """Return what each n-gram adds to a document's score, in the order of ``ranked_keys``.

    Each is taken at the first place where no taken one stands, or not at all. It adds
    ``weight**2 * (1 - repeated + repeated * new / all)``: of its different tokens, those that no
    taken one had. (SEAL; Bevilacqua et al. 2022, section 3.3, equations 3 and 4.)
    """
    tokens: list[int] = document.tolist()
    places: dict[int, list[int]] = {}
    for place, token in enumerate(tokens):
        places.setdefault(token, []).append(place)
    begun = sorted(at for token in places.keys() & grouped.keys() for at in grouped[token])
    taken = bytearray(len(tokens))
    covered: set[int] = set()
    parts = list[Part]()
    for ngram, weight in map(keys.__getitem__, begun):
        size = len(ngram)
        position = next(
            (
                place
                for place in places[ngram[0]]
                if not any(taken[place : place + size])
                and tuple(tokens[place : place + size]) == ngram
            ),
            None,
        )
        if position is None:
            continue
        own = set(ngram)
        impact = weight * (1 - repeated + repeated * len(own - covered) / len(own))
        parts.append(Part(ngram, weight, impact, weight * impact))
        taken[position : position + size] = b"\1" * size
        covered |= own
    return parts


PAST: Final = -1  # stands where a shorter sequence has no token; before every token


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a trie: the sorted sequences from ``first`` to ``end`` begin alike."""

    depth: int
    first: int
    end: int
    sorted: _Sorted  # as it was when asked

    @property
    def count(self) -> int:
        """The number of documents below."""
        return self.end - self.first

    @property
    def complete(self) -> bool:
        """Whether a document's whole sequence ends here; it begins no other."""
        return self.count == 1 and self.sorted.lengths[self.first] == self.depth


class _Sorted(NamedTuple):
    """The live sequences in the order of their tokens."""

    columns: NDArray[np.int32]  # [longest, n]: the tokens at each depth, ``PAST`` where none
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]


class TrieIndex(Index):
    """Documents by one sequence of token ids each, their identifiers; no two have the same.

    Documents are added as ``TokenSequences``, and no sequence may begin another one: ``DataError``.
    ``prefix``, ``extended`` and ``continuations`` walk the identifiers of live documents for a
    decoder, which writes nothing else. Queries are ``WeightedNgrams``: identifiers, each with the
    negative logarithm of its probability; the score is that logarithm.

    What a token takes: 4 bytes on disk, and 4 for each token of the longest in memory. A step down
    is two binary searches, after the first search, which sorts the identifiers.
    """

    type_name = "trie"

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[TokenSequences] = []  # replaced by changes, which hold the lock
        self._changing = OwnLock()
        self._trie: _Sorted | None = None

    def empty(self) -> Self:
        """Return an index without documents."""
        return type(self)()

    @property
    def size_bytes(self) -> int:
        """Bytes of the identifiers."""
        return sum(part.ids.nbytes + part.bounds.nbytes for part in self._parts)

    # What a decoder asks.

    def prefix(self, ngram: Ngram = ()) -> Node:
        """Return the place of a beginning, to be ``extended``; the empty one begins all."""
        ordered = self._sorted()
        node = Node(0, 0, len(ordered.rows), ordered)
        for token in np.asarray(ngram).tolist():
            node = self.extended(node, token)
        return node

    def extended(self, node: Node, token: int) -> Node:
        """Return the place of a beginning with one token more; its count is 0 if there is none."""
        if node.depth >= len(node.sorted.columns):
            return replace(node, depth=node.depth + 1, end=node.first)
        following = node.sorted.columns[node.depth, node.first : node.end]
        sought = np.array([token, token + 1], np.int32)  # of another type, all would be copied
        first, end = np.searchsorted(following, sought).tolist()
        return Node(node.depth + 1, node.first + first, node.first + end, node.sorted)

    def continuations(self, node: Node) -> Continuations:
        """Return the tokens that follow a place, and how many documents are below each."""
        if node.depth >= len(node.sorted.columns):
            return Continuations(np.zeros(0, np.int32), np.zeros(0, np.int64))
        following = node.sorted.columns[node.depth, node.first : node.end]
        following = following[np.searchsorted(following, np.int32(PAST), "right") :]
        starts = np.flatnonzero(np.diff(following, prepend=PAST))
        return Continuations(following[starts], np.diff(starts, append=len(following)))

    def explain(self, query: WeightedNgrams, row: int) -> list[Part]:
        """Return the identifier of ``row`` with its log-probability; nothing if it is not there."""
        pairs = self._checked(query, "queries").query(0)
        own = self.documents([row]).ids.tolist()
        return [
            Part(tuple(own), 1.0, -weight, -weight)
            for ngram, weight in pairs
            if ngram.tolist() == own
        ]

    # What an index is.

    def _sorted(self) -> _Sorted:
        """Return the trie of live documents, sorted anew after a change."""
        trie = self._trie
        if trie is None:
            trie = self._trie = self._ordered(self._texts(), self._live.allowed())
        return trie

    def _ordered(self, texts: TokenSequences, allowed: Mask | None) -> _Sorted:
        rows = np.arange(len(texts)) if allowed is None else np.flatnonzero(allowed)
        live = texts[rows]
        lengths = live.lengths
        columns = np.full((int(lengths.max(initial=0)), len(rows)), PAST, np.int32)
        places = np.arange(len(live.ids)) - np.repeat(live.bounds[:-1], lengths)
        columns[places, np.repeat(np.arange(len(rows)), lengths)] = live.ids
        order = np.lexsort(columns[::-1]) if len(columns) else np.arange(len(rows))
        return _Sorted(np.ascontiguousarray(columns[:, order]), lengths[order], rows[order])

    def _texts(self) -> TokenSequences:
        parts = self._parts
        if len(parts) < 2:
            return parts[0] if parts else TokenSequences.of([])
        joined = TokenSequences.joined(parts)
        with self._changing:
            if self._parts is parts:  # else it was changed meanwhile
                self._parts = [joined]
        return joined

    def _changed(self) -> None:
        self._trie = None

    def _checked(self, vectors: Any, what: str) -> Any:
        expected = WeightedNgrams if what == "queries" else TokenSequences
        if not isinstance(vectors, expected):
            raise DataError(
                f"{what}: {type(vectors).__name__}, expected {expected.__name__}; a trie holds "
                "identifiers, not vectors: encode with an encoder of type dsi"
            )
        return vectors

    def _append(self, documents: TokenSequences) -> None:
        if not documents.lengths.all():
            raise DataError("documents: one has an identifier without tokens; expected one or more")
        texts = TokenSequences.joined([*self._parts, documents])
        allowed = np.ones(len(texts), bool)
        live = self._live.allowed()
        if live is not None:
            allowed[: len(live)] = live
        self._check_apart(self._ordered(texts, allowed))
        added = TokenSequences(documents.ids.copy(), documents.bounds.copy())
        self._parts = [*self._parts, added]

    def _check_apart(self, ordered: _Sorted) -> None:
        """Raise ``DataError`` where a sequence begins the next one, or is the same."""
        former, latter = ordered.columns[:, :-1], ordered.columns[:, 1:]
        begins = ((former == latter) | (former == PAST)).all(axis=0)
        if begins.any():
            at = int(np.flatnonzero(begins)[0])
            one, other = sorted(ordered.rows[at : at + 2].tolist())
            raise DataError(
                f"documents: the identifiers of rows {one} and {other} are the same, or one begins "
                "the other; give each document its own"
            )

    def _keep_only(self, allowed: Mask) -> None:
        self._parts = [self._texts()[np.flatnonzero(allowed)]]

    def _stored_rows(self) -> int:
        return sum(map(len, self._parts))

    def _documents(self, rows: Rows) -> TokenSequences:
        return self._texts()[rows]

    def _search(
        self, queries: WeightedNgrams, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        hits = Hits.missing(len(queries), k)
        for number in range(len(queries)):
            rows, scores = self._found(queries.query(number), allowed)
            rows, scores = best_first(rows, scores, k)
            hits.rows[number, : len(rows)], hits.scores[number, : len(rows)] = rows, scores
        return hits

    def _found(
        self, pairs: Sequence[tuple[Ngram, float]], allowed: Mask | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        best: dict[int, float] = {}
        for ngram, weight in pairs:
            node = self.prefix(ngram)
            if node.complete:
                row = int(node.sorted.rows[node.first])
                if allowed is None or allowed[row]:
                    best[row] = max(best.get(row, -np.inf), -weight)
        return np.array([*best], np.int64), np.array([*best.values()], np.float32)

    def _write(self, folder: Path) -> dict[str, Any]:
        texts = self._texts()
        write_array(folder / "ids.npy", [texts.ids], texts.ids.shape, np.int32)
        write_array(folder / "bounds.npy", [texts.bounds], texts.bounds.shape, np.int64)
        return {"texts": len(texts), "tokens": len(texts.ids)}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        opened = cls()
        tokens, texts = (fact(facts, name, int, folder) for name in ("tokens", "texts"))
        ids = open_array(folder / "ids.npy", np.int32, (tokens,))
        bounds = open_array(folder / "bounds.npy", np.int64, (texts + 1,))
        try:
            opened._parts = [TokenSequences(ids, bounds)]
        except DataError as error:
            raise IndexFormatError(f"{folder}: {error}; rebuild the index") from None
        return opened
