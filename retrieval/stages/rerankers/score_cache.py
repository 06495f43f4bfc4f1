"""Scores of (query, document) pairs on disk, and the scorer that asks them first."""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import OwnLock, fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.pipelines.scorer import Scorer, remembered
from sluice.retrieval.pipelines.tracing import tally
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerAround
from sluice.retrieval.stages.sqlite_cache import (
    Layout,
    damaged,
    open_database,
    reported,
    transaction,
)

TABLES = (
    "CREATE TABLE batches (id INTEGER PRIMARY KEY, query BLOB NOT NULL, used INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL)",
    "CREATE INDEX batches_by_query ON batches (query)",
    "CREATE INDEX batches_by_use ON batches (used, id)",
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, documents BLOB NOT NULL, scores BLOB NOT NULL,"
    " checksum INTEGER NOT NULL)",
)
LAYOUT = Layout(0x534C5343, 1, TABLES, "scores")
FILE = "scores.sqlite"  # in a folder
DEFAULT_BYTES = 2_000_000_000
LEAST_BYTES = 100_000  # an empty file has some of them
DIGEST = 16  # bytes of a hash: of 2**32 pairs two collide with a chance of 3e-20
AT_ONCE = 500  # queries looked up, or written, by one statement
NOTED = 10_000  # batches read before their use is written down

Pairs = Sequence[tuple[str, str]]
Scores = NDArray[np.float32]


