"""``fitted(...)`` of a pipeline: stages whose settings are open until they are fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.objects import as_scorer
from sluice.retrieval.evaluation.measures import own_measure, parse_measure
from sluice.retrieval.pipelines.fusion.fusion import METHODS
from sluice.retrieval.pipelines.operators import Then
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks, ScorerLike
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run

RERANKED = 50  # documents that a reranker is tried on, at most
METHODS_TRIED = ("weighted",)
FEWEST = 5  # queries from which anything follows


class Unfitted(Stage):
    """A stage that cannot run before its settings are chosen on judged queries."""

    measure: str
    leaves = frozenset[str]()  # some of its parts may be left out

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Raise ``ConfigError``."""
        raise ConfigError(
            f"{self.name}: is not fitted, so it cannot run; an experiment fits it under pipelines: "
            "(sluice run), in Python fit_on(stage, queries, qrels) does, and `sluice fit` writes "
            "files for fitted="
        )


class UnfittedFusion(Unfitted):
    """A fusion of ``stages`` whose method, weights and parts are open.

    ``depth`` is how many hits of each part are fused, None: all that it finds.
    """

    inner: tuple[Stage, ...] = ()

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


class UnfittedRerank(Unfitted):
    """A reranker whose depth, at most ``depth``, and share of the earlier score are open."""

    needs_candidates = True

    def __init__(
        self,
        scorer: ScorerLike,
        measure: str = "nDCG@10",
        *,
        depth: int = RERANKED,
        queries: int | None = None,
        documents: Texts | None = None,
        label: str = "",
    ) -> None:
        self.scorer: Any = as_scorer(scorer)
        self.measure, self.depth, self.queries = measure, depth, queries
        self.documents_given = documents
        self.label = label or ScorerHooks(self.scorer).name
        self.name = f"fitted({self.label})"

    def attached(self, documents: Texts) -> UnfittedRerank:
        """Return the open reranker with a store, unless it has its own."""
        return UnfittedRerank(
            self.scorer, self.measure, depth=self.depth, queries=self.queries,
            documents=self.documents_given or documents, label=self.label,
        )  # fmt: skip

    def labelled(self, label: str) -> UnfittedRerank:
        """Return it with the name that its scorer has in the pipeline."""
        return UnfittedRerank(
            self.scorer, self.measure, depth=self.depth, queries=self.queries,
            documents=self.documents_given, label=label,
        )  # fmt: skip

    def chosen(self, depth: int, interpolate: float = 0.0) -> Rerank:
        """Return the reranker with these settings."""
        return Rerank(
            self.scorer, depth, interpolate=interpolate, documents=self.documents_given,
            name=called(self.label, depth, interpolate),
        )  # fmt: skip


def fitted(
    *parts: Any,
    measure: Annotated[str, "What the choice maximises on the dev queries."] = "nDCG@10",
    depth: Annotated[
        int | None, "Hits of each part that are fused (all), or the most that are reranked (50)."
    ] = None,
    queries: Annotated[
        int | None, "Dev queries that are used, at most: 1,000 of a fusion, 300 of a reranker."
    ] = None,
    methods: Annotated[
        list[str] | None, "The fusions that are tried; weighted alone, unless given."
    ] = None,
) -> Unfitted:
    """Return an open fusion, or an open reranker: its settings are chosen on dev queries.

    ``fitted(a, b, ...)`` of two stages or more is a fusion: method, normalisation, weights, and
    which parts are left out. ``first >> fitted(scorer)`` is a reranker: its depth, 0 included, and
    the share of the earlier score. ``measure`` is what counts. ``depth`` is how many hits of each
    part are fused (all), or the most that are reranked (50). ``queries`` bounds how many dev
    queries are used, 5 or more; ``methods`` names the fusions that are tried. Raises
    ``ConfigError`` for anything else.
    """
    if own_measure(measure) is not None:
        raise ConfigError(f"measure {measure!r}: expected one of Sluice's own, as nDCG@10")
    parse_measure(measure)
    if depth is not None:
        depth = whole_number(depth, "depth", 1)
    if queries is not None:
        queries = whole_number(queries, "queries", FEWEST)
    stages = [part for part in parts if isinstance(part, Stage)]
    if len(stages) == len(parts) >= 2:
        for name in methods or ():
            if name not in METHODS:
                raise ConfigError(
                    f"methods: {name!r}; known: {', '.join(METHODS)}{suggest(name, METHODS)}"
                )
        tried = METHODS_TRIED if methods is None else methods
        if not tried:
            raise ConfigError("methods: none given; expected one or more")
        return UnfittedFusion(stages, measure, depth=depth, queries=queries, methods=tried)
    if len(parts) != 1 or stages:
        counts = {"stage": len(stages), "scorer": len(parts) - len(stages)}
        given = " and ".join(plural(count, noun) for noun, count in counts.items() if count)
        raise ConfigError(
            f"fitted was given {given or 'nothing'}; it takes two or more stages, fitted(a, b), or "
            "one scorer, a >> fitted(cross)"
        )
    if methods is not None:
        raise ConfigError("methods: belongs to a fusion, fitted(a, b); a reranker has none")
    hooks = ScorerHooks(parts[0])
    if not (hooks.scores_pairs or hooks.scores_lists or callable(parts[0])):
        raise ConfigError(f"{parts[0]!r:.60}; expected a scorer")
    return UnfittedRerank(
        parts[0], measure, depth=RERANKED if depth is None else depth, queries=queries
    )


def called(scorer: str, depth: int, interpolate: float) -> str:
    """Return the call of a reranker: ``cross(depth=20)``, ``dot(bm25, depth=20)``."""
    options = f"depth={depth}" + (f", interpolate={interpolate:g}" if interpolate else "")
    return f"{scorer[:-1]}, {options})" if scorer.endswith(")") else f"{scorer}({options})"


class Fitter(Protocol):
    """Chooses the settings of one open stage."""

    def fit(self, stage: Unfitted, first: Stage | None) -> Stage:
        """Return the stage with settings; ``first`` gives a reranker its candidates."""
        ...


def is_open(stage: Stage) -> bool:
    """Return whether the stage, or one it is made of, is not fitted yet."""
    return isinstance(stage, Unfitted) or any(map(is_open, stage.inner))


def fit_open(stage: Stage, fitter: Fitter, first: Stage | None = None) -> Stage:
    """Return the stage with everything that is open in it fitted, inner stages before outer ones.

    A reranker fitted to depth 0 is left out. ``ConfigError`` for one inside a stage that cannot be
    made of others, such as a scorer's own retrievers.
    """
    closed = _fitted(stage, fitter, first)
    if is_open(closed):
        raise ConfigError(
            f"{stage.name}: fitted(...) stands where it cannot be replaced; make it a pipeline of "
            "its own and use its name here"
        )
    return closed


def _fitted(stage: Stage, fitter: Fitter, first: Stage | None) -> Stage:
    if not is_open(stage):
        return stage
    if isinstance(stage, Then):
        start = _fitted(stage.first, fitter, first)
        before = first >> start if first is not None and start.needs_candidates else start
        second = _fitted(stage.second, fitter, before)
        second.check_first(before)
        return start if isinstance(second, Rerank) and second.depth == 0 else Then(start, second)
    parts = [_fitted(part, fitter, first) for part in stage.inner]
    own = stage.over(parts) if parts else stage
    return fitter.fit(own, first) if isinstance(own, Unfitted) else own
