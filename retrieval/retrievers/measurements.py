"""Measures a pipeline: its latency as a user feels it, and what its gathers miss."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sluice.encoders.foundation.numbers import plural
from sluice.indexing.inverted.settings import EXACT
from sluice.retrieval.pipelines.operators import Cut, Then
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, tracing
from sluice.retrieval.retrievers.corpus.token_scores import exact_params
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding
from sluice.retrieval.runs.run import Ranking, Run

if TYPE_CHECKING:
    from sluice.indexing import GraphIndex, InvertedIndex, TokenIndex


CUTS = (10, 100)
SAMPLE = 100  # queries
SEED = 13


@dataclass(frozen=True, slots=True)
class GatherRecall:
    """What ``stage`` finds of the best documents by an exact search in ``retriever``.

    ``recall`` is the mean over ``queries`` sampled queries, by the number of best documents. Of an
    index that gathers candidates itself it is what was measured when it was saved; ``note`` says
    how.
    """

    stage: str
    retriever: str
    queries: int
    recall: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of_index(cls, name: str, index: TokenIndex | GraphIndex | InvertedIndex) -> Self | None:
        """Return what is noted of an index, None for one that is exact or was not measured.

        One that has outgrown its exact search says so.
        """
        from sluice.indexing import TokenIndex

        if isinstance(index, TokenIndex) and index.advice:
            return cls(name, name, 0, {}, f"{name}: {index.advice}")
        note = index.recall_note
        if note is None or index.searches in ("exact", "exhaustive"):
            return None
        recall = {"10": note.at_10, "100": note.at_100}
        return cls(name, name, note.queries, recall, f"{name}: {note}")

    @classmethod
    def noted(cls, facts: Mapping[str, Any]) -> Self:
        """Return the recall that ``results.json`` has, whatever else is noted there."""
        return cls(**{each.name: facts[each.name] for each in fields(cls) if each.name in facts})

    def __str__(self) -> str:
        if self.note:
            return self.note
        values = ", ".join(
            f"{100 * value:.1f}% of the best {k}" for k, value in self.recall.items()
        )
        asked = plural(self.queries, "sampled query")
        return f"{self.stage}: {values} by an exact search in {self.retriever} ({asked})"


def gathers(stage: Stage) -> bool:
    """Return whether a stage of a pipeline scores candidates as a retriever would all documents."""
    return _approximated(stage) is not None or any(map(gathers, stage.inner))


def _approximated(stage: Stage) -> Stage | None:
    return stage.approximates if isinstance(stage, Rerank) else None


def gather_recalls(
    stage: Stage, queries: Queries, *, sample: int = SAMPLE, seed: int = SEED
) -> list[GatherRecall]:
    """Measure every gather in a pipeline on queries drawn by ``seed``; [] where there is none.

    Costs one more run of the sampled queries, and an exact search of each. What indexes have noted
    of themselves comes first.
    """
    noted = _noted(stage)
    asked = sampled(queries, sample, seed)
    noted += [approximate_recall(each, asked) for each in approximate(stage).values()]
    if not gathers(stage):
        return noted
    with tracing() as spans:
        stage.run(asked, None, max(DEPTH, *CUTS))
    found = noted
    for span in spans[0].walk() if spans else ():
        exact = exact_run(span, asked, max(CUTS))
        if exact is not None and span.result is not None:
            recall = {str(k): _mean_recall(span.result, exact, k) for k in CUTS}
            base: Any = _approximated(span.stage)
            found.append(GatherRecall(span.stage.name, base.name, len(asked), recall))
    return found


def _noted(stage: Stage) -> list[GatherRecall]:
    """Return what the indexes of a pipeline's retrievers have noted, each once."""
    from sluice.indexing import GraphIndex, InvertedIndex, TokenIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    found: dict[str, GatherRecall] = {}
    for part in [*map(_noted, stage.inner)]:
        found |= {each.stage: each for each in part}
    retriever = retriever_of(stage)
    if (
        retriever is None
        or retriever.params.get("mode") == "exhaustive"
        or (EXACT.keys() & retriever.params.keys())
    ):  # not what was measured
        return list(found.values())
    own, name = retriever.index, retriever.name
    shards = own.present if isinstance(own, ShardedIndex) else {"": own}
    for shard, one in shards.items():
        index = one.innermost
        if isinstance(index, TokenIndex | GraphIndex | InvertedIndex):
            noted = GatherRecall.of_index(f"{name}/{shard}" if shard else name, index)
            found |= {} if noted is None else {noted.stage: noted}
    return list(found.values())