class ScoreCache:
    """A file of scores by (scorer, query text, document text), shared by processes and threads.

    ``path`` is the file, or a folder it is put into. ``get`` finds scores and ``put`` adds some;
    they are float32 and come back as they were. The texts are known by 128-bit hashes (blake2b).

    Above ``max_bytes`` the batches used least recently are dropped, a batch being what one ``put``
    had of one query; a use counts from the next ``put`` or ``close``. Beside the file SQLite keeps
    a log of some megabytes. A process that is killed leaves complete batches. The file is opened
    when it is first needed. 100,000 pairs of 1,000 queries are found in about 0.2 s.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = DEFAULT_BYTES) -> None:
        path = Path(path)
        self.path = path / FILE if path.is_dir() else path
        self.max_bytes = whole_number(max_bytes, "max_bytes", LEAST_BYTES)
        self._lock = OwnLock()
        self._opened: tuple[int, sqlite3.Connection] | None = None  # by which process
        self._used: set[int] = set()  # batches, since that was last written down

    def get(self, scorer: str, pairs: Pairs) -> Scores:
        """Return the score of each pair, float32 ``[n]``; NaN where it is not known.

        ``scorer`` is what tells scorers apart: see ``scorer_identity``. ``IndexFormatError`` for a
        damaged file.
        """
        found = np.full(len(pairs), np.nan, np.float32)
        by_query = _by_query(pairs)
        keys = _query_keys(scorer, by_query)
        documents = _digests(document for _, document in pairs)
        names = list(keys)
        for start in range(0, len(names), AT_ONCE):
            known = self._read(names[start : start + AT_ONCE])
            for key, scores in known.items():
                places = by_query[keys[key]]
                missing = [scores.get(documents[pairs[place][1]], np.nan) for place in places]
                found[places] = missing
        return found

    def put(self, scorer: str, pairs: Pairs, scores: Any) -> None:
        """Add the scores of pairs; a kill leaves what was added before, and this or nothing.

        Of a pair that is added twice the first score stays. ``DataError`` for another number of
        scores, and for one that is not finite; then nothing is added.
        """
        values = np.asarray(scores, np.float32)
        if values.shape != (len(pairs),):
            raise DataError(f"{self.path}: scores of shape {values.shape} for {len(pairs)} pairs")
        if not np.isfinite(values).all():
            raise DataError(f"{self.path}: a score is not finite; nothing is added")
        if not len(pairs):
            return
        by_query = _by_query(pairs)
        documents = _digests(document for _, document in pairs)
        batches = []
        for key, query in _query_keys(scorer, by_query).items():
            places = by_query[query]
            hashes = b"".join(documents[pairs[place][1]] for place in places)
            batches.append((key, hashes, values[places].astype("<f4").tobytes()))
        for start in range(0, len(batches), AT_ONCE):
            self._write(batches[start : start + AT_ONCE])

    def copy_to(self, path: Path, scorers: Sequence[str], queries: Sequence[str]) -> None:
        """Write the scores that some scorers gave to these queries' documents into a new file."""
        path.unlink(missing_ok=True)
        other = ScoreCache(path, max_bytes=self.max_bytes)
        with closing(other):
            len(other)  # makes the file, where there is nothing to copy too
            for scorer in scorers:
                for batches in self._batches(list(_query_keys(scorer, queries))):
                    other._write(batches)

    def absorb(self, path: Path) -> None:
        """Add all scores of another file, or none where a kill comes between; once if repeated."""
        with closing(ScoreCache(path)) as other, reported(path, LAYOUT):
            keys = [row[0] for row in other._database().execute("SELECT query FROM batches")]
            batches = [each for part in other._batches(keys) for each in part]
        known = {each for part in self._batches(keys) for each in part}
        self._write([each for each in batches if each not in known])

    def _batches(self, keys: Iterable[bytes]) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
        """Yield the batches of queries, by their keys in the file, as ``_write`` takes them."""
        names = list(dict.fromkeys(keys))
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            statement = (
                "SELECT query, documents, scores FROM batches JOIN contents USING (id) "
                f"WHERE query IN ({','.join('?' * len(part))}) ORDER BY id"
            )
            with self._lock, reported(self.path, LAYOUT):
                rows = self._database().execute(statement, part).fetchall()
            yield rows

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which opens the file by itself."""
        return {**self.__dict__, "_opened": None, "_used": set()}

    def close(self) -> None:
        """Write down what was used, and close the file; a later call opens it again."""
        with self._lock, reported(self.path, LAYOUT):
            if self._opened is None:
                return
            process, database = self._opened
            if process == os.getpid():
                self._write_used(database)
                database.close()
            self._opened = None

    def __len__(self) -> int:
        """Return the number of scores in the file; those added twice count twice."""
        with self._lock, reported(self.path, LAYOUT):
            query = f"SELECT coalesce(sum(bytes), 0) / {DIGEST + 4} FROM batches"
            return int(self._database().execute(query).fetchone()[0])

    def _database(self) -> sqlite3.Connection:
        """Return this process's connection: one that was opened before a fork is not shared."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), open_database(self.path, LAYOUT)
            self._used = set()
        return self._opened[1]

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, dict[bytes, float]]:
        """Return of each query the scores by document."""
        marks = ",".join("?" * len(keys))
        statement = (
            "SELECT batches.id, query, documents, scores, checksum FROM batches "
            f"JOIN contents ON contents.id = batches.id WHERE query IN ({marks})"
        )
        with self._lock, reported(self.path, LAYOUT):
            database = self._database()
            rows = database.execute(statement, keys).fetchall()
            self._used.update(row[0] for row in rows)
            if len(self._used) >= NOTED:
                self._write_used(database)
        known: dict[bytes, dict[bytes, float]] = {}
        for _, key, documents, scores, checksum in sorted(rows, reverse=True):  # the first stays
            if (
                not (isinstance(documents, bytes) and isinstance(scores, bytes))
                or len(documents) * 4 != len(scores) * DIGEST
                or checksum != _sum(documents, scores)
            ):
                raise damaged(self.path, LAYOUT, "a batch of scores does not match its checksum")
            values = struct.unpack(f"<{len(scores) // 4}f", scores)
            hashes = np.frombuffer(documents, f"V{DIGEST}").tolist()
            known.setdefault(key, {}).update(zip(hashes, values, strict=True))
        return known

    def _write(self, batches: Sequence[tuple[bytes, bytes, bytes]]) -> None:
        with self._lock, reported(self.path, LAYOUT):
            database = self._database()
            with transaction(database):
                now = self._mark_used(database)
                for key, documents, scores in batches:
                    size = len(documents) + len(scores)
                    added = database.execute(
                        "INSERT INTO batches (query, used, bytes) VALUES (?, ?, ?)",
                        (key, now, size),
                    )
                    database.execute(
                        "INSERT INTO contents VALUES (?, ?, ?, ?)",
                        (added.lastrowid, documents, scores, _sum(documents, scores)),
                    )
                self._drop_oldest(database)
            if _pages(database)[0] > self.max_bytes:
                database.executescript("PRAGMA incremental_vacuum")  # ``execute`` frees one page

    def _write_used(self, database: sqlite3.Connection) -> None:
        if self._used:
            with transaction(database):
                self._mark_used(database)

    def _mark_used(self, database: sqlite3.Connection) -> int:
        """Write down what was used since, as of now; return what is now: the next number."""
        now = int(database.execute("SELECT coalesce(max(used), 0) + 1 FROM batches").fetchone()[0])
        used = [(now, batch) for batch in sorted(self._used)]
        database.executemany("UPDATE batches SET used = ? WHERE id = ?", used)
        self._used = set()
        return now

    def _drop_oldest(self, database: sqlite3.Connection) -> None:
        """Delete batches, those first that were not used for longest, until a tenth is free."""
        size, free = _pages(database)
        if size - free <= self.max_bytes:
            return
        while size - free > 0.9 * self.max_bytes:
            excess, chosen = size - free - int(0.9 * self.max_bytes), []
            oldest = database.execute("SELECT id, bytes FROM batches ORDER BY used, id LIMIT 1000")
            for batch, count in oldest.fetchall():
                chosen.append((batch,))
                excess -= count
                if excess <= 0:
                    break
            if not chosen:
                return
            database.executemany("DELETE FROM contents WHERE id = ?", chosen)
            database.executemany("DELETE FROM batches WHERE id = ?", chosen)
            size, free = _pages(database)


