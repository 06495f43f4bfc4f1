"""Runs: per query, the ranked documents a system returned, in the one order of a ranking.

It is trec_eval's order, and trec_eval reads scores as float32, so scores are compared in float32.
"""

from __future__ import annotations

import gzip
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import write_bytes
from sluice.encoders.foundation.errors import ConfigError, DataError, needed_package
from sluice.familiar import Answering, Familiar
from sluice.retrieval.runs.columns import RunColumns
from sluice.retrieval.runs.trec_files import read_run, run_text


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a caption; every text is escaped."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    titles = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<table><caption>{html.escape(caption)}</caption>{titles}<tbody>{body}</tbody></table>"


Scores = NDArray[np.float32]
LOWEST = -0x7F7FFFFF  # the ordered key of the most negative finite float32


def canonical_order(doc_ids: Sequence[str], scores: Scores) -> NDArray[np.int64]:
    """Return the positions that put one query's hits in score order, ties by id descending."""
    order = np.argsort(-scores, kind="stable").astype(np.int64, copy=False)
    ordered = scores[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(tied):
        breaks = np.flatnonzero(np.diff(tied) > 1)
        first = tied[np.concatenate(([0], breaks + 1))]
        last = tied[np.concatenate((breaks, [len(tied) - 1]))] + 2
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            group = sorted(order[begin:end].tolist(), key=doc_ids.__getitem__, reverse=True)
            order[begin:end] = group
    return order


def is_canonical(doc_ids: Sequence[str], scores: Scores) -> bool:
    """Return whether the hits are already in the order of ``canonical_order``."""
    if bool((scores[1:] > scores[:-1]).any()):
        return False
    tied = np.flatnonzero(scores[1:] == scores[:-1]).tolist()
    return all(doc_ids[place] > doc_ids[place + 1] for place in tied)


def strictly_decreasing(scores: Scores) -> Scores:
    """Return the nearest scores that fall strictly in the given order.

    A score that is not below its predecessor becomes the next smaller float32; the others
    stay. Scores too near the lowest float32 for that become n, n - 1, ..., 1.
    """
    if len(scores) < 2 or bool((scores[1:] < scores[:-1]).all()):
        return scores
    places = np.arange(len(scores), dtype=np.int64)
    # With floats as consecutive integers: keys[i] = min over j <= i of key[j] - (i - j).
    keys = np.minimum.accumulate(ordered_keys(scores) + places) - places
    if keys[-1] < LOWEST:
        return np.arange(len(scores), 0, -1).astype(np.float32)
    bits = np.where(keys >= 0, keys, 0x80000000 - keys).astype(np.uint32)
    return bits.view(np.float32)


def ordered_keys(scores: Scores) -> NDArray[np.int64]:
    """Integers in the order of the floats, neighbours one apart; both zeros are 0."""
    bits = np.ascontiguousarray(scores, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


SHOWN = 5  # queries, and hits of each, in a notebook


class Ranking(Familiar, Sequence[tuple[str, float]]):
    """The documents of one query, best first: ``doc_ids`` and their float32 ``scores``.

    The order is data: it is kept as given, whatever the scores. Ids are unique. Iteration yields
    (document id, score); a slice is a ``Ranking``.
    """

    __slots__ = ("doc_ids", "scores")

    def __init__(
        self, doc_ids: Sequence[str], scores: Sequence[float] | NDArray[np.float32]
    ) -> None:
        self.doc_ids = doc_ids
        self.scores: NDArray[np.float32] = np.asarray(scores, dtype=np.float32)
        if self.scores.shape != (len(doc_ids),):
            raise DataError(
                f"a ranking of {len(doc_ids)} documents got scores of shape {self.scores.shape}; "
                f"expected one score per document"
            )

    def __len__(self) -> int:
        return len(self.doc_ids)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self.doc_ids, self.scores.tolist(), strict=True)

    @overload
    def __getitem__(self, place: int) -> tuple[str, float]: ...
    @overload
    def __getitem__(self, place: slice) -> Ranking: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            return dict(self)[place]
        if isinstance(place, slice):
            return Ranking(self.doc_ids[place], self.scores[place])
        return self.doc_ids[place], float(self.scores[place])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranking):
            return NotImplemented
        return list(self.doc_ids) == list(other.doc_ids) and np.array_equal(
            self.scores, other.scores
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{doc_id} {score:.4g}" for doc_id, score in self[:3])
        return f"Ranking({shown}{', ...' if len(self) > 3 else ''}; {len(self)} documents)"


Hits = Mapping[str, float] | Iterable[tuple[str, float]]


class Run(Familiar, Mapping[str, Ranking], metaclass=Answering):
    """Query id -> ``Ranking``, under a ``name`` that tables show.

    Mappings and lists of (document id, score) are put in trec_eval's order: float32 score
    descending, then document id descending. A ``Ranking`` keeps the order it has.
    Raises ``DataError`` for a score that is not a finite number and a document twice in a list.
    ``partial`` names the shards that the search went without, none unless that was allowed.
    """

    __slots__ = ("_columns", "_places", "_rankings", "name", "partial")

    def __init__(
        self, rankings: Mapping[str, Ranking | Hits] | None = None, *, name: str = "run"
    ) -> None:
        if hasattr(rankings, "columns") and not isinstance(
            rankings, Mapping
        ):  # PyTerrier's frame, or that of ``to_pandas``
            rankings = _of_frame(rankings)
        self.name = name
        self.partial: tuple[str, ...] = ()
        self._columns: RunColumns | None = None
        self._places: dict[str, int] = {}
        self._rankings: dict[str, Ranking] = {
            query: hits if isinstance(hits, Ranking) else _ranked(query, hits)
            for query, hits in (rankings or {}).items()
        }

    @classmethod
    def from_columns(cls, columns: RunColumns, *, name: str = "run") -> Run:
        """Make a run over columns; its rankings are decoded one by one, when needed."""
        run = cls(name=name)
        run._columns = columns
        run._places = {query: place for place, query in enumerate(columns.queries)}
        return run

    @classmethod
    def from_dict(cls, rankings: Mapping[str, Hits], name: str = "run") -> Run:
        """Make a run, as ``Run(rankings)`` does."""
        return cls(rankings, name=name)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a TREC (6 columns) or Tevatron (3 columns) run file, gzipped or not.

        The order comes from the scores, ties by document id descending, not from the file's ranks.
        The run is named after the file. Raises ``DataError`` naming file and line.
        """
        path = Path(path)
        name = path.name.removesuffix(".gz").removesuffix(".trec").removesuffix(".run")
        return cls.from_columns(read_run(path), name=name)

    @property
    def columns(self) -> RunColumns | None:
        """The run as columns when it came from a file, None otherwise."""
        return self._columns

    def __getitem__(self, query: str) -> Ranking:
        if self._columns is None:
            return self._rankings[query]
        place = self._places[query]
        return Ranking(self._columns.doc_ids(place), self._columns.query_scores(place))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rankings if self._columns is None else self._places)

    def __len__(self) -> int:
        return len(self._rankings if self._columns is None else self._places)

    def __contains__(self, query: object) -> bool:
        return query in (self._rankings if self._columns is None else self._places)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {len(self):,} queries)"

    def top(self, k: int) -> Run:
        """Return the run cut to the first ``k`` documents of each query."""
        if k < 0:
            raise ConfigError(f"top({k}): expected 0 or more documents")
        if self._columns is not None:
            return Run.from_columns(self._columns.top(k), name=self.name)
        run = Run({query: ranking[:k] for query, ranking in self.items()}, name=self.name)
        run.partial = self.partial
        return run

    def check_whole(self) -> None:
        """Raise ``DataError`` where shards are missing: nothing is measured or learnt by it."""
        if self.partial:
            raise DataError(
                f"{self.name}: searched without {', '.join(self.partial)}, and what is measured or "
                "learnt needs all shards; put them back, or raise deadline_ms"
            )

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return ``query id -> {document id: score}``, from which trec_eval reads the same order.

        Scores are the run's own, except in rankings whose order contradicts them: those get the
        strictly decreasing scores that ``save`` writes.
        """
        return {query: dict(_agreeing(ranking)) for query, ranking in self.items()}

    def strictly_decreasing(self) -> dict[str, dict[str, float]]:
        """Return ``query id -> {document id: score}`` with the scores that ``save`` writes.

        Every program that sorts by score sees this order, however it breaks ties.
        """
        return {
            query: dict(
                zip(ranking.doc_ids, strictly_decreasing(ranking.scores).tolist(), strict=True)
            )
            for query, ranking in self.items()
        }

    def to_pandas(self) -> Any:
        """Return a pandas frame of the columns query, doc_id, rank (from 1) and score, in order."""
        import pandas as pd

        return pd.DataFrame(self._as_columns())

    to_dataframe = to_pandas

    def to_polars(self) -> Any:
        """Return a polars frame of the columns query, doc_id, rank (from 1) and score, in order."""
        with needed_package("polars", "polars", "Run.to_polars"):
            import polars as pl
        return pl.DataFrame(self._as_columns())

    def _as_columns(self) -> dict[str, Any]:
        rankings = list(self.items())
        ranks = [np.arange(1, len(ranking) + 1) for _, ranking in rankings]
        return {
            "query": [query for query, ranking in rankings for _ in range(len(ranking))],
            "doc_id": [doc_id for _, ranking in rankings for doc_id in ranking.doc_ids],
            "rank": np.concatenate([np.zeros(0, np.int64), *ranks]),
            "score": np.concatenate([np.zeros(0, np.float32), *(r.scores for _, r in rankings)]),
        }

    def _repr_html_(self) -> str:
        """Return the first hits of the first queries, for notebooks."""
        rows = [
            (query, rank, doc_id, f"{score:.4f}")
            for query in islice(self, SHOWN)
            for rank, (doc_id, score) in enumerate(self[query][:SHOWN], 1)
        ]
        return html_table(f"{self!r}", ("query", "rank", "doc_id", "score"), rows)

    def save(self, path: str | Path, tag: str | None = None) -> None:
        """Write six TREC columns, replacing ``path`` in one step; gzipped when it ends in .gz.

        Scores are written strictly decreasing in float32, so that every tool that sorts by score
        sees this order: a tie or inversion is moved to the next smaller float32, no further.
        ``tag`` is the last column, the run's name by default. Raises ``DataError`` for an id with
        white space, a score that is not finite, and a document twice in a ranking.
        """
        path = Path(path)
        if tag is not None and len(tag.split()) != 1:
            raise ConfigError(f"tag {tag!r}: expected one word without white space")
        tag = tag or "_".join(self.name.split()) or "run"
        data = "".join(run_text(self._checked(), tag)).encode("utf-8")
        if path.name.endswith(".gz"):
            data = gzip.compress(data, compresslevel=6, mtime=0)
        write_bytes(path, data)

    def _checked(self) -> Iterator[tuple[str, list[str], NDArray[np.float32]]]:
        for query, ranking in self.items():
            doc_ids = list(ranking.doc_ids)
            _check_hits(query, doc_ids, ranking.scores)
            yield query, doc_ids, strictly_decreasing(ranking.scores)


def _of_frame(frame: Any) -> dict[str, dict[str, float]]:
    names = ("qid", "docno") if "qid" in frame else ("query", "doc_id")
    rankings: dict[str, dict[str, float]] = {}
    for query, doc_id, score in zip(*(frame[name] for name in (*names, "score")), strict=True):
        rankings.setdefault(str(query), {})[str(doc_id)] = score
    return rankings


def _ranked(query: str, hits: Hits) -> Ranking:
    """Validate hits of one query and put them in trec_eval's order."""
    if not isinstance(query, str):
        raise DataError(f"query id {query!r} is {type(query).__name__}; expected text")
    pairs = list(hits.items() if isinstance(hits, Mapping) else hits)
    try:
        doc_ids = [doc_id for doc_id, _ in pairs]
        with np.errstate(over="ignore"):
            scores = np.array([float(score) for _, score in pairs]).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"query {query!r}: expected {{document id: score}} or [(document id, score), ...] "
            f"({error})"
        ) from None
    _check_hits(query, doc_ids, scores)
    order = canonical_order(doc_ids, scores)
    return Ranking([doc_ids[place] for place in order.tolist()], scores[order])


