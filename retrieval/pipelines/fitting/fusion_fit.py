"""Fits fusion weights, normalisation and method on judged queries, over existing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fitting.choice import (
    Gain,
    QueryFit,
    Sample,
    Settings,
    Unfitted,
    gain_over,
    judged_queries,
)
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion, check_normalisation
from sluice.retrieval.pipelines.fusion.search import FusionSearch
from sluice.retrieval.pipelines.operators import Fuse
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.run import Run

NEAR = 100  # documents of each run that are looked at, and judged ones

METHODS_TRIED: Final = ("weighted",)

# Where no judgements say which fusion to take it is one for all collections. Lists are weighted
# query by query by how steep they are, and lists of words count two for three of the others. The
# shares and the exponent were found on train and dev queries of four collections, each left out in
# turn (docs/decisions/019): never below equal weights on the one left out.
LEXICAL, OTHER = 0.4, 0.6  # the shares of a list by BM25 and of another


class UnfittedFusion(Unfitted):
    """A fusion of ``stages`` whose method, weights and parts are open.

    ``depth`` is how many hits of each part are fused, None: all that it finds.
    """

    inner: tuple[Stage, ...] = ()
    most_queries = 1000

    def __init__(
        self,
        stages: Sequence[Stage],
        measure: str = "nDCG@10",
        *,
        depth: int | None = None,
        queries: int | None = None,
        methods: Sequence[str] = METHODS_TRIED,
    ) -> None:
        self.inner = tuple(stages)
        self.measure, self.depth, self.queries = measure, depth, queries
        self.methods = tuple(methods)
        self.name = f"fitted({', '.join(stage.name for stage in self.inner)})"

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the open fusion of other stages."""
        return UnfittedFusion(
            inner, self.measure, depth=self.depth, queries=self.queries, methods=self.methods
        )

    def fit(self, sample: Sample, measure: Measure, first: Stage | None) -> FusionFit:
        """Return the fusion that the judged queries support."""
        head = None if first is None else sample.run(first)
        runs = [
            Run(dict(sample.run(part, head, self.depth)), name=part.name) for part in self.inner
        ]
        fit = fit_fusion(runs, sample.qrels, measure, methods=self.methods)
        return replace(fit, parts=tuple(part.name for part in self.inner))

    def unjudged(self, measure: Measure, reason: str, first: Stage | None) -> FusionFit:
        """Return the fusion for all collections."""
        names = tuple(part.name for part in self.inner)
        shares = [LEXICAL if part.lexical else OTHER for part in self.inner]
        fusion = Fusion("weighted", [round(share / sum(shares), 4) for share in shares], "steep")
        why = f"took {shown(fusion, names)}, the choice for all collections: {reason}"
        return FusionFit(fusion, names, str(measure), why=why, judged=False, parts=names)

    def closed(self, fit: QueryFit) -> Stage | None:
        """Return the fusion; parts of weight 0 are not run, one part stands alone."""
        if not isinstance(fit, FusionFit):
            return None
        fit.check_parts([part.name for part in self.inner])
        used = fit.fusion.used(len(self.inner))
        parts = [self.inner[place] for place in used]
        parts = parts if self.depth is None else [part % self.depth for part in parts]
        return parts[0] if len(parts) == 1 else Fuse(parts, method=fit.fusion.of_parts(used))


@dataclass(frozen=True, slots=True)
class FusionFit(QueryFit):
    """A fusion with the weights that judged queries support, and how well it did there.

    ``value`` is the mean of ``measure`` with it, ``equal`` with equal weights (of the same method),
    ``single`` with each run alone. ``held_out`` is an honest ``value``: each fifth of the queries
    is scored by what is chosen on the others; None for one query. ``gain`` is how far that is above
    the best single run, with a 95 % bootstrap interval. ``tried`` counts the fusions that were
    compared, ``why`` says in a sentence what was chosen. Without judgements (``judged`` is false)
    it has no values. ``names`` are those of the runs, ``parts`` of the stages they are of, where
    these are known; ``origin`` is where the fit was made.
    """

    KIND: ClassVar = "fusion"
    TITLE: ClassVar = "fusion"
    MAKER: ClassVar = "`sluice fit fusion` (in Python fit_fusion(runs, qrels).save(path))"
    EARLIER: ClassVar = "sluice-fusion"  # before files had a version

    fusion: Fusion
    names: tuple[str, ...]
    measure: str
    value: float | None = None
    held_out: float | None = None
    equal: float | None = None
    single: tuple[float, ...] = ()
    queries: int = 0
    tried: int = 1
    gain: Gain | None = None
    why: str = ""
    judged: bool = True
    parts: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    def fuse(self, runs: Sequence[Run]) -> Run:
        """Fuse runs, given in the order of those it was fitted to."""
        return self.fusion.fuse(runs)

    def expression(self, *names: str) -> str:
        """Return the pipeline's text, its stages called ``names`` (those fitted, unless given)."""
        used = names or self.names
        if len(used) != len(self.names):
            raise ConfigError(f"expression: {len(used)} names for {len(self.names)} stages")
        options = {"weights": list(self.fusion.weights or ()), **_options(self.fusion)}
        arguments = [f"{name}={value!r}" for name, value in options.items()]
        call = f"{self.fusion.method}({', '.join(used)}, "
        if self.fusion.method in ("comb_sum", "comb_mnz"):
            call = f"fused({', '.join(used)}, method={self.fusion.method!r}, "
        return call + ", ".join(arguments) + ")"

    @property
    def shown(self) -> str:
        """The choice in a few words: ``weighted(bm25 0.35, dense 0.65)``, a part alone by name."""
        return shown(self.fusion, self.names)

    def check_parts(self, stages: Sequence[str]) -> None:
        """Raise ``ConfigError`` unless it was fitted to stages of these names, in this order.

        A pipeline may go by its own name or by what it does, its stage's.
        """
        count = len(self.fusion.weights or ())
        if count != len(stages):
            raise ConfigError(
                f"was fitted to {count} stages ({', '.join(self.names)}), but {len(stages)} are "
                "fused here; fit it again"
            )
        known = zip(stages, self.parts, self.names, strict=True) if self.parts else ()
        if any(stage not in names for stage, *names in known):
            raise ConfigError(
                f"was fitted to {', '.join(self.parts)} and not to {', '.join(stages)}: it is the "
                "file of another pipeline; fit it again"
            )

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        parsed = QueryFit._parsed(values)
        lists = {name: tuple(values.get(name, ())) for name in ("names", "single")}
        if len(parsed["parts"]) not in (0, len(lists["names"])):
            raise TypeError("as many parts as names are expected")
        return {**parsed, **lists, "fusion": Fusion(**values["fusion"])}


