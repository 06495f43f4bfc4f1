"""Lists the indexes the autopilot tries, and measures recall and latency of one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Hits, Rows
from sluice.indexing.index import Index
from sluice.indexing.storage.exact_scores import Metric

if TYPE_CHECKING:
    from sluice.indexing.flat.compressed_rows import FirstPass


CHUNK = 16_384  # vectors of one chunk of an array
MERGED = 1 << 16  # vectors searched exactly at a time


class Vectors(Protocol):
    """The dense vectors of a corpus in row order, never all in memory."""

    def __len__(self) -> int:
        """Return the number of vectors."""
        ...

    def __iter__(self) -> Iterator[Dense]:
        """Yield chunks ``[n, dim]`` from the first row to the last; every time anew."""
        ...

    def sample(self, count: int, seed: int) -> Dense:
        """Return ``count`` vectors drawn without replacement; or all, if there are fewer."""
        ...


class ArrayVectors:
    """One array ``[n, dim]`` as ``Vectors``."""

    def __init__(self, vectors: Dense) -> None:
        self._vectors = checked_dense(vectors, None, "vectors")

    def __len__(self) -> int:
        return len(self._vectors)

    def __iter__(self) -> Iterator[Dense]:
        for start in range(0, len(self._vectors), CHUNK):
            yield self._vectors[start : start + CHUNK]

    def sample(self, count: int, seed: int) -> Dense:
        """Return ``count`` rows in ascending order; or all, if there are fewer."""
        if count >= len(self):
            return self._vectors
        rows = np.random.default_rng(seed).choice(len(self), count, replace=False)
        return self._vectors[np.sort(rows)]


def vectors_of_rows(vectors: Vectors, rows: Rows) -> Dense:
    """Return the vectors of ascending ``rows``, in one pass."""
    parts, first = [], 0
    for chunk in vectors:
        start, stop = np.searchsorted(rows, (first, first + len(chunk)))
        parts.append(np.asarray(chunk[rows[start:stop] - first], np.float32))
        first += len(chunk)
    return np.concatenate(parts)


def exact_hits(vectors: Vectors, queries: Dense, k: int, metric: Metric) -> Hits:
    """Return the ``k`` best vectors of each query, as ``FlatIndex`` would, a part at a time."""
    best, first = Hits.missing(len(queries), k), 0
    part = FlatIndex(metric)

    def merged() -> Hits:
        hits = part.search(queries, k)
        rows = np.concatenate([best.rows, np.where(hits.rows >= 0, hits.rows + first, -1)], axis=1)
        scores = np.concatenate([best.scores, hits.scores], axis=1)
        return Hits(rows, scores).sorted(k)

    for chunk in vectors:
        part.add(chunk)
        if part.rows >= MERGED:
            best, first, part = merged(), first + part.rows, FlatIndex(metric)
    return merged() if part.rows else best


CONFIDENCE = 1.645  # standard deviations: one-sided 95%
TIED = 1e-6  # relative difference of scores that float32 sums cannot tell apart
WARM = 3  # searches before the timed ones
TIMED = 100  # queries timed one at a time, at most
LEAST_TIMED = 5
SECONDS = 0.5  # after which no more are timed


@dataclass(frozen=True, slots=True)
class Judge:
    """Some queries and what exact search finds for each.

    ``own`` is the row of a query that is itself a document, -1 otherwise: that row does not count.
    """

    queries: Dense
    own: Rows
    accepted: list[Rows]  # rows at least as good as the k-th best
    expected: NDArray[np.int64]  # k, or fewer in a smaller corpus
    k: int

    @classmethod
    def exact(cls, vectors: Vectors, queries: Dense, own: Rows, k: int, metric: Metric) -> Self:
        """Search the vectors exactly; a document tied with the k-th best is as good as it."""
        hits = exact_hits(vectors, queries, min(2 * k + 16, len(vectors)), metric)
        accepted, counts = [], []
        for rows, scores, self_row in zip(hits.rows, hits.scores, own, strict=True):
            real = (rows >= 0) & (rows != self_row)
            rows, scores = rows[real], scores[real]
            count = min(k, len(rows))
            least = scores[count - 1] if count else 0.0
            accepted.append(rows[scores >= least - TIED * abs(least)])
            counts.append(count)
        return cls(queries, own, accepted, np.array(counts, dtype=np.int64), k)

    @classmethod
    def unanswered(cls, queries: Dense, k: int) -> Self:
        """Return queries that only time an index."""
        none = np.full(len(queries), -1, dtype=np.int64)
        return cls(queries, none, [none[:0]] * len(queries), np.zeros(len(queries), np.int64), k)

    def __len__(self) -> int:
        return len(self.queries)

    def split(self, seed: int) -> tuple[Self, Self]:
        """Return two random halves: to choose by, and to check with."""
        order = np.random.default_rng(seed).permutation(len(self))
        middle = (len(order) + 1) // 2
        return self._only(order[:middle]), self._only(order[middle:])

    def _only(self, places: NDArray[np.int64]) -> Self:
        return type(self)(
            self.queries[places],
            self.own[places],
            [self.accepted[place] for place in places],
            self.expected[places],
            self.k,
        )

    def recalls(self, index: Index, params: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return each query's share of its ``k`` best that the index finds."""
        extra = int((self.own >= 0).any())
        hits = index.search(self.queries, self.k + extra, params=params).rows
        shares = np.ones(len(self))
        for place, (rows, own) in enumerate(zip(hits, self.own, strict=True)):
            others = rows[(rows >= 0) & (rows != own)][: self.k]
            expected = int(self.expected[place])
            if expected:
                good = int(np.isin(others, self.accepted[place]).sum())
                shares[place] = min(good, expected) / expected
        return shares

    def latency(self, index: Index, params: Mapping[str, Any]) -> tuple[float, float]:
        """Return milliseconds a query: the median of one at a time, and the mean in a batch."""
        for place in range(min(WARM, len(self))):
            index.search(self.queries[place : place + 1], self.k, params=params)
        times: list[float] = []
        start = time.perf_counter()
        for place in range(min(TIMED, len(self))):
            before = time.perf_counter()
            index.search(self.queries[place : place + 1], self.k, params=params)
            times.append(time.perf_counter() - before)
            if len(times) >= LEAST_TIMED and time.perf_counter() - start > SECONDS:
                break
        index.search(
            self.queries[: 2 * WARM], self.k, params=params
        )  # batches have code of their own
        before = time.perf_counter()
        index.search(self.queries, self.k, params=params)
        batch = (time.perf_counter() - before) / max(1, len(self))
        return 1000 * float(np.median(times)), 1000 * batch