def _by_query(pairs: Pairs) -> dict[str, list[int]]:
    """Return the places of each query's pairs."""
    places: dict[str, list[int]] = {}
    for place, (query, _) in enumerate(pairs):
        places.setdefault(query, []).append(place)
    return places


def _query_keys(scorer: str, queries: Iterable[str]) -> Mapping[bytes, str]:
    """Return the queries by their key in the file, a hash of (scorer, query)."""
    mark = blake2b(_bytes(scorer)).digest()
    return {blake2b(_bytes(q), digest_size=DIGEST, key=mark).digest(): q for q in queries}


def _digests(texts: Iterable[str]) -> dict[str, bytes]:
    return {
        text: blake2b(_bytes(text), digest_size=DIGEST).digest() for text in dict.fromkeys(texts)
    }


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _sum(documents: bytes, scores: bytes) -> int:
    return zlib.crc32(scores, zlib.crc32(documents))


def _pages(database: sqlite3.Connection) -> tuple[int, int]:
    """Return the bytes of the file and how many of them are free."""
    names = ("page_size", "page_count", "freelist_count")
    size, count, free = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return size * count, size * free


BLOCK = 4_096  # pairs scored before they are written: what a kill can cost


class Cached(ScorerAround):
    """``scorer``, but a pair whose score is in ``cache`` is not scored again.

    Of pairs given twice one is scored. Scores are kept under the scorer's fingerprint, so another
    model, or the same one trained further, finds none of them; its arithmetic type counts too.
    ``name`` identifies a scorer without a fingerprint; change it when the scores change.
    ``hits`` and ``misses`` count pairs found and pairs scored so far.

    A scorer whose scores depend on the other pairs of the list must not be cached.
    """

    def __init__(self, scorer: Scorer, cache: ScoreCache, *, name: str = "") -> None:
        super().__init__(scorer, "cached", name=name)
        self.cache = cache
        self.hits = 0
        self.misses = 0

    @property
    def fingerprint(self) -> str:
        """That of the scorer: the cache changes no score."""
        return fingerprint_of("cached", self._identity())

    @property
    def identity(self) -> str:
        """What the scores are kept under in the cache."""
        return self._identity()

    @property
    def tokenizer(self) -> Any:
        """The scorer's tokenizer, None where it has none: what passages are measured by."""
        return self._hooks.tokenizer

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one score per pair, float32 ``[n]``; ``DataError`` for one that is not finite.

        What is missing is scored and written a few thousand pairs at a time.
        """
        identity = self._identity()
        scores, misses = remembered(
            pairs,
            partial(self.cache.get, identity),
            lambda places: self._score([pairs[place] for place in places]),
            partial(self.cache.put, identity),
            block=BLOCK,
        )
        self.hits += len(pairs) - misses
        self.misses += misses
        tally({"cache hits": len(pairs) - misses, "cache misses": misses})
        return scores

    def _score(self, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
        scores = np.asarray(self.scorer.score(pairs), np.float32)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise DataError(
                f"{type(self.scorer).__name__}: returned scores of shape {scores.shape} for "
                f"{len(pairs)} pairs, or one that is not finite; none of them is cached"
            )
        return scores


def cached(
    scorer: Any,
    /,
    *,
    file: Annotated[str, "The file of scores."],
    max_bytes: Annotated[int, "The size that the file may reach."] = DEFAULT_BYTES,
    name: Annotated[str, "Identifies a scorer without a fingerprint."] = "",
) -> Cached:
    """Return ``scorer`` with its scores kept in ``file``; see ``Cached`` and ``ScoreCache``."""
    if not file:
        raise ConfigError("cached: file is empty; expected a path such as 'runs/scores.sqlite'")
    return Cached(scorer, ScoreCache(Path(file), max_bytes=max_bytes), name=name)