def approximate(stage: Stage) -> dict[str, Retriever]:
    """Return a pipeline's retrievers whose inverted index leaves documents out, by name."""
    from sluice.indexing import InvertedIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    found: dict[str, Retriever] = {}
    for part in stage.inner:
        found |= approximate(part)
    retriever = retriever_of(stage)
    if retriever is not None:
        own = retriever.index
        index = (own.first if isinstance(own, ShardedIndex) else own).innermost
        if isinstance(index, InvertedIndex) and index.leaves_out(retriever.params):
            found[retriever.name] = retriever
    return found


def approximate_recall(retriever: Retriever, asked: Mapping[str, str]) -> GatherRecall:
    """Measure what a retriever's search finds of its exact best."""
    name, k = retriever.name, max(CUTS)
    run = retriever.run(asked, None, k)
    exact = retriever.run(asked, None, k, params=EXACT)
    recall = {str(cut): _mean_recall(run, exact, cut) for cut in CUTS}
    return GatherRecall(name, name, len(asked), recall)


def sampled(queries: Queries, sample: int, seed: int) -> dict[str, str]:
    """Return up to ``sample`` queries that are not blank, drawn by ``seed``, in their order."""
    names = [query for query, text in queries.items() if text.strip()]
    if len(names) > sample:
        chosen = np.random.default_rng(seed).choice(len(names), sample, replace=False)
        names = [names[place] for place in np.sort(chosen).tolist()]
    return {query: queries[query] for query in names}


def exact_run(span: Span, queries: Mapping[str, str], k: int) -> Run | None:
    """Return the exact search that a stage approximates, None for a stage that does not."""
    base = _approximated(span.stage)
    retriever = None if base is None else retriever_of(base)
    if base is None or retriever is None:
        return None
    exact = exact_params(retriever.index)
    return retriever.run(queries, None, k, where=base.base_where, params=exact)


def found_text(span: Span, queries: Mapping[str, str], k: int) -> str:
    """Return how many of the ``k`` best a gather found for one query; empty for other stages."""
    exact = exact_run(span, queries, k)
    if exact is None or span.result is None:
        return ""
    (query,) = queries
    best = exact[query]
    return f"{_found(span.result.get(query, best[:0]), best, k)} of {min(k, len(best))}"


def _mean_recall(run: Run, exact: Run, k: int) -> float:
    values = [
        _found(run[query], best, k) / min(k, len(best))
        for query, best in exact.items()
        if len(best)
    ]
    return float(np.mean(values)) if values else 1.0


def _found(ranking: Ranking, best: Ranking, k: int) -> int:
    """Return how many of the first ``k`` are among the ``k`` best, or tie with the last of them."""
    top = best[:k]
    if not len(top):
        return 0
    known, least = set(top.doc_ids), float(top.scores[-1])
    pairs = zip(ranking.doc_ids[:k], ranking.scores[:k].tolist(), strict=True)
    return min(len(top), [doc in known or score == least for doc, score in pairs].count(True))


