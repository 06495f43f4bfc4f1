"""Fusion weights, normalisation and method chosen on judged queries, over runs that exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.evaluation.fitted_file import read_fitted, write_fitted
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.pipelines.fusion.normalisation import check_normalisation
from sluice.retrieval.pipelines.fusion.weight_search import FusionSearch
from sluice.retrieval.runs.run import Run

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
            return cls(fusion=fusion, names=names, single=single, **values)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: is no file of a fitted fusion ({error}); fit it again"
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
