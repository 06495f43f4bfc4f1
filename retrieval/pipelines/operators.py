"""The algebra of stages: ``a >> b`` then, ``a % k`` cut, ``a | b`` and ``rrf(a, b)`` fuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.hit import Passage
from sluice.retrieval.pipelines.saving import NameOf, options_text
from sluice.retrieval.pipelines.search import TextsOf
from sluice.retrieval.pipelines.stage import Around, Stage, passages_by
from sluice.retrieval.pipelines.tracing import Span, passages_by_best
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking, Run


class Then(Stage):
    """``first >> second``: the second stage works on what the first returns."""

    inner: tuple[Stage, ...] = ()

    def __init__(self, first: Stage, second: Stage) -> None:
        self.first = first
        self.second = second if first.documents is None else second.attached(TextsOf(first))
        self.inner = (self.first, self.second)
        self.name = f"{first.name} >> {second.name}"

    @property
    def needs_candidates(self) -> bool:
        """Whether the first stage needs them; the second gets those of the first."""
        return self.first.needs_candidates

    @property
    def gives_probabilities(self) -> bool:
        """Whether the second stage, which has the last word, gives them."""
        return self.second.gives_probabilities

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return ``>>`` of two other stages."""
        return Then(*inner)

    def written(self, name_of: NameOf) -> str:
        """Return ``first >> second``."""
        return f"({self.first.written(name_of)}) >> ({self.second.written(name_of)})"

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask the second stage, which had the last word, before the first."""
        return passages_by(span.inner[::-1], query, doc_ids)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the first stage to its full depth, then the second on its run."""
        return self.second.rank(queries, self.first.rank(queries, given, max(DEPTH, k or 0)), k)


class Cut(Around):
    """``stage % k``: at most the first ``k`` documents; a retriever then searches no deeper."""

    def __init__(self, stage: Stage, k: int) -> None:
        self.k = whole_number(k, "the cut of %", 1)
        super().__init__(stage)

    def _take(self, stage: Stage) -> None:
        super()._take(stage)
        closed = isinstance(stage, Fuse) or " " not in stage.name  # a fusion has its brackets
        self.name = f"{stage.name} % {self.k}" if closed else f"({stage.name}) % {self.k}"

    @property
    def least_score(self) -> float | None:
        """The least score of the stage that is cut."""
        return self.stage.least_score

    @property
    def gives_probabilities(self) -> bool:
        """Whether the stage that is cut gives them."""
        return self.stage.gives_probabilities

    def written(self, name_of: NameOf) -> str:
        """Return ``stage % k``."""
        return f"({self.stage.written(name_of)}) % {self.k}"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage for no more documents than the cut lets through."""
        depth = self.k if k is None else min(k, self.k)
        return self.stage.rank(queries, given, depth).top(self.k)


class Weighted(Around):
    """``0.3 * stage``: its list with the weight that it has in a fusion, ``0.3 * a + 0.7 * b``.

    By itself it is the stage with its scores multiplied. A cut, or a reranker after it, keeps the
    weight: ``0.3 * a % 100 + 0.7 * b`` fuses the first 100 of a.
    """

    def __init__(self, stage: Stage, weight: float) -> None:
        self.weight = finite_number(weight, "the weight of *", 0)
        super().__init__(stage)

    def _take(self, stage: Stage) -> None:
        super()._take(stage)
        self.name = f"{self.weight:g} * {stage.name}"

    @property
    def least_score(self) -> float | None:
        """The least score of the stage, times the weight."""
        least = self.stage.least_score
        return None if least is None else self.weight * least

    def written(self, name_of: NameOf) -> str:
        """Return ``weight * stage``."""
        return f"{self.weight!r} * ({self.stage.written(name_of)})"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage and multiply its scores."""
        run = self.stage.rank(queries, given, k)
        weight = np.float32(self.weight)
        return Run(
            {query: Ranking(each.doc_ids, weight * each.scores) for query, each in run.items()},
            name=run.name,
        )

    def __rshift__(self, second: Stage) -> Stage:
        stage = self.stage >> second
        return Weighted(stage, self.weight) if isinstance(stage, Stage) else NotImplemented

    def __mod__(self, k: int) -> Stage:
        return Weighted(self.stage % k, self.weight)