WARM = 20
ASKED = 10  # documents that a user looks at


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per query: percentiles over ``queries`` queries.

    ``stages`` has the percentiles of each stage's own time, without that of the stages inside it,
    in the order they end; repeated names are numbered. ``bounds`` has, by percentile, between which
    times it lies with a confidence of 95 % each; None where the queries are too few. ``reference``
    is ``reference_ms``, taken in the same process.
    """

    p50: float
    p95: float
    p99: float
    queries: int
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    bounds: dict[str, list[float | None]] = field(default_factory=dict)
    reference: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, figures: dict[str, Any]) -> Latency:
        """Return the latency that ``to_dict`` returned the figures of."""
        return cls(**figures)


def measure_latency(
    stage: Stage,
    queries: Queries,
    *,
    k: int = ASKED,
    sample: int = 200,
    traced: int = 0,
    seed: int = 13,
) -> Latency | None:
    """Time ``stage`` on up to ``sample`` queries, one by one, after some to warm it up.

    These are three, and up to ``WARM`` as long as they take no second: an index may prepare itself
    for single queries once some have come.

    A retriever alone searches ``k`` documents; a pipeline works to its own depths. Its stages are
    timed on the first ``traced`` of these queries. None without queries.
    """
    chosen = list(queries)
    random.Random(f"latency {seed}").shuffle(chosen)
    chosen = chosen[:sample]
    if not chosen:
        return None
    warm = time.perf_counter() + 1
    for place, query in enumerate(chosen[:WARM]):
        if place >= 3 and time.perf_counter() > warm:
            break
        stage.run(alone(queries, query), None, k)
    times = []
    for query in chosen:
        one = alone(queries, query)
        start = time.perf_counter()
        stage.run(one, None, k)
        times.append((time.perf_counter() - start) * 1000)
    # Separately: a traced stage notes facts, which takes time.
    stages: dict[str, list[float]] = defaultdict(list)
    for query in chosen[:traced]:
        with tracing() as spans:
            stage.run(alone(queries, query), None, k)
        for name, seconds in _stages(spans):
            stages[name].append(1000 * seconds)
    if len(stages) < 2:
        stages.clear()  # of a single stage the total is enough
    parts = {name: _percentiles(spent) for name, spent in stages.items()}
    return Latency(
        **_percentiles(times), queries=len(times), stages=parts, bounds=_bounds(times),
        reference=reference_ms(),
    )  # fmt: skip


def _bounds(milliseconds: Sequence[float]) -> dict[str, list[float | None]]:
    """Bound each percentile by two of the times themselves, whatever their distribution.

    Of n times fewer than l are below the quantile q with the binomial probability of l - 1 (David
    and Nagaraja 2003, Order Statistics, section 7.1).
    """
    from scipy.special import bdtr

    ordered, bounds = sorted(milliseconds), dict[str, list[float | None]]()
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        chance = bdtr(np.arange(len(ordered) + 1), len(ordered), share)
        low, high = int((chance <= 0.05).sum()), int((chance < 0.95).sum())
        bounds[name] = [round(ordered[low - 1], 3) if low else None,
                        round(ordered[high], 3) if high < len(ordered) else None]  # fmt: skip
    return bounds


def reference_ms(rounds: int = 30) -> float:
    """Return the shortest time of a fixed task, by which latencies of two machines are compared.

    It does what a search does: a product with 10 MB of vectors, the best of the scores, and a loop
    over Python objects. The median doubles under load where that of single queries hardly moves.
    """
    vectors = np.random.default_rng(SEED).standard_normal((20_000, 128), dtype=np.float32)
    words = [f"word{number % 997}" for number in range(5_000)]
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        best = np.argpartition(vectors @ vectors[0], -100)[-100:]
        counts = Counter(words)
        sorted(best.tolist(), key=lambda row: -counts[words[row % len(words)]])
        times.append((time.perf_counter() - start) * 1000)
    return round(min(times), 4)


def alone(queries: Queries, query: str) -> Queries:
    """Return one of the queries, of the same kind."""
    kind = SelfExcluding if isinstance(queries, SelfExcluding) else dict
    return kind({query: queries[query]})


def _stages(spans: Sequence[Span]) -> list[tuple[str, float]]:
    """Return the name of each stage that does something of its own, and its seconds."""
    seen: Counter[str] = Counter()
    times = []
    for span in _working(spans):
        name = span.stage.name
        seen[name] += 1
        number = f" #{seen[name]}" if seen[name] > 1 else ""
        times.append((name + number, span.own_seconds))
    return times


def _working(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield all spans but those of ``>>`` and ``%``, which do nothing themselves."""
    for span in spans:
        yield from _working(span.inner)
        if not isinstance(span.stage, Then | Cut):
            yield span


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    values = np.percentile(milliseconds, [50, 95, 99])
    names = ("p50", "p95", "p99")
    return {name: round(float(value), 3) for name, value in zip(names, values, strict=True)}
