"""One collection in several indexes, searched as one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.indexing.hits import Hits, LiveRows, Mask, Rows
from sluice.indexing.index import Index, Parameters, SearchParameters
from sluice.indexing.kernels.calls import thread_count
from sluice.indexing.table import SHARDABLE
from sluice.indexing.wrappers.fan_out import (
    DEADLINE,
    HEDGE,
    OWN_PARAMETERS,
    PARTIAL,
    Ask,
    JoinedParts,
    Patience,
    ShardRows,
    ask_all,
    check_patience,
    note_absent,
    stacked,
)
from sluice.indexing.wrappers.remote import RemoteIndex

log = logging.getLogger("sluice")


class ShardedIndex(Index):
    """An index whose rows are split over ``parts``, with the hits, scores and ties of the whole.

    Every part is searched, and the best of all are returned: in one pass where the type can
    (``flat``, ``inverted``), else in threads. Where the parts are exact so is this: a score depends
    on a document and a query alone, and ties go by the row of the collection. ``rows`` says which
    part holds each; it is shared with the store of the documents. A part that is None could not be
    opened, and ``absent`` has the reason. ``replicas`` are further copies of each part.

    Beside those of the parts it takes the search parameters ``partial`` (``"error"``, or
    ``"allow"``: go without the shards that do not answer, see ``partial_results``),
    ``deadline_ms``, and ``hedge_ms``, after which a replica gets the query too.
    """

    def __init__(
        self,
        parts: Sequence[Index | None],
        rows: ShardRows,
        *,
        names: Sequence[str] = (),
        absent: Mapping[str, str] | None = None,
        replicas: Sequence[Sequence[Index]] = (),
    ) -> None:
        super().__init__()
        self.names = list(names) or [f"shard-{number}" for number in range(len(parts))]
        self._parts, self.absent = list(parts), dict(absent or {})
        self._replicas = [list(each) for each in replicas] or [[] for _ in parts]
        self.shard_rows = rows
        self.changed: set[int] = set()  # parts that differ from what was opened
        self._joined_parts = JoinedParts()
        self._told = False  # whether a hedge that does nothing was warned of
        present = [part for part in map(self._readable, range(len(parts))) if part is not None]
        if not present:
            raise IndexFormatError(
                f"no shard can be opened: {'; '.join(self.absent.values())[:500]}"
            )
        self.first = present[0]
        self.metric = self.first.metric
        live = [LiveRows() if part is None else part._live for part in parts]
        dead = [rows.rows[shard][each.deleted] for shard, each in enumerate(live)]
        self._live = LiveRows(len(rows) if self._filled else 0, np.sort(np.concatenate(dead)))

    @classmethod
    def split(cls, index: Index, rows: ShardRows, names: Sequence[str] = ()) -> Self:
        """Return an empty index of shards that are copies of ``index``, which is empty too.

        ``ConfigError`` for a type that cannot answer by parts.
        """
        cls.check(index)
        if index.rows:
            raise ConfigError(f"index: it has {index.rows:,} rows already; expected an empty index")
        made = cls([copy.deepcopy(index) for _ in rows.rows], rows, names=names)
        made.changed = set(range(len(rows.rows)))
        return made

    @staticmethod
    def check(index: Index) -> None:
        """Raise ``ConfigError`` for a type that cannot answer by parts; one's own is trusted."""
        name = index.type_name
        if name and name not in SHARDABLE:
            raise ConfigError(
                f"shards: an index of type {name!r} learns from, or writes queries by, the whole "
                f"collection and cannot be split; take one of {', '.join(SHARDABLE)}, or leave "
                "shards out"
            )

    @property
    def _filled(self) -> bool:
        return any(part is None or part.rows for part in self._parts)

    @property
    def parts(self) -> list[Index]:
        """The indexes of the shards; ``IndexFormatError`` where one is missing."""
        if self.absent:
            self._refuse_absent(self.absent)
        return [part for part in self._parts if part is not None]

    @property
    def present(self) -> dict[str, Index]:
        """The indexes of the shards that could be opened, by name."""
        pairs = zip(self.names, self._parts, strict=True)
        return {name: part for name, part in pairs if part is not None}

    def _refuse_absent(self, absent: Mapping[str, str]) -> NoReturn:
        name, why = next(iter(absent.items()))
        others = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise SluiceError(
            f"{name}{others}: {why}; put the shard back, raise deadline_ms, or search without it: "
            "partial: allow"
        )

    def part(self, row: int) -> tuple[Index, int]:
        """Return the index that holds a row of the collection, and its own row there."""
        ((shard, _, local),) = self.shard_rows.parted([row])
        part = self._readable(shard)
        if part is None:
            self._refuse_absent({self.names[shard]: self.absent[self.names[shard]]})
        return part, int(local[0])

    def _readable(self, shard: int) -> Index | None:
        """Return a shard's part, or its replica where that is missing."""
        part, copies = self._parts[shard], self._replicas[shard]
        return copies[0] if part is None and copies else part

    # What all parts have in common.

    @property
    def form(self) -> type[Index]:
        """The class of the parts that holds the vectors as they were encoded."""
        return self.first.form

    @property
    def by_passages(self) -> bool:
        """Whether the parts hold passages."""
        return self.first.by_passages

    @property
    def width(self) -> int | None:
        """The widest of the parts."""
        return max((part.width or 0 for part in self._parts if part is not None), default=0) or None

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts, and of the rows' places."""
        parts = sum(part.size_bytes for part in self._parts if part is not None)
        return parts + self.shard_rows.owners.nbytes + self.shard_rows.local.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of all parts that should fit into memory."""
        return sum(part.resident_bytes for part in self._parts if part is not None)

    @property
    def explains(self) -> bool:
        """Whether the parts can explain a score."""
        return self.first.innermost.explains

    def explain(self, query: Any, row: int) -> Sequence[Any]:
        """Return what each term adds to the score of ``row``, as its part has it."""
        part, local = self.part(row)
        return part.explain(query, local)

    def training_rows(self, documents: int) -> int:
        """Return how many sample vectors a part would like for its share of the documents."""
        return self.first.training_rows(-(-documents // len(self._parts)))

    def check_fit(self, width: int, documents: int) -> None:
        """Raise if a part cannot hold its share of vectors of this width."""
        self.first.check_fit(width, documents // len(self._parts))

    def train(self, sample: Any) -> None:
        """Train every part on the same sample, so that all learn the same."""
        for part in self.parts:
            part.train(sample)

    def spool(self, folder: Path) -> None:
        """Keep what is added in files of a folder for each part, where it can."""
        for name, part in zip(self.names, self.parts, strict=True):
            (folder / name).mkdir(parents=True, exist_ok=True)
            part.spool(folder / name)

    def empty(self) -> Self:
        """Return an index without documents over the same rows."""
        made = type(self)([part.empty() for part in self.parts], self.shard_rows, names=self.names)
        made.changed = set(range(len(self._parts)))
        return made

    # Documents by their passages.

    def of_passages(self, counts: ArrayLike) -> Self:
        """Return these empty parts as an index of passages, ``counts`` of each document."""
        owners = np.repeat(self.shard_rows.owners, np.asarray(counts))
        made = type(self)(self.parts, ShardRows.split(owners, len(self._parts)), names=self.names)
        made.changed = set(self.changed)
        return made

    def by_documents(self, rows: ShardRows, counts: ArrayLike) -> Self:
        """Return an index of documents over these passages, ``counts`` of each document."""
        from sluice.indexing.wrappers.passages import PassageIndex

        numbers = np.asarray(counts)
        parts = [
            PassageIndex.wrap(part, numbers[own])
            for part, own in zip(self.parts, rows.rows, strict=True)
        ]
        made = type(self)(parts, rows, names=self.names)
        made.changed = set(self.changed)
        return made

    def winning_passages(
        self, vector: Any, rows: ArrayLike, *, params: Parameters | None = None
    ) -> Rows:
        """Return the number of each document's best passage, see ``PassageIndex``."""
        numbers = np.full(len(np.asarray(rows)), -1, dtype=np.int64)
        own = self._own_params(params or {})
        for shard, places, local in self.shard_rows.parted(rows):
            part: Any = self._readable(shard)
            if part is not None:
                numbers[places] = part.winning_passages(vector, local, params=own)
        return numbers

    # Changes.

    def add(self, vectors: Any, counts: ArrayLike | None = None) -> Rows:
        """Append the vectors of the next rows of ``shard_rows``; return these rows.

        ``counts`` are the passages of each document where documents are searched by these.
        """
        if counts is None:
            return super().add(vectors)
        numbers = np.asarray(counts)
        checked = self._checked(vectors, "documents")
        rows = self._next(len(numbers))
        owners = self.shard_rows.owners[rows]
        of_passages = np.repeat(owners, numbers)
        for shard in np.unique(owners).tolist():
            part: Any = self.parts[shard]
            part.add(checked[np.flatnonzero(of_passages == shard)], numbers[owners == shard])
            self.changed.add(shard)
        return self._live.extend(len(numbers))

    def _next(self, count: int) -> Rows:
        rows = self._live.total + np.arange(count, dtype=np.int64)
        if count and rows[-1] >= len(self.shard_rows):
            raise ConfigError(
                f"add: {count:,} vectors after {self._live.total:,} rows, and shards are chosen "
                f"for {len(self.shard_rows):,}; add documents to the retriever"
            )
        return rows

    def _append(self, documents: Any) -> None:
        parts = self.parts
        for shard, places, _ in self.shard_rows.parted(self._next(int(documents.shape[0]))):
            parts[shard].add(documents[places])
            self.changed.add(shard)

    def delete(self, rows: ArrayLike) -> None:
        """Put tombstones on ``rows``, in the parts that hold them."""
        parts, dying = self.parts, np.asarray(rows)
        super().delete(dying)
        for shard, _, local in self.shard_rows.parted(dying.astype(np.int64)):
            parts[shard].delete(local)
            self.changed.add(shard)

    def compact(self) -> Rows:
        """Compact every part; return old row -> new row (-1 where deleted)."""
        for part in self.parts:
            part.compact()
        self.changed = set(range(len(self._parts)))
        return self._live.compact()

    # Searching.

    def _checked(self, vectors: Any, what: str) -> Any:
        return self.first._checked(vectors, what)

    @property
    def _parameters(self) -> SearchParameters:
        names = (*self.first._parameters.names, *OWN_PARAMETERS)
        return SearchParameters(names, self._check_values)

    def _check_values(self, params: Parameters) -> None:
        self.first._parameters.check(self._own_params(params))
        check_patience(params)
        if params.get(HEDGE) is not None and not any(self._replicas) and not self._told:
            log.warning("hedge_ms: no shard has a replica in replicas/, so it does nothing")
            self._told = True

    @staticmethod
    def _own_params(params: Parameters) -> dict[str, Any]:
        """Return the parameters that the parts take."""
        return {k: v for k, v in params.items() if k not in OWN_PARAMETERS}

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(len(self._parts), thread_name_prefix="shards")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = copy.copy(self)
        made.__dict__.pop("_pool", None)
        made._parts = copy.deepcopy(self._parts, memo)
        made.shard_rows = copy.deepcopy(self.shard_rows, memo)
        made._joined_parts = JoinedParts()
        made._live, made.changed = copy.deepcopy(self._live, memo), set(self.changed)
        return made

    def _search(
        self, queries: Any, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        if parameters.get(DEADLINE) is None and parameters.get(HEDGE) is None:
            rows, own = self.shard_rows.rows, self._own_params(parameters)
            hits = self._joined_parts.search(self._parts, rows, queries, k, allowed, own)
            if hits is not None:
                return hits
        return self._asked_singly(queries, k, allowed, parameters)

    def _asked_singly(
        self, queries: Any, k: int, allowed: Mask | None, parameters: Mapping[str, Any]
    ) -> Hits:
        """Ask every part, with patience, and leave out what does not answer."""
        own = self._own_params(parameters)
        everything = allowed is None or allowed is self._live.allowed()

        def arguments(shard: int, part: Index) -> tuple[Any, int, Mask | None, dict[str, Any]]:
            rows = self.shard_rows.rows[shard]
            keep = None if everything or allowed is None else allowed[rows]
            return queries, min(k, len(part)), keep, own

        def ask(shard: int, part: Index) -> Hits:
            *asked, keep, params = arguments(shard, part)
            return in_whole(shard, part.search(*asked, keep=keep, params=params))

        def begun(shard: int, part: RemoteIndex) -> Ask[Hits]:
            wait = part.begin(*arguments(shard, part))
            return lambda: in_whole(shard, wait())

        def in_whole(shard: int, hits: Hits) -> Hits:
            rows = self.shard_rows.rows[shard]
            numbers = np.where(hits.rows >= 0, rows[hits.rows], hits.rows) if len(rows) else hits[0]
            return Hits(numbers, hits.scores)

        seconds = [
            None if parameters.get(name) is None else parameters[name] / 1000
            for name in (DEADLINE, HEDGE)
        ]
        patience, remote = Patience(*seconds), isinstance(self.first, RemoteIndex)
        asked: list[list[Ask[Hits]]] = []
        for shard, part in enumerate(self._parts):
            copies = [*([] if part is None else [part]), *self._replicas[shard]]
            asked.append([partial(ask, shard, each) for each in copies])
            if patience.is_endless and copies and isinstance(copies[0], RemoteIndex):
                asked[-1][0] = begun(shard, copies[0])  # all begin before one is waited for
        threads = len(self._parts) > 1 and thread_count() > 1 and not remote
        answers = ask_all(asked, patience, self._pool if threads else None)
        if answers.absent:
            named = {self.names[shard]: why for shard, why in answers.absent.items()}
            absent = {name: self.absent.get(name, why) for name, why in named.items()}
            if parameters.get(PARTIAL) != "allow":
                self._refuse_absent(absent)
            log.warning("partial: [%s]: %s", ", ".join(absent), "; ".join(absent.values()))
            note_absent(absent)
        found = [answers.found[shard] for shard in sorted(answers.found)]
        return Hits.of_all(found, int(queries.shape[0]), k)

    def plan(self, queries: Any, k: int, *, params: Parameters | None = None) -> Sequence[Any]:
        """Return what the first part's planner chose; each part has a planner of its own."""
        return self.first.plan(queries, k, params=self._own_params(params or {}))

    def _documents(self, rows: Rows) -> Any:
        parts, found, order = self.parts, [], np.empty(len(rows), dtype=np.int64)
        done = 0
        for shard, places, local in self.shard_rows.parted(rows):
            found.append(parts[shard].documents(local))
            order[places] = done + np.arange(len(places))
            done += len(places)
        return stacked(found)[order] if found else parts[0].documents(rows)

    # It is saved part by part, by the retriever.

    def _keep_only(self, allowed: Mask) -> None:
        self._not_alone("compacted")

    def _write(self, folder: Path) -> dict[str, Any]:
        return self._not_alone("saved")

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        raise IndexFormatError(f"{folder}: shards are opened with their retriever")

    def _not_alone(self, done: str) -> NoReturn:
        raise ConfigError(f"ShardedIndex: is {done} with its retriever, part by part")