def lower_bound(shares: NDArray[np.float64], k: int) -> float:
    """Return the lower end of the one-sided 95% interval of the mean recall (Wilson, 1927).

    The trials are places of hits, but those of one query rise and fall together; they count as
    many as would give the spread that is seen between queries (Korn and Graubard, 1998): between
    the number of queries and ``k`` times it.
    """
    queries = len(shares)
    if not queries:
        return 0.0
    mean = float(shares.mean())
    spread = float(shares.var(ddof=1)) / queries if queries > 1 else mean * (1 - mean)
    trials = mean * (1 - mean) / spread if spread > 0 else float(queries * k)
    trials = min(max(trials, float(queries)), float(queries * k))
    square = CONFIDENCE**2 / trials
    centre = mean + square / 2
    radius = CONFIDENCE * math.sqrt(mean * (1 - mean) / trials + square / (4 * trials))
    return max(0.0, (centre - radius) / (1 + square))


POINTS_PER_LIST = 40  # training vectors for one centroid; with fewer, k-means is unreliable
DEPTHS = (100, 300, 1_000, 3_000, 10_000)  # documents that one-bit codes leave to be scored
LINKED_EXACTLY = 20_000  # vectors up to which a graph's neighbours are those of exact search
FEWEST = 1_000  # vectors below which inverted files and quantisers are not tried
Setting = Mapping[str, Any]

