"""Scorers: what stages ask of one, and scores remembered, so that each pair is scored once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import PartScore, TokenMatch
    from sluice.retrieval.pipelines.stage import Stage, Texts
    from sluice.retrieval.runs.queries import Queries
    from sluice.retrieval.runs.run import Ranking


Scores = NDArray[np.float32]


class Scorer(Protocol):
    """Anything that scores (query, document) pairs: a cross-encoder, a model of your own."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return one finite number per pair, higher is better."""
        ...


class ListScorer(Protocol):
    """Anything that scores a query's candidates by more than their texts.

    ``heads`` has ids, earlier scores and ranks; ``documents`` has the texts, if there are any.
    """

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> Mapping[str, Any]:
        """Return for each query of ``heads`` one finite number per candidate, higher is better."""
        ...


ScorerLike: TypeAlias = Scorer | ListScorer | Callable[..., Any] | str | Path


class ScorerHooks:
    """A scorer's optional attributes, each with the default of an object that lacks it.

    A scorer needs nothing but its method, so this is the one place that looks attributes up by
    name; all others read them here. They are read anew each time: training changes a fingerprint.
    """

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a ``Scorer``."""
        return callable(self._hook("score"))

    @property
    def scores_lists(self) -> bool:
        """Whether it is a ``ListScorer``."""
        return callable(self._hook("score_lists"))

    @property
    def name(self) -> str:
        """What tables call it: a function's name, else its class."""
        return str(self._hook("name") or type(self.scorer).__name__)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The retrievers whose index or encoder it reads, none by default."""
        return tuple(self._hook("stages") or ())

    @property
    def fingerprint(self) -> str | None:
        """A hash of everything that decides its scores, None if it has no such attribute."""
        fingerprint = self._hook("fingerprint")
        return None if fingerprint is None else str(fingerprint)

    @property
    def inner(self) -> Any:
        """The scorer that it passes pairs on to, None if it has none."""
        return self._hook("scorer")

    @property
    def approximates(self) -> Stage | None:
        """The retriever whose search finds the best of all by these scores, None without one."""
        retriever: Stage | None = self._hook("approximates")
        return retriever

    def matches_of(self, query: str, doc_id: str, documents: Texts | None) -> Sequence[TokenMatch]:
        """Return which tokens of a document met those of a query; none if it does not say."""
        named = self._hook("matches_of")
        return tuple(named(query, doc_id, documents)) if callable(named) else ()

    def parts_of(self, query: str, doc_id: str, documents: Texts | None) -> Sequence[PartScore]:
        """Return the parts of a document that were scored alone; none if it does not say."""
        named = self._hook("parts_of")
        return tuple(named(query, doc_id, documents)) if callable(named) else ()

    def check_documents(self, documents: Texts) -> None:
        """Let it refuse documents that it cannot score, before any search."""
        check = self._hook("check_documents")
        if callable(check):
            check(documents)

    @property
    def inside(self) -> tuple[Any, ...]:
        """The scorers and models that it asks in turn, none by default."""
        parts = map(self._hook, ("scorer", "model", "teacher"))
        return tuple(part for part in parts if part is not None and part is not self.scorer)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that passages are measured by; None: they are measured in words."""
        return self._hook("tokenizer")

    @property
    def dtype(self) -> Any:
        """Its arithmetic type, empty if unknown."""
        return self._hook("dtype", "")

    @property
    def engine(self) -> str:
        """The name of the back end it runs on instead of torch, empty without one."""
        backend = self._hook("backend")
        return "" if backend is None else str(getattr(backend, "name", type(backend).__name__))

    @property
    def weights(self) -> list[Any] | None:
        """What changes when the model does, its torch parameters first; None if unknown."""
        parameters = getattr(self._hook("module"), "parameters", None)
        settings = [self._hook(name) for name in ("dtype", "max_length", "backend")]
        return None if parameters is None else [list(parameters()), *settings]

    def _hook(self, name: str, default: Any = None) -> Any:
        return getattr(self.scorer, name, default)


Key = TypeVar("Key", bound=Hashable)


class Lookup(NamedTuple):
    """The scores of the keys, and how many of them had to be computed."""

    scores: Scores
    misses: int


def remembered(
    keys: Sequence[Key],
    get: Callable[[Sequence[Key]], Scores],
    score: Callable[[list[int]], Scores],
    put: Callable[[list[Key], Scores], None],
    *,
    block: int | None = None,
) -> Lookup:
    """Return one score per key; those that ``get`` does not know are scored and ``put``.

    ``score`` takes places in ``keys``, never two of the same key. Each ``block`` is put before the
    next is scored, so that a kill costs one block; without ``block`` all are scored at once.
    """
    scores = get(keys)
    missing = np.flatnonzero(np.isnan(scores)).tolist()
    first: dict[Key, int] = {}
    for place in missing:
        first.setdefault(keys[place], place)
    places = list(first.values())
    known: dict[Key, float] = {}
    size = block or max(1, len(places))
    for start in range(0, len(places), size):
        part = places[start : start + size]
        names, values = [keys[place] for place in part], score(part)
        put(names, values)
        known.update(zip(names, values.tolist(), strict=True))
    scores[missing] = [known[keys[place]] for place in missing]
    return Lookup(scores, len(places))


class ScoreMemory(dict[Key, float]):
    """Scores in memory, as ``get`` and ``put`` of ``remembered``."""

    def found(self, keys: Sequence[Key]) -> Scores:
        """Return the score of each key, NaN where it is not known."""
        return np.array([self.get(key, np.nan) for key in keys], np.float32)

    def add(self, keys: Sequence[Key], scores: Scores) -> None:
        """Keep the scores of keys."""
        self.update(zip(keys, scores.tolist(), strict=True))