def shown(fusion: Fusion, names: Sequence[str]) -> str:
    """Return a fusion in a few words: ``weighted(bm25 0.35, dense 0.65)``."""
    weights = fusion.weights or (1.0,) * len(names)
    parts = [(name, weight) for name, weight in zip(names, weights, strict=True) if weight > 0]
    if len(parts) == 1:
        return parts[0][0]
    options = [f"{name}={value!r}" for name, value in _options(fusion).items()]
    return f"{fusion.method}({', '.join([*(f'{n} {w:.2f}' for n, w in parts), *options])})"


def fit_fusion(
    runs: Sequence[Run],
    qrels: Qrels,
    measure: str | Measure = "nDCG@10",
    *,
    methods: Annotated[
        Sequence[str],
        "METHOD",
        "Try this method: weighted, rrf, rank_biased, comb_sum or comb_mnz; may be repeated.",
    ] = METHODS_TRIED,
    normalise: Annotated[
        Sequence[str] | None,
        "NAME",
        "Try this normalisation of scores: min-max, z-score, theoretical-min, pyserini, steep or "
        "none; may be repeated.",
    ] = None,
    minimum: float | Sequence[float | None] | None = None,
) -> FusionFit:
    """Choose weights, and a method with its options, by the mean of a measure on judged queries.

    Every method is tried with every option of its grid (``normalise``: with these instead) and
    with weights that add up to 1: a lattice of up to 231, both ends included. Of these not the best
    are taken but those that the queries support, by smoothed bagging (``fitting.choice``); the best
    single run, or equal weights, are kept instead where their mean is higher. So the value is never
    below that of a run alone, or of equal weights. Of equal means (to nine digits) the weights from
    bagging are taken, by the earliest method, then equal ones, then the first run alone; each
    sample of the bagging takes of equals those nearest to equal weights.
    Give the queries of a dev or train split. A judged query that the runs lack counts 0.
    Documents beyond the first ``NEAR`` of all runs are not looked at for the choice, unless the
    measure has no cut-off. It takes about 3 seconds for 300 queries of three lists of 1,000.

    Raises ``ConfigError`` for an unknown name and ``DataError`` if no query is judged.
    """
    runs, measure = list(runs), parse_measure(measure)
    count = len(runs)
    if count < 2:
        raise ConfigError(f"fit_fusion: {count} runs; expected two or more")
    judged = judged_queries(qrels, runs, "fit_fusion")
    near = None if measure.cutoff is None else max(NEAR, 5 * measure.cutoff)
    search = FusionSearch(runs, judged, measure, near=near)
    methods_tried = _fusions(methods, normalise, minimum)
    fusions = [fusion for method in methods_tried for fusion in search.lattice(method)]
    lattice = np.array([fusion.weights for fusion in search.lattice(fusions[0])])
    ends = np.flatnonzero(lattice.max(axis=1) == 1).tolist()
    values = np.array([search.by_query(fusion) for fusion in fusions])
    # equal weights, and each run alone
    place, held = Settings(values, lattice, safe=[0, *ends]).chosen()
    fusion = fusions[place]
    exact = search if near is None else FusionSearch(runs, judged, measure)
    alone = [replace(fusion, weights=weights) for weights in np.eye(count).tolist()]
    single = tuple(map(exact.mean, alone))
    best = int(np.argmax(single))
    names = tuple(run.name for run in runs)
    equal = exact.mean(replace(fusion, weights=(1.0 / count,) * count))
    fit = FusionFit(
        fusion=fusion,
        names=names,
        measure=str(measure),
        value=exact.mean(fusion),
        held_out=None if held is None else float(held.mean()),
        equal=equal,
        single=single,
        queries=len(judged),
        tried=len(fusions),
        gain=gain_over(held, search.by_query(alone[best])),
    )
    others = {f"best single {names[best]}": single[best], "equal": equal}
    return fit.explained(f"chose {fit.shown}", others)


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
    values = {name: getattr(fusion, name) for name in names}
    changed = {name: value for name, value in values.items() if value != getattr(usual, name)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in changed.items()}