NO_SETTING: tuple[Setting, ...] = ({},)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to make an index for a number of vectors; ``kind`` is the same for every number."""

    kind: str
    name: str
    make: Callable[[], Index]
    settings: tuple[Setting, ...] = field(default=NO_SETTING)  # rising recall, rising cost
    training: int = 0  # sample vectors for ``train``
    growth: str = "linear"  # of the latency with the number of vectors
    exact: bool = False

    def slower(self, before: int, after: int) -> float:
        """Return the factor of the latency from ``before`` to ``after`` vectors."""
        if self.growth == "log":
            return math.log(max(after, 2)) / math.log(max(before, 2))
        if self.growth == "root":  # lists grow as the root, and as many are probed
            return math.sqrt(after / before)
        return after / before


def candidates(
    count: int,
    width: int,
    metric: Metric,
    *,
    k: int,
    bytes_each: float = math.inf,
    training: Callable[[], Dense] | None = None,
) -> Iterator[Candidate]:
    """Yield what is worth trying for ``count`` vectors, exact search first.

    ``bytes_each`` is the memory a vector may take; what takes more is left out, except exact
    search, the baseline. ``OPQ`` takes long to train, and is tried only where scalar quantisers
    are too large. ``training`` returns training queries, which link a ``query_graph``; without them
    there is none, nor for another metric than inner products.
    """
    from sluice.indexing.faiss.index import FaissIndex
    from sluice.indexing.flat.index import FlatIndex

    def fits(bytes_per_vector: float) -> bool:
        return bytes_per_vector <= bytes_each

    def rescored(factory: str, times: int) -> Callable[[], Index]:
        return lambda: FaissIndex(factory, metric=metric, rescore=times)

    yield Candidate(FlatIndex.type_name, FlatIndex.type_name, lambda: FlatIndex(metric), exact=True)
    yield from _first_passes(metric, width, fits)
    if fits(4 * width + 256):
        efs = tuple({"efSearch": size} for size in _ladder(max(16, k), 1024))
        graph = "HNSW32"
        yield Candidate(graph, graph, lambda: FaissIndex(graph, metric=metric), efs, growth="log")
    if training is not None and metric == "ip" and fits(4 * width + 512):
        yield _query_graph(count, k, training)
    if count < FEWEST:
        return
    lists = max(4, min(int(4 * math.sqrt(count)), count // POINTS_PER_LIST))
    sample = min(count, POINTS_PER_LIST * max(lists, 256))
    probes = _ladder(1, lists)
    if fits(4 * width + 8):
        name = f"IVF{lists},Flat"
        yield Candidate(
            "IVF,Flat",
            name,
            lambda: FaissIndex(name, metric=metric),
            tuple({"nprobe": probe} for probe in probes),
            sample,
            "root",
        )
    for kind, factory, times in _quantised(lists, width, count, fits):
        settings = [{"nprobe": probe, "rescore": times} for probe in probes]
        settings.append({"nprobe": lists, "rescore": 4 * times})
        yield Candidate(
            kind,
            f"{factory} + rescoring",
            rescored(factory, times),
            tuple(settings),
            sample,
            "root",
        )


def _query_graph(count: int, k: int, training: Callable[[], Dense]) -> Candidate:
    """Return a graph that training queries link, for queries unlike documents."""
    from sluice.indexing.own.graph.query_graph import QueryGraphIndex

    def make() -> Index:
        index = QueryGraphIndex(build="exact" if count <= LINKED_EXACTLY else "faiss")
        index.learn(training())
        return index

    sizes = tuple({"candidates": size} for size in _ladder(max(16, k), 1024))
    name = QueryGraphIndex.type_name
    return Candidate(name, name, make, sizes, growth="log")


def _quantised(
    lists: int, width: int, count: int, fits: Callable[[float], bool]
) -> Iterator[tuple[str, str, int]]:
    """Yield kinds and factories of compressed vectors, and how many times ``k`` to rescore."""
    if fits(width + 8):
        yield "IVF,SQ8", f"IVF{lists},SQ8", 4
    if width % 2 == 0 and fits(width / 4 + 8):
        yield "IVF,PQ4", f"IVF{lists},PQ{width // 2}x4fs", 20
    codes = next((m for m in range(max(1, width // 8), 0, -1) if width % m == 0), 1)
    if not fits(width + 8) and count >= POINTS_PER_LIST * 256:
        yield "OPQ,IVF,PQ", f"OPQ{codes},IVF{lists},PQ{codes}", 40


def _first_passes(metric: Metric, width: int, fits: Callable[[float], bool]) -> Iterator[Candidate]:
    """Yield ``FlatIndex`` with first passes: two are exact, one bit a dimension is not."""
    from sluice.indexing.flat.index import FlatIndex

    def flat_with(first_pass: FirstPass) -> Callable[[], Index]:
        return lambda: FlatIndex(metric, first_pass=first_pass)

    exact: tuple[tuple[FirstPass, int], ...] = (("bf16", 2 * width), ("int8", width))
    for first_pass, size in exact:
        if fits(size):
            name = f"flat {first_pass}"
            yield Candidate(name, name, flat_with(first_pass), exact=True)
    name, settings = "flat binary", tuple({"depth": depth} for depth in DEPTHS)
    yield Candidate(name, name, flat_with("binary"), settings)


def _ladder(least: int, most: int) -> tuple[int, ...]:
    """Return ``least``, then doubled until ``most``, which is the last."""
    steps = []
    while least < most:
        steps.append(least)
        least *= 2
    return (*steps, most)