class Fuse(Stage):
    """Fuse the runs of ``stages``: by reciprocal rank, normalised scores, or another method.

    ``Fusion`` has the methods and what the options mean; ``method`` may also be one. Weights are 1
    unless given, one per stage. Raises ``ConfigError`` for any other value.
    """

    inner: tuple[Stage, ...] = ()
    base_retriever = None  # even a single list is scored anew

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        method: str | Fusion = "rrf",
        rank_constant: float = 60,
        weights: Sequence[float] | None = None,
        normalise: str = "min-max",
        minimum: float | Sequence[float | None] | None = None,
    ) -> None:
        if not isinstance(method, Fusion):
            if rank_constant == 0:
                raise ConfigError("fusion: rank_constant=0; expected a number above 0")
            method = Fusion(method, weights, normalise, minimum, rank_constant=rank_constant)
        if method.weights is not None and len(method.weights) != len(stages):
            raise ConfigError(f"fusion: {len(method.weights)} weights for {len(stages)} stages")
        if isinstance(method.minimum, (list, tuple)) and len(method.minimum) != len(stages):
            raise ConfigError(
                f"fusion: {len(method.minimum)} values of minimum for {len(stages)} stages"
            )
        self.stages = self.inner = tuple(stages)
        self.fusion = method
        self._joined = False
        self.name = self._expression or self._call

    @classmethod
    def joining(cls, left: Stage, right: Stage, *, method: str = "rrf") -> Fuse:
        """Return ``left | right``, or ``left + right`` (``method="weighted"``), as one flat fusion.

        ``a | b | c`` fuses three lists, not two of two. Weights multiply: ``2 * (a + b) + c`` is
        ``2 * a + 2 * b + c``. A cut ends that: ``(a + b) % 100 + c`` fuses two lists.
        """
        parts = [*_parts(left, method), *_parts(right, method)]
        weights = [weight for _, weight in parts]
        fuse = cls(
            [stage for stage, _ in parts],
            method=method,
            weights=None if set(weights) == {1.0} else weights,
        )
        fuse._joined = True
        fuse.name = str(fuse._expression)
        return fuse

    @property
    def leaves(self) -> frozenset[str]:
        """Those of the stages that count: what has weight 0 finds nothing."""
        parts = [self.inner[place].leaves for place in self.fusion.used(len(self.inner))]
        return frozenset[str]().union(*parts) if all(parts) else frozenset()

    def joins(self, method: str) -> bool:
        """Return whether operators write this fusion, so that another of ``method`` can join it."""
        fusion = self.fusion
        if fusion.method != method or replace(fusion, weights=None) != Fusion(method):
            return False
        return fusion.weights is None or method == "weighted" or self._joined

    @property
    def _expression(self) -> str:
        """The fusion as operators write it, empty if they cannot."""
        for method, symbol in (("rrf", " | "), ("weighted", " + ")):
            if self.joins(method):
                weights = self.fusion.weights or [1.0] * len(self.stages)
                parts = zip(self.stages, weights, strict=True)
                return f"({symbol.join(_weighed(stage.name, weight) for stage, weight in parts)})"
        return ""

    @property
    def _call(self) -> str:
        """The fusion as a call in which weights stand behind the stages, for showing."""
        parts = [stage.name for stage in self.stages]
        if self.fusion.weights is not None:
            weights = zip(parts, self.fusion.weights, strict=True)
            parts = [f"{name} {weight:g}" for name, weight in weights]
        return f"{self.fusion.method}({', '.join(parts)})"

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return the fusion of other stages."""
        fuse = Fuse(inner, method=self.fusion)
        fuse._joined = self._joined
        fuse.name = fuse._expression or fuse.name
        return fuse

    def written(self, name_of: NameOf) -> str:
        """Return ``fused(...)`` of the stages with its method and options: nested ones stay so."""
        changed = {
            each.name: getattr(self.fusion, each.name)
            for each in fields(self.fusion)
            if getattr(self.fusion, each.name) != each.default or each.name == "method"
        }
        parts = ", ".join(stage.written(name_of) for stage in self.stages)
        return f"fused({parts}, {options_text(changed)})"

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask for each document the stage that ranked it best, of those that name passages."""
        return passages_by_best(span.inner, query, doc_ids)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run every stage to its full depth and fuse their runs."""
        depth = max(DEPTH, k or 0)
        runs = [stage.rank(queries, given, depth) for stage in self.stages]
        fusion = self.fusion
        if fusion.normalise == "theoretical-min" and fusion.minimum is None:
            fusion = replace(fusion, minimum=[_least_score_of(stage) for stage in self.stages])
        return fusion.fuse(runs)


def _parts(stage: Stage, method: str) -> list[tuple[Stage, float]]:
    """Return the lists that a stage adds to a fusion, each with its weight."""
    if isinstance(stage, Weighted):
        return [(part, stage.weight * weight) for part, weight in _parts(stage.stage, method)]
    if isinstance(stage, Fuse) and stage.joins(method):
        weights = stage.fusion.weights or [1.0] * len(stage.stages)
        return list(zip(stage.stages, weights, strict=True))
    return [(stage, 1.0)]


def _weighed(name: str, weight: float) -> str:
    return name if weight == 1 else f"{weight:g} * {name}"


def _least_score_of(stage: Stage) -> float:
    if (least := stage.least_score) is not None:
        return least
    raise ConfigError(
        f"normalise='theoretical-min': the least score of {stage.name} is not known; give "
        "minimum=, a number or one for each stage, such as 0 for BM25 and SPLADE, -1 for cosine"
    )
