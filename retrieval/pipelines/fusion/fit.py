"""Fits fusion weights, normalisation and method on judged queries, over existing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.fitted_file import FittedFile
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.choice import Gain, bagged, gain_over, held_out, kernel
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion, check_normalisation
from sluice.retrieval.pipelines.fusion.search import FusionSearch
from sluice.retrieval.runs.pool import Array
from sluice.retrieval.runs.run import Run

NEAR = 100  # documents of each run that are looked at, and judged ones


@dataclass(frozen=True, slots=True)
class FusionFit(FittedFile):
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
    value: float | None
    held_out: float | None
    equal: float | None
    single: tuple[float, ...]
    queries: int
    tried: int
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
        given = [f"{name}={value!r}" for name, value in options.items()]
        call = f"{self.fusion.method}({', '.join(used)}, "
        if self.fusion.method in ("comb_sum", "comb_mnz"):
            call = f"fused({', '.join(used)}, method={self.fusion.method!r}, "
        return call + ", ".join(given) + ")"

    @property
    def shown(self) -> str:
        """The choice in a few words: ``weighted(bm25 0.35, dense 0.65)``, a part alone by name."""
        return shown(self.fusion, self.names)

    def with_origin(self, origin: Mapping[str, Any]) -> Self:
        """Return the fit with where it was made."""
        return replace(self, origin=dict(origin))

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
        fusion, gain = Fusion(**values["fusion"]), values.get("gain")
        lists = {name: tuple(values.get(name, ())) for name in ("names", "single", "parts")}
        if len(lists["parts"]) not in (0, len(lists["names"])):
            raise TypeError("as many parts as names are expected")
        return {**values, **lists, "fusion": fusion, "gain": None if gain is None else Gain(*gain)}


def shown(fusion: Fusion, names: Sequence[str]) -> str:
    """Return a fusion in a few words: ``weighted(bm25 0.35, dense 0.65)``."""
    weights = fusion.weights or (1.0,) * len(names)
    kept = [(name, weight) for name, weight in zip(names, weights, strict=True) if weight > 0]
    if len(kept) == 1:
        return kept[0][0]
    options = [f"{name}={value!r}" for name, value in _options(fusion).items()]
    return f"{fusion.method}({', '.join([*(f'{n} {w:.2f}' for n, w in kept), *options])})"


def fit_fusion(
    runs: Sequence[Run],
    qrels: Qrels,
    measure: str | Measure = "nDCG@10",
    *,
    methods: Annotated[
        Sequence[str],
        "METHOD",
        "Try this method: weighted, rrf, rank_biased, comb_sum or comb_mnz; may be repeated.",
    ] = ("weighted",),
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
    are taken but those that the queries support, by smoothed bagging (``fusion.choice``); the best
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
    judged = {query: grades for query, grades in qrels.items() if grades}
    if not any(query in run for run in runs for query in judged):
        raise DataError("fit_fusion: no query of the runs has judgements; are the ids the same?")
    near = None if measure.cutoff is None else max(NEAR, 5 * measure.cutoff)
    search = FusionSearch(runs, judged, measure, near=near)
    menu = _Menu(search, list(_fusions(methods, normalise, minimum)))
    fusion = menu.fusions[menu.choose(menu.values)]
    held = held_out(menu.values, menu.choose)
    exact = search if near is None else FusionSearch(runs, judged, measure)
    alone = [replace(fusion, weights=weights) for weights in np.eye(count).tolist()]
    single = tuple(map(exact.mean, alone))
    gain = gain_over(held, search.by_query(alone[int(np.argmax(single))]))
    names = tuple(run.name for run in runs)
    fit = FusionFit(
        fusion=fusion,
        names=names,
        measure=str(measure),
        value=exact.mean(fusion),
        held_out=None if held is None else float(held.mean()),
        equal=exact.mean(replace(fusion, weights=(1.0 / count,) * count)),
        single=single,
        queries=len(judged),
        tried=len(menu.fusions),
        gain=gain,
    )
    return replace(fit, why=_why(fit))


class _Menu:
    """The fusions to choose from, and their values ``[fusions, queries]``."""

    def __init__(self, search: FusionSearch, methods: Sequence[Fusion]) -> None:
        lattices = [search.lattice(method) for method in methods]
        self.fusions = [fusion for lattice in lattices for fusion in lattice]
        self.values = np.array([search.by_query(fusion) for fusion in self.fusions])
        self.points = np.array([fusion.weights for fusion in lattices[0]])
        self._smoothing = kernel(self.points)
        ends = np.flatnonzero(self.points.max(axis=1) == 1).tolist()
        self._safe = [0, *ends]  # equal weights, and each run alone

    def choose(self, values: Array) -> int:
        """Return the fusion that the queries of ``values`` ``[fusions, queries]`` support."""
        size = len(self.points)
        starts = range(0, len(values), size)
        places = [
            start + bagged(values[start : start + size], self.points, self._smoothing)
            for start in starts
        ]
        places += [start + place for start in starts for place in self._safe]
        means = np.round(values[places].mean(axis=1), 9)
        return places[int(means.argmax())]


def _why(fit: FusionFit) -> str:
    """Return in a sentence what was chosen and how it compares."""
    best = int(np.argmax(fit.single))
    facts = [f"best single {fit.names[best]} {fit.single[best]:.4f}", f"equal {fit.equal:.4f}"]
    if fit.held_out is not None:
        facts.insert(0, f"held out {fit.held_out:.4f}")
    queries = plural(fit.queries, "judged query")
    return f"chose {fit.shown} on {queries}: {fit.measure} {fit.value:.4f} ({', '.join(facts)})"


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
