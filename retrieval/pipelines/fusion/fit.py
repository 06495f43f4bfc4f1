"""Fits fusion weights, normalisation and method on judged queries, over existing runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.evaluation.fitted_file import read_fitted, write_fitted
from sluice.retrieval.evaluation.judgements import Judgements
from sluice.retrieval.evaluation.measures import Measure, compute, parse_measure, settled
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion, check_normalisation
from sluice.retrieval.runs.pool import LARGEST, Array, Places, Pool
from sluice.retrieval.runs.run import Run

STEPS = 20  # of the lattice of weights, fewer where that were more than ``MOST``
MOST = 231
FOLDS = 5

Weights = tuple[float, ...]
Columns = list[list[Array]]  # by block, by run: what it gives each document


class _Block(NamedTuple):
    """Some queries: their pool, its documents by id descending, and their judgements.

    ``by_id`` are places in the pool; all that follows is in its order: ``found`` ``[runs,
    documents]``, the query and grade of each document, and whether it was judged at all.
    """

    pool: Pool
    by_id: Places
    found: NDArray[np.bool_]
    owner: Places
    grades: Places
    judged: NDArray[np.bool_]
    judged_query: Places
    judged_grade: Places


class FusionSearch:
    """Values of fusions of some runs on judged queries; ``values`` has all computed so far."""

    def __init__(self, runs: Sequence[Run], qrels: Qrels, measure: Measure) -> None:
        grades = [grade for judged in qrels.values() for grade in judged.values()]
        self.runs, self.measure = runs, settled(measure, np.array(grades, np.int64))
        self.queries = len(qrels)
        self.values: dict[Fusion, Array] = {}  # by query
        self._lattice: list[Fusion] = []
        self._columns: dict[Fusion, Columns] = {}
        there = [query for query in qrels if any(query in run for run in runs)]
        self._blocks = [_block(pool, qrels) for pool in Pool.blocks(runs, there)]

    def best(self, fusion: Fusion) -> Fusion:
        """Return the fusion with the best weights: of a lattice, then in smaller steps."""
        self._columns.clear()  # of the fusion before
        steps = _steps(len(self.runs))
        even = (1.0 / len(self.runs),) * len(self.runs)
        tried = [replace(fusion, weights=w) for w in (even, *_lattice(len(self.runs), steps))]
        self._lattice += tried
        best, step = max(tried, key=self.merit), 1.0 / (2 * steps)
        while step >= 1.0 / (8 * steps):
            near = [replace(best, weights=w) for w in _neighbours(best.weights or even, step)]
            better = max(near, key=self.merit)
            if self.merit(better) > self.merit(best):
                best = better
            else:
                step /= 2
        return best

    def merit(self, fusion: Fusion) -> tuple[float, float]:
        """Return what fusions are compared by: the mean, then how even the weights are."""
        weights = np.array(fusion.weights)
        return self.mean(fusion), -round(float(np.var(weights)), 9)

    def mean(self, fusion: Fusion) -> float:
        """Return the mean over the judged queries; one that no run has counts 0."""
        return float(self._values(fusion).sum()) / self.queries

    def held_out(self) -> float | None:
        """Return the mean over queries scored by the best of the lattice on the other folds."""
        values = np.array([self.values[fusion] for fusion in self._lattice])
        count = values.shape[1]
        folds = min(FOLDS, count)
        if folds < 2:
            return None
        evenness = np.array([self.merit(fusion)[1] for fusion in self._lattice])
        total = 0.0
        for fold in range(folds):
            held = np.arange(count) % folds == fold
            means = values[:, ~held].mean(axis=1)
            total += float(values[np.lexsort((-evenness, -means))[0], held].sum())
        return total / self.queries

    def _values(self, fusion: Fusion) -> Array:
        if fusion not in self.values:
            columns = self._columns_of(replace(fusion, weights=None))
            parts = [
                self._block_values(fusion, block, given)
                for block, given in zip(self._blocks, columns, strict=True)
            ]
            self.values[fusion] = np.concatenate(parts)
        return self.values[fusion]

    def _columns_of(self, fusion: Fusion) -> Columns:
        if fusion not in self._columns:
            self._columns[fusion] = []
            for block in self._blocks:
                columns = []
                for run, lists in enumerate(block.pool.lists):
                    shares = fusion.shares(lists, fusion.minimum_of(run))
                    spread = block.pool.spread(lists, shares.found, shares.missing)
                    columns.append(spread[block.by_id])
                self._columns[fusion].append(columns)
        return self._columns[fusion]

    def _block_values(self, fusion: Fusion, block: _Block, columns: Sequence[Array]) -> Array:
        used = fusion.used(len(self.runs))
        sums = np.zeros(len(block.by_id))
        for run in used:
            sums += fusion.weight(run) * columns[run]
        if METHODS[fusion.method].multiplied:
            sums *= block.found[used].sum(axis=0)
        entered = np.any(block.found[used], axis=0)  # the others are of runs of weight 0
        scores = np.where(entered, np.clip(sums, -LARGEST, LARGEST), -np.inf).astype(np.float32)
        order = block.pool.order(scores)
        starts = np.cumsum(block.pool.sizes) - block.pool.sizes
        hits = np.flatnonzero(block.judged[order] & entered[order])
        places = order[hits]
        query = block.owner[places]
        return compute(
            self.measure,
            Judgements(
                hit_query=query,
                hit_rank=hits - starts[query],
                hit_grade=block.grades[places],
                judged_query=block.judged_query,
                judged_grade=block.judged_grade,
                retrieved=np.bincount(block.owner[entered], minlength=len(block.pool.queries)),
            ),
        )


def _block(pool: Pool, qrels: Qrels) -> _Block:
    owner = np.repeat(np.arange(len(pool.queries)), pool.sizes)
    ids = pool.ids(np.arange(len(pool.at)))
    places = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    by_id = np.array(places, np.int64)
    by_id = by_id[np.argsort(owner[by_id], kind="stable")]
    grades: list[Mapping[str, int]] = [qrels[query] for query in pool.queries]
    known = [grades[query].get(doc) for query, doc in zip(owner.tolist(), ids, strict=True)]
    judged = np.array([grade is not None for grade in known], np.bool_)
    values = np.array([grade or 0 for grade in known], np.int64)
    found = [pool.spread(lists, np.ones(len(lists.scores)))[by_id] > 0 for lists in pool.lists]
    return _Block(
        pool=pool,
        by_id=by_id,
        found=np.array(found),
        owner=owner,
        grades=values[by_id],
        judged=judged[by_id],
        judged_query=np.repeat(np.arange(len(grades)), [len(each) for each in grades]),
        judged_grade=np.array([grade for each in grades for grade in each.values()], np.int64),
    )


def _steps(runs: int) -> int:
    steps = STEPS
    while steps > 1 and math.comb(steps + runs - 1, runs - 1) > MOST:
        steps -= 1
    return steps


def _lattice(runs: int, steps: int) -> Iterator[Weights]:
    """Yield all weights that are multiples of 1 / ``steps`` and add up to 1."""

    def parts(left: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (left,)
            return
        for first in range(left + 1):
            for rest in parts(left - first, count - 1):
                yield (first, *rest)

    for found in parts(steps, runs):
        yield tuple(round(part / steps, 6) for part in found)


def _neighbours(weights: Weights | Sequence[float], step: float) -> Iterator[Weights]:
    """Yield the weights with ``step`` moved from one run to another."""
    for giver, given in enumerate(weights):
        for taker in range(len(weights)):
            if taker != giver and given >= step:
                moved = list(weights)
                moved[giver], moved[taker] = given - step, moved[taker] + step
                yield tuple(round(weight, 6) for weight in moved)


KIND, EARLIER = "fusion", "sluice-fusion"  # the latter before files had a version


@dataclass(frozen=True, slots=True)
class FusionFit:
    """A fusion with the weights that did best on judged queries, and how well it did there.

    ``value`` is the mean of ``measure`` with it, ``equal`` with equal weights (of the best method),
    ``single`` with each run alone. ``held_out`` is an honest ``value``: each fifth of the queries
    is scored by what is best on the others; None for one query. ``tried`` counts the fusions that
    were compared.
    """

    fusion: Fusion
    names: tuple[str, ...]
    measure: str
    value: float
    held_out: float | None
    equal: float
    single: tuple[float, ...]
    queries: int
    tried: int

    def fuse(self, runs: Sequence[Run]) -> Run:
        """Fuse runs, given in the order of those it was fitted to."""
        return self.fusion.fuse(runs)

    def expression(self, *names: str) -> str:
        """Return the pipeline's text, its stages called ``names`` (those fitted, unless given)."""
        used = names or self.names
        if len(used) != len(self.names):
            raise ConfigError(f"expression: {len(used)} names for {len(self.names)} stages")
        options = {"weights": list(self.fusion.weights or ()), **_options(self.fusion)}
        given = [f"{name}={value!r}" for name, value in options.items()]
        call = f"{self.fusion.method}({', '.join(used)}, "
        if self.fusion.method in ("comb_sum", "comb_mnz"):
            call = f"fused({', '.join(used)}, method={self.fusion.method!r}, "
        return call + ", ".join(given) + ")"

    def save(self, path: str | Path) -> None:
        """Write it as JSON, in one step; ``fitted='path'`` of an expression reads it."""
        write_fitted(path, KIND, asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``ConfigError`` for a file that is missing or another one."""
        maker = "`sluice fit fusion` (in Python fit_fusion(runs, qrels).save(path))"
        values = read_fitted(path, KIND, maker=maker, earlier=EARLIER)
        try:
            fusion = Fusion(**values.pop("fusion"))
            names, single = tuple(values.pop("names")), tuple(values.pop("single"))
            known = {each.name for each in fields(cls)}
            others = {name: value for name, value in values.items() if name in known}
            return cls(fusion=fusion, names=names, single=single, **others)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: not the file of a fitted fusion ({error}); fit it again"
            ) from None


def fit_fusion(
    runs: Sequence[Run],
    qrels: Qrels,
    measure: str | Measure = "nDCG@10",
    *,
    methods: Sequence[str] = ("weighted", "rrf"),
    normalise: Sequence[str] | None = None,
    minimum: float | Sequence[float | None] | None = None,
) -> FusionFit:
    """Choose weights, and a method with its options, by the mean of a measure on judged queries.

    Every method is tried with every option of its grid (``normalise``: with these instead) and
    with weights that add up to 1: a lattice of up to 231, both ends included, then ever smaller
    steps around the best. So the value is never below that of a run alone, or of equal weights;
    of equals, weights nearer to equal are taken. Give the queries of a dev or train split. A
    judged query that the runs lack counts 0. The cost is a sort of every query's documents for
    each fusion tried: about a second for 300 queries of two lists of 100.

    Raises ``ConfigError`` for an unknown name and ``DataError`` if no query is judged.
    """
    runs, measure = list(runs), parse_measure(measure)
    count = len(runs)
    if count < 2:
        raise ConfigError(f"fit_fusion: {count} runs; expected two or more")
    judged = {query: grades for query, grades in qrels.items() if grades}
    if not any(query in run for run in runs for query in judged):
        raise DataError("fit_fusion: no query of the runs has judgements; are the ids the same?")
    search = FusionSearch(runs, judged, measure)
    fusions = list(_fusions(methods, normalise, minimum))
    fusion = max((search.best(each) for each in fusions), key=search.merit)
    alone = [tuple(float(i == run) for i in range(count)) for run in range(count)]
    return FusionFit(
        fusion=fusion,
        names=tuple(run.name for run in runs),
        measure=str(measure),
        value=search.mean(fusion),
        held_out=search.held_out(),
        equal=search.mean(replace(fusion, weights=(1.0 / count,) * count)),
        single=tuple(search.mean(replace(fusion, weights=weights)) for weights in alone),
        queries=len(judged),
        tried=len(search.values),
    )


def _fusions(
    methods: Sequence[str],
    normalise: Sequence[str] | None,
    minimum: float | Sequence[float | None] | None,
) -> Iterator[Fusion]:
    """Yield the methods with the options to try, without weights."""
    names = [methods] if isinstance(methods, str) else list(methods)
    if not names:
        raise ConfigError(f"fit_fusion: no methods; known: {', '.join(METHODS)}")
    norms = [normalise] if isinstance(normalise, str) else normalise
    for name in norms or ():
        check_normalisation(name)
    least: Any = tuple(minimum) if isinstance(minimum, (list, tuple)) else minimum
    for name in names:
        if name not in METHODS:
            raise ConfigError(
                f"fit_fusion: method {name!r}; known: {', '.join(METHODS)}{suggest(name, METHODS)}"
            )
        grid: Sequence[Mapping[str, Any]] = METHODS[name].grid
        if norms and any("normalise" in options for options in grid):
            grid = [{"normalise": each} for each in norms]
        for options in grid:
            yield Fusion(name, minimum=least, **options)


def _options(fusion: Fusion) -> dict[str, Any]:
    """Return the options of a fusion, beside method and weights, that are not the defaults."""
    usual = Fusion(fusion.method)
    names = [field.name for field in fields(Fusion) if field.name not in ("method", "weights")]
    found = {name: getattr(fusion, name) for name in names}
    changed = {name: value for name, value in found.items() if value != getattr(usual, name)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in changed.items()}
