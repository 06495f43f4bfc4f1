"""Tries pipelines and finds the best one within a budget, and what it will cost.

Every retriever searches once for each depth, every pair is scored once, and every part is timed on
this machine; the pipelines tried are the stages that will run, over remembered results.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.config.sections import BudgetSection, TuneSection
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.experiments.tuning.costs import CostModel, Remembered, recalled
from sluice.retrieval.pipelines.expression import names_in, parse
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.confidence_exit import NEVER, ConfidenceExit
from sluice.retrieval.stages.rerankers.score_cache import Cached, ScoreCache

COSTS = ("p95_ms", "p50_ms", "price")
KEPT = 3  # fused first stages that cascades are made of, beside every retriever alone


@dataclass(frozen=True, slots=True)
class Trial:
    """One pipeline: its measure on the tuning queries, and what it is expected to cost a query.

    ``pairs`` are those that rerankers score, the mean over the queries.
    """

    pipeline: str
    value: float
    p50_ms: float
    p95_ms: float
    price: float
    pairs: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was tried, in order; ``front`` are those that nothing beats in measure and cost.

    ``best`` is the best at any cost, ``full`` the best of those that score the most pairs;
    ``folder`` is where ``tune_experiment`` wrote it.
    """

    trials: list[Trial]
    front: list[Trial]
    chosen: Trial
    best: Trial
    full: Trial
    measure: str
    cost: str
    folder: Path = Path()


