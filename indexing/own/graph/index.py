"""A graph of nearest neighbours that any scorer searches, and the exhaustive search beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.q_net import QNet, QNetShape
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.hits import Hits, Mask, Rows, best_first
from sluice.indexing.index import SearchParameters
from sluice.indexing.own.graph.neighbours import (
    PARAMETERS,
    Best,
    Build,
    Mode,
    Neighbours,
    Score,
    SearchSettings,
    check_parameters,
    checked_build,
    checked_settings,
    walk,
)
from sluice.indexing.recall import DEPTHS, NOTE, MeasuredIndex, RecallNote, mean_share
from sluice.indexing.storage.exact_scores import Metric
from sluice.indexing.storage.rows import DenseRows, fact, picked

NEIGHBOURS = 32  # of each document, where the number is not set
GATHERED = 4_096  # rows whose vectors are gathered, or scored, at a time
QUERIES = 100  # to measure a recall with, at most

Scorer: TypeAlias = Callable[[Rows, Dense], NDArray[np.float32]]


class Walked(NamedTuple):
    """The hits of several queries, and how many documents were scored for each, ``[n]``."""

    hits: Hits
    visited: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GraphRecall(RecallNote):
    """What share of the exhaustive best ``k`` a walk found, on average over sampled queries.

    ``visited`` is the number of documents that a walk for 100 hits scored, on average.
    ``added`` and ``deleted`` documents changed the index since.
    """

    at_10: float
    at_100: float
    visited: float
    queries: int
    documents: int
    added: int = 0
    deleted: int = 0

    def __str__(self) -> str:
        """Return a line for reports."""
        return self._with_changes(
            f"recall@10 {self.at_10:.3f}, @100 {self.at_100:.3f} of exhaustive, on {self.queries} "
            f"queries; {self.visited:,.0f} of {self.documents:,} documents scored"
        )


class GraphIndex(MeasuredIndex):
    """Documents as vectors; a query is a network that scores them, or any function that does.

    Queries are flat q-nets (``QNetShape``), which a Hypencoder makes; one of the documents' own
    width is an inner product. ``search_by`` takes any function of rows and vectors instead.

    ``mode: exhaustive`` scores every document, in blocks. ``mode: graph`` keeps for each document
    the ``neighbours`` nearest to it by Euclidean distance (``build: exact``, or ``faiss``, which is
    faster for many documents) and walks: it scores ``entries`` documents drawn by ``seed``, then
    ``iterations`` times at most the neighbours of the ``candidates`` best of those scored last.
    ``budget`` bounds how many documents are scored (a larger k counts in its place, and what a
    filter leaves short of k is filled up by others), and ``early_stop`` ends the walk where a step
    finds none of the best k. (Killingback, Zeng and Zamani 2025, arXiv 2502.05364; in their code
    100 neighbours, 10,000 entries, 50 candidates, 16 iterations.) A filter that leaves no more
    documents than a walk begins with is answered exhaustively. What the walk finds of the
    exhaustive best is measured and noted (``recall_note``). A search's own ``params``: ``mode``,
    ``entries``, ``candidates``, ``iterations``, ``budget``, ``early_stop``.

    Documents that are added are linked by an exact search, and so are those that lost neighbours by
    ``compact``: the graph stays what a new one would be. Deleted documents are walked through.
    """

    type_name = "graph"
    metric: Metric | None = "ip"

    def __init__(
        self,
        mode: Annotated[
            Mode, "graph walks from document to document; exhaustive scores all of them."
        ] = "graph",
        *,
        neighbours: Annotated[
            int | None, "Documents that each is linked with, the nearest: 32."
        ] = None,
        build: Annotated[
            Build | None, "How neighbours are found: exact, or faiss, faster for many documents."
        ] = None,
        entries: Annotated[
            int | None, "Random documents that a walk begins with; left out, a twentieth of all."
        ] = None,
        candidates: Annotated[
            int | None, "Of the documents scored last, how many are followed; left out, 10 to 50."
        ] = None,
        iterations: Annotated[int | None, "Steps of a walk, at most: 16."] = None,
        budget: Annotated[
            int | None, "Documents that a walk may score, at most; left out, all it reaches."
        ] = None,
        early_stop: Annotated[
            bool | None, "Ends a walk where a step finds none of the best k."
        ] = None,
        seed: int = 13,
    ) -> None:
        super().__init__()
        check_parameters({"mode": mode})
        given: dict[str, Any] = {
            "neighbours": neighbours, "build": build, "entries": entries, "candidates": candidates,
            "iterations": iterations, "budget": budget, "early_stop": early_stop,
        }  # fmt: skip
        unread = [name for name, value in given.items() if value is not None]
        if mode == "exhaustive" and unread:
            raise ConfigError(
                f"{unread[0]} has no effect with mode: exhaustive; remove it, or set mode: graph"
            )
        self.mode: Mode = mode
        self.seed = whole_number(seed, "seed", 0)
        self.settings = checked_settings(
            entries,
            candidates,
            16 if iterations is None else iterations,
            budget,
            True if early_stop is None else early_stop,
        )
        count = whole_number(NEIGHBOURS if neighbours is None else neighbours, "neighbours", 1)
        self._graph = Neighbours(count, checked_build(build or "exact"))
        self._vectors = DenseRows()
        self._order: Rows | None = None  # in which entry points are taken

    @property
    def width(self) -> int | None:
        """Dimensions of the documents' vectors; None before the first ``add``."""
        return self._vectors.width

    @property
    def neighbours(self) -> int:
        """How many neighbours a document has in the graph."""
        return self._graph.count

    @property
    def searches(self) -> str:
        """How it searches: ``graph`` or ``exhaustive``."""
        return self.mode

    @property
    def size_bytes(self) -> int:
        """Bytes of the vectors, their norms, and the graph once it is built."""
        graph = 4 * self.rows * self.neighbours if self.mode == "graph" else 0
        return self._vectors.nbytes + graph

    @property
    def recall_note(self) -> GraphRecall | None:
        """What the walk was measured to find of the exhaustive best; None where nothing was."""
        return GraphRecall.from_note(self.notes.get(NOTE))

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        if self.mode == "exhaustive":
            return type(self)("exhaustive", seed=self.seed)
        return type(self)(
            self.mode, neighbours=self.neighbours, build=self._graph.build, seed=self.seed,
            **asdict(self.settings),
        )  # fmt: skip

    def spool(self, folder: Path) -> None:
        """Keep the vectors added from now on in a file."""
        self._vectors.spool(folder)

    def measure_recall(self, queries: Any) -> GraphRecall | None:
        """Measure what the walk finds of the exhaustive best, and note it; None if all is scored.

        ``queries`` should be real ones; the first 100 count.
        """
        if self.mode == "exhaustive" or not len(self):
            return None
        asked = self._checked(queries, "queries")[:QUERIES]
        if not len(asked):
            return None
        most = min(max(DEPTHS), len(self))
        exact = self.search(asked, most, params={"mode": "exhaustive"})
        shares = {}
        for depth in DEPTHS:
            found = self.search_counted(asked, min(depth, most))
            shares[depth] = mean_share(found.hits, exact, depth)
        note = GraphRecall(
            shares[10], shares[100], float(found.visited.mean()), len(asked), len(self)
        )
        self.notes[NOTE] = note.as_dict()
        return note

    def search_counted(
        self, vectors: Any, k: int, *, keep: ArrayLike | None = None, **parameters: Any
    ) -> Walked:
        """Return what ``search`` does, and how many documents were scored for each query."""
        queries = self._checked(vectors, "queries")
        return self._counted([self._network(query) for query in queries], k, keep, parameters)

    def search_by(
        self, scorers: Sequence[Scorer], k: int, *, keep: ArrayLike | None = None, **parameters: Any
    ) -> Walked:
        """Search with any functions, one a query.

        ``scorer(rows, vectors)`` returns the scores ``[n]`` of documents, given their rows ``[n]``
        and vectors ``[n, dim]``. ``parameters`` are those of a search.
        """
        return self._counted(scorers, k, keep, parameters)

    def _counted(
        self,
        asked: Sequence[Scorer | QNet],
        k: int,
        keep: ArrayLike | None,
        parameters: Mapping[str, Any],
    ) -> Walked:
        merged = {**self.default_params, **parameters}
        self._parameters.check(merged)
        count, allowed = whole_number(k, "k", 0), self._live.allowed(keep)
        places = min(count, self.rows if allowed is None else int(np.count_nonzero(allowed)))
        if not places:
            return Walked(Hits.missing(len(asked), count), np.zeros(len(asked), np.int64))
        found = [self._best(each, places, allowed, merged) for each in asked]
        visited = np.array([each.visited for each in found], np.int64)
        return Walked(_joined(found, places).padded(count), visited)

    def _checked(self, vectors: Any, what: str) -> Dense:
        if what != "queries":
            return checked_dense(vectors, self.width, what)
        queries = checked_dense(vectors, None, what)
        if self.width is not None:
            QNetShape.from_widths(queries.shape[1], self.width)
        return queries

    @property
    def _parameters(self) -> SearchParameters:
        names = () if self.mode == "exhaustive" else PARAMETERS
        return SearchParameters(names, check_parameters, by_mode=True)

    def _append(self, documents: Dense) -> None:
        self._vectors.append(documents)

    def _changed(self) -> None:
        self._order = None

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        return _joined(
            [self._best(self._network(query), k, allowed, parameters) for query in queries], k
        )

    def _network(self, query: Dense) -> QNet:
        return QNet(query, QNetShape.from_widths(len(query), self.width or len(query)))

    def _best(
        self,
        asked: Scorer | QNet,
        k: int,
        allowed: Mask | None,
        parameters: Mapping[str, Any],
    ) -> Best:
        """Return the best ``k`` documents that are found for one query.

        Q-nets look for them in float32, and those that may be among them are scored again.
        """
        network = asked if isinstance(asked, QNet) else None
        scorer = _quick(asked) if isinstance(asked, QNet) else asked
        best = Best(k, 0.0 if network is None else network.margin)
        settings = self.settings.changed(parameters)
        few = settings.begins_with(self.rows, k)
        alive = self.rows if allowed is None else int(np.count_nonzero(allowed))
        if parameters.get("mode", self.mode) == "exhaustive" or alive <= few:
            self._exhaustive(scorer, best, allowed)
        else:
            self.link()
            self._walk(self._scored(scorer), settings, best, allowed)
        if network is not None and best.margin:
            scores = network.scores(self._vectors.gather(best.rows)[0])
            best.rows, best.scores = best_first(best.rows, scores, k)
        return best

    def _walk(
        self, score: Score, settings: SearchSettings, best: Best, allowed: Mask | None
    ) -> None:
        walk(score, self._graph, self._entries(), settings, best, allowed)

    def _exhaustive(self, scorer: Scorer, best: Best, allowed: Mask | None) -> None:
        chunks = self._vectors.chunks()
        for part in picked(chunks, GATHERED, allowed):
            stop = part.start + part.documents
            places = part.places if len(part.places) else np.arange(part.start, stop)
            vectors = chunks[part.chunk][0]
            block = vectors[part.places] if len(part.places) else vectors[part.start : stop]
            rows = part.first_row + places
            best.take(rows, _checked_scores(scorer(rows, block), len(rows)), None)

    def _scored(self, scorer: Scorer) -> Score:
        """Return a function that scores rows, whose vectors are gathered a block at a time."""

        def score(rows: Rows) -> NDArray[np.float32]:
            parts = [rows[start : start + GATHERED] for start in range(0, len(rows), GATHERED)]
            made = [scorer(part, self._vectors.gather(part)[0]) for part in parts]
            return np.concatenate([
                _checked_scores(scores, len(part))
                for scores, part in zip(made, parts, strict=True)
            ])  # fmt: skip

        return score

    def _entries(self) -> Rows:
        """Return all rows in the order in which walks begin with them."""
        if self._order is None:
            self._order = np.random.default_rng(self.seed).permutation(self.rows)
        return self._order

    def link(self) -> None:
        """Bring the graph up to date with the documents, as the first search or saving does."""
        if self.mode == "graph":
            self._graph.extend(self._vectors)

    def _documents(self, rows: Rows) -> Dense:
        return self._vectors.gather(rows)[0]

    def _keep_only(self, allowed: Mask) -> None:
        self.link()
        self._vectors.keep_only(allowed)
        if self.mode == "graph":
            self._graph.keep_only(allowed, self._vectors)

    def _stored_rows(self) -> int:
        return len(self._vectors)

    def _write(self, folder: Path) -> dict[str, Any]:
        facts: dict[str, Any] = {"mode": self.mode, "seed": self.seed}
        if self.mode == "graph":
            self.link()
            self._graph.write(folder, self._vectors)
            facts |= {"neighbours": self.neighbours, "build": self._graph.build}
            facts["search"] = asdict(self.settings)
        return {**facts, **self._vectors.write(folder)}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        mode, seed = fact(facts, "mode", str, folder), fact(facts, "seed", int, folder)
        own: dict[str, Any] = {}
        if mode == "graph":
            own = {name: facts.get(name) for name in ("neighbours", "build")}
            search = fact(facts, "search", dict, folder)
            own |= {name: search.get(name) for name in SearchSettings.__slots__}
        try:
            index = cls(mode, seed=seed, **own)
        except (ConfigError, TypeError) as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index._vectors = DenseRows.read(folder, facts)
        if mode == "graph":
            graph = index._graph
            index._graph = Neighbours.read(folder, graph.count, graph.build, index._vectors)
        return index


def _quick(network: QNet) -> Scorer:
    return lambda rows, vectors: network.quick_scores(vectors)


def _joined(found: Sequence[Best], k: int) -> Hits:
    hits = Hits.missing(len(found), k)
    for place, each in enumerate(found):
        hits.rows[place, : len(each.rows)] = each.rows
        hits.scores[place, : len(each.rows)] = each.scores
    return hits


def _checked_scores(made: Any, count: int) -> NDArray[np.float32]:
    scores = np.asarray(made, np.float32)
    if scores.shape != (count,):
        raise DataError(
            f"scorer: returned shape {scores.shape} for {count:,} documents; expected [{count:,}]"
        )
    if not np.isfinite(scores).all():
        raise DataError(
            "queries: a score is not a finite number; if it is that of a network, train it with a "
            "lower learning rate"
        )
    return scores
