"""Lists the indexes the autopilot tries, each with its settings from fast to thorough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.indexing.checks import Dense
from sluice.indexing.index import Index
from sluice.indexing.storage.exact_scores import Metric

if TYPE_CHECKING:
    from sluice.indexing.flat.compressed_rows import FirstPass

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

    yield Candidate("flat", "flat", lambda: FlatIndex(metric), exact=True)
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
    from sluice.indexing.graph.query_graph import QueryGraphIndex

    def make() -> Index:
        index = QueryGraphIndex(build="exact" if count <= LINKED_EXACTLY else "faiss")
        index.learn(training())
        return index

    sizes = tuple({"candidates": size} for size in _ladder(max(16, k), 1024))
    return Candidate("query_graph", "query_graph", make, sizes, growth="log")


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