class Tuner:
    """Tries pipelines of some parts on some queries.

    ``names`` opens the retrievers and scorers by name, as for ``parse``. ``queries`` and ``qrels``
    are those to tune on, never those of the test. ``cache`` keeps pair scores between runs.
    ``pipelines`` are expressions by name, for the names that are not parts.
    ``level`` is the least grade of a relevant document. ``score`` is called with the tuner and
    the pipelines of a round before they are tried: it may score their pairs into ``cache``.
    """

    def __init__(
        self,
        names: Mapping[str, Callable[[], Any]],
        queries: Queries,
        qrels: Qrels,
        settings: TuneSection,
        *,
        seed: int = 13,
        cache: ScoreCache | None = None,
        pipelines: Mapping[str, str] | None = None,
        level: int = 1,
        score: Callable[[Tuner, Sequence[str]], None] | None = None,
    ) -> None:
        self.settings = settings
        self._score = score
        self.level = level
        kind = SelfExcluding if isinstance(queries, SelfExcluding) else dict
        judged = kind({query: text for query, text in queries.items() if qrels.get(query)})
        if not judged:
            raise DataError("tune: none of the queries has judgements to tune on")
        self.queries = _sampled(judged, settings.queries, seed)
        self.qrels = {query: qrels[query] for query in self.queries}
        self.costs = CostModel(
            _sampled(self.queries, settings.timed_queries, seed), settings.prices
        )
        self._names = names
        self._cache = cache
        self._pipelines = dict(pipelines or {})
        self._open: dict[str, Any] = {}
        self._firsts: dict[str, Stage] = {}
        self.trials: dict[str, Trial] = {}

    def stage(self, pipeline: str) -> Stage:
        """Return a pipeline over remembered results."""
        known = [*self._names, *self._pipelines]
        names = {name: (lambda name=name: self._part(name)) for name in known}
        return parse(pipeline, names, where="tune.pipelines", first=self._first, part=self._plain)

    def run(self, pipeline: str) -> Run:
        """Return what a pipeline finds for the tuning queries."""
        return self.stage(pipeline).run(self.queries)

    def measured(self, pipeline: str) -> Trial:
        """Return a pipeline's measure and cost; each pipeline is tried once."""
        if pipeline not in self.trials:
            stage = self.stage(pipeline)
            with tracing() as spans:
                run = stage.run(self.queries)
            score = evaluate(run, self.qrels, [self.settings.measure], level=self.level)
            spent = self.costs.of_pipeline(stage, spans[0])
            p50, p95 = (round(float(np.percentile(spent.milliseconds, p)), 3) for p in (50, 95))
            value = float(next(iter(score.mean.values())))
            price = round(spent.price, 9)
            self.trials[pipeline] = Trial(pipeline, value, p50, p95, price, round(spent.pairs, 3))
        return self.trials[pipeline]

    def measure(self, pipelines: Sequence[str]) -> list[Trial]:
        """Try pipelines in the order given, over the scores that there are and new ones."""
        if not pipelines:
            return []
        with progress("tune", len(pipelines), unit="pipelines") as advance:
            trials = []
            for pipeline in pipelines:
                trials.append(self.measured(pipeline))
                advance(1)
        return trials

    def search(self, retrievers: Sequence[str], rerankers: Sequence[str]) -> None:
        """Try the usual cascades: fusions first, then rerankers on the best of these, then exits.

        Rerankers are taken in the order of their measured cost per pair. Cascades are made of every
        retriever alone and of the best ``KEPT`` fusions; early exits of the pipelines on the front.
        """
        firsts = self.measure(first_stages(retrievers))
        fused = [trial for trial in firsts if trial.pipeline not in retrievers]
        fused.sort(key=lambda trial: -trial.value)
        best = [*retrievers, *(trial.pipeline for trial in fused[:KEPT])]
        self.time_rerankers([best[-1], *rerankers])
        ordered = self._by_cost(rerankers)
        pipelines = [cascade for first in best for cascade in cascades(first, ordered)]
        self.score(pipelines)
        front = front_of(self.measure(pipelines), cost_of(self.settings.budget))
        self.measure([early for trial in front for early in self._exits(trial.pipeline)])

    def score(self, pipelines: Sequence[str]) -> None:
        """Have the pairs of a round of pipelines scored, before they are tried."""
        if self._score is not None:
            self._score(self, pipelines)

    def parts_of(self, pipeline: str) -> list[Any]:
        """Return the retrievers and scorers that a pipeline is made of, each once."""
        return [self._part(name) for name in dict.fromkeys(self._used(pipeline))]

    def scorers_of(self, pipeline: str) -> list[Any]:
        """Return the scorers that a pipeline is made of."""
        return [part for part in self.parts_of(pipeline) if not isinstance(part, Stage)]

    def time_rerankers(self, pipelines: Sequence[str]) -> None:
        """Time every reranker of pairs that the pipelines name, on candidates they will see."""
        parts = {name: self._part(name) for text in pipelines for name in self._used(text)}
        stages = [
            name
            for name, part in parts.items()
            if isinstance(part, Stage) and not part.needs_candidates
        ]
        lists = self.run(f"{stages[0]} % {CUT}") if stages else Run({})
        texts = parts[stages[0]].documents if stages else None
        for name, part in parts.items():
            if isinstance(part, Remembered) and name not in self.costs.pairs:
                self.costs.time_scorer(name, part.plain, lists, texts or self._store())

    def _used(self, pipeline: str) -> Iterator[str]:
        """Yield the names of the parts a pipeline is made of, through the pipelines it names."""
        for name in names_in(pipeline, where="tune.pipelines"):
            if name in self._names:
                yield name
            elif name in self._pipelines:
                yield from self._used(self._pipelines[name])

    def _by_cost(self, rerankers: Sequence[str]) -> list[str]:
        """Return rerankers by the time of twenty pairs, untimed rerankers of lists first."""
        few = np.array([20.0])
        times = {n: float(cost.milliseconds(few)[0]) for n, cost in self.costs.pairs.items()}
        return sorted(rerankers, key=lambda name: times.get(name, 0.0))

    def _store(self) -> Texts:
        stages = (part for part in self._open.values() if isinstance(part, Stage))
        texts = next((s.documents for s in stages if s.documents is not None), None)
        if texts is None:
            raise ConfigError("tune: rerankers need texts, and no retriever has a document store")
        return texts

    def _exits(self, pipeline: str) -> list[str]:
        """Return the pipeline with early exits for some shares of the queries."""
        before, arrow, last = pipeline.rpartition(" >> ")
        if not arrow:
            return []
        confidence = ConfidenceExit(NEVER).confidence
        confidences = [confidence(ranking) for ranking in self.run(before).values()]
        thresholds = np.quantile(confidences, [1 - share for share in EXITS]).round(6)
        return [with_exit(before, last, float(each)) for each in dict.fromkeys(thresholds)]

    def _part(self, name: str) -> Any:
        if name not in self._names:
            return self.stage(self._pipelines[name])
        if name not in self._open:
            part = self._names[name]()
            if isinstance(part, Stage):
                self.costs.scorers += [(name, scorer) for scorer in part.ranking_models]
                self._open[name] = recalled(part, self.costs.of_first)
                return self._open[name]
            self.costs.scorers.append((name, part))
            if ScorerHooks(part).scores_lists:
                self._open[name] = part  # a document's score depends on the others in the list
            else:
                # Without a fingerprint, another scorer of this name would get these scores.
                cache = self._cache if ScorerHooks(part).fingerprint is not None else None
                scorer = part if cache is None else Cached(part, cache, name=name)
                self._open[name] = Remembered(scorer, name, plain=part)
        return self._open[name]

    def _first(self, text: str, stage: Stage) -> Stage:
        if text not in self._firsts:
            self._firsts[text] = recalled(stage, self.costs.of_first)
        return self._firsts[text]

    @staticmethod
    def _plain(part: Any) -> Any:
        """Return the part that a call makes its own scorer or stage from: one without memory."""
        return part.plain if isinstance(part, Remembered) else part