def _check_hits(query: str, doc_ids: list[str], scores: NDArray[np.float32]) -> None:
    check_unique(query, doc_ids)
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise DataError(
            f"query {query!r}: score {scores[bad[0]]} of document {doc_ids[bad[0]]!r} "
            "is not a finite number of float32"
        )


def check_unique(query: str, doc_ids: Sequence[str]) -> None:
    """Raise ``DataError`` if an id is not a text or is in the list twice."""
    try:
        "".join(doc_ids)  # the fastest look at every type
    except TypeError as error:
        raise DataError(f"query {query!r}: document ids must be text ({error})") from None
    if len(set(doc_ids)) != len(doc_ids):
        seen: set[str] = set()
        twice = next(doc for doc in doc_ids if doc in seen or seen.add(doc))  # type: ignore[func-returns-value]
        raise DataError(
            f"query {query!r}: document {twice!r} is in the list twice; "
            "expected each document once per query"
        )


def _agreeing(ranking: Ranking) -> Iterator[tuple[str, float]]:
    if is_canonical(ranking.doc_ids, ranking.scores):
        return iter(ranking)
    return zip(ranking.doc_ids, strictly_decreasing(ranking.scores).tolist(), strict=True)


def without(ranking: Ranking, *doc_ids: str) -> Ranking:
    """Return a ranking without some documents."""
    left_out = frozenset(doc_ids)
    places = [place for place, name in enumerate(ranking.doc_ids) if name not in left_out]
    return Ranking([ranking.doc_ids[place] for place in places], ranking.scores[places])