def front_of(trials: Sequence[Trial], cost: str) -> list[Trial]:
    """Return the trials that no other beats, from the cheapest to the best.

    A trial is beaten by another that is not dearer and not worse, and differs in one of the two.
    """
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda each: (getattr(each, cost), -each.value)):
        if not front or trial.value > front[-1].value:
            front.append(trial)
    return front


def chosen_of(trials: Sequence[Trial], budget: BudgetSection) -> Trial:
    """Return the best trial within the budget, the cheapest of equals.

    With ``share_of_best`` it is the cheapest that reaches that share of the best one's measure.
    Raises ``ConfigError``, naming the cheapest of all, if none is within the budget.
    """
    limits = {key: limit for key in COSTS if (limit := getattr(budget, key)) is not None}
    within = [t for t in trials if all(getattr(t, key) <= limit for key, limit in limits.items())]
    cost = cost_of(budget)
    if not within:
        cheapest = min(trials, key=lambda trial: (getattr(trial, cost), -trial.value))
        budgets = ", ".join(f"{key} {limit:g}" for key, limit in limits.items())
        raise ConfigError(
            f"tune.budget: no pipeline costs {budgets} or less; the cheapest, {cheapest.pipeline}, "
            f"has p50 {cheapest.p50_ms:g} ms, p95 {cheapest.p95_ms:g} ms, price {cheapest.price:g}"
        )
    if budget.share_of_best is not None:
        enough = budget.share_of_best * max(trial.value for trial in within)
        return min(
            (trial for trial in within if trial.value >= enough),
            key=lambda trial: (getattr(trial, cost), -trial.value),
        )
    return max(within, key=lambda trial: (trial.value, -getattr(trial, cost)))


def cost_of(budget: BudgetSection) -> str:
    """Return the cost axis of the front: the cost that is limited, else p95."""
    limited = [key for key in COSTS if getattr(budget, key) is not None]
    return limited[0] if limited else "p95_ms"


def tuned(tuner: Tuner, retrievers: Sequence[str], rerankers: Sequence[str]) -> Tuning:
    """Try the settings' pipelines, or the usual cascades, and choose by the budget."""
    settings = tuner.settings
    if settings.pipelines is None:
        tuner.search(retrievers, rerankers)
    else:
        pipelines = expanded(settings.pipelines, settings.choices)
        tuner.time_rerankers(pipelines)
        tuner.score(pipelines)
        tuner.measure(pipelines)
    trials = list(tuner.trials.values())
    cost = cost_of(settings.budget)
    best = max(trials, key=lambda trial: (trial.value, -getattr(trial, cost)))
    chosen = chosen_of(trials, settings.budget)
    most = 0.99 * max(trial.pairs for trial in trials)
    full = max((t for t in trials if t.pairs >= most), key=lambda trial: trial.value)
    measure = str(parse_measure(settings.measure))
    return Tuning(trials, front_of(trials, cost), chosen, best, full, measure, cost)


def _sampled(queries: Queries, count: int, seed: int) -> Queries:
    """Return ``count`` queries chosen by the seed, in the order they had."""
    chosen = set(random.Random(f"tune {seed}").sample(list(queries), min(count, len(queries))))
    kind = SelfExcluding if isinstance(queries, SelfExcluding) else dict
    return kind({query: text for query, text in queries.items() if query in chosen})


_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")

CUT = 100  # candidates that a first stage hands to rerankers
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DEPTHS = (5, 10, 20, 50, 100)
SHARES = (0.0, 0.25, 0.5, 0.75)
EXITS = (0.25, 0.5, 0.75)  # shares of the dev queries that leave before the last reranker


def expanded(templates: Sequence[str], choices: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return every expression that the templates make with the choices, once each, in order.

    ``{name}`` stands for each of ``choices[name]`` in turn, written as it is. Raises
    ``ConfigError`` for a name without choices and for choices that no template names.
    """
    named = {name for template in templates for name in _PLACE.findall(template)}
    for name in sorted(named - set(choices)):
        raise ConfigError(
            f"tune.pipelines: {{{name}}} has no values; give them in tune.choices.{name}"
            f"{suggest(name, choices)}"
        )
    for name in choices:
        if name not in named:
            raise ConfigError(f"tune.choices.{name}: no pipeline contains {{{name}}}")
        if not choices[name]:
            raise ConfigError(f"tune.choices.{name}: an empty list; name at least one value")
    texts: dict[str, None] = {}
    for template in templates:
        names = list(dict.fromkeys(_PLACE.findall(template)))
        for values in itertools.product(*(choices[name] for name in names)):
            text = template
            for name, value in zip(names, values, strict=True):
                text = text.replace(f"{{{name}}}", str(value))
            texts[text] = None
    return list(texts)


def first_stages(retrievers: Sequence[str]) -> list[str]:
    """Return each retriever alone, and each two of them fused: by rank, by weighted scores."""
    texts = list(retrievers)
    for one, other in itertools.combinations(retrievers, 2):
        texts.append(f"({one} | {other})")
        for weight in WEIGHTS:
            weights = f"[{weight}, {round(1 - weight, 4)}]"
            texts.append(f"weighted({one}, {other}, weights={weights})")
    if len(retrievers) > 2:
        texts.append(f"({' | '.join(retrievers)})")
    return texts


def cascades(first: str, rerankers: Sequence[str]) -> list[str]:
    """Return the cascades of one first stage: each reranker, and each one before a later one.

    Rerankers are named from the cheapest to the dearest; the depth of a second one is smaller
    than that of the first.
    """
    texts = []
    for reranker in rerankers:
        texts += [f"{first} % {CUT} >> {last}" for last in _last(reranker, DEPTHS)]
    for light, heavy in itertools.combinations(rerankers, 2):
        for depth in DEPTHS[2:]:
            lower = [each for each in DEPTHS if each < depth]
            middle = f"{first} % {CUT} >> {light}(depth={depth})"
            texts += [f"{middle} >> {last}" for last in _last(heavy, lower)]
    return texts


def _last(reranker: str, depths: Sequence[int]) -> Iterator[str]:
    for depth, share in itertools.product(depths, SHARES):
        mixed = f", interpolate={share}" if share else ""
        yield f"{reranker}(depth={depth}{mixed})"


def with_exit(before: str, last: str, threshold: float) -> str:
    """Return ``before >> last`` with the reranker skipped for queries that are confident before."""
    return f"{before} >> {last.removesuffix(')')}, exit={threshold!r})"
