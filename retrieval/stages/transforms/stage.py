"""Query transforms: a query's text to texts with weights, and the stage that searches by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import is_traced, note, passages_by_best
from sluice.retrieval.retrievers.corpus.passages import keep_vectors
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH, Queries, like
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.feedback.dense import by_cosine
from sluice.retrieval.stages.transforms.corpus_words import OfCorpus

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Passage
    from sluice.retrieval.pipelines.tracing import Span
    from sluice.retrieval.retrievers.state import RetrieverState


class Variant(NamedTuple):
    """A text to search by in the place of a query, and how much it counts.

    With ``document`` it is written like a document, and a dense encoder encodes it as one.
    """

    text: str
    weight: float = 1.0
    document: bool = False


class QueryTransform(Protocol):
    """Turns queries into what is searched in their place."""

    def variants(self, queries: Sequence[str]) -> Sequence[Iterable[Variant]]:
        """Return each query's variants; none where the query is searched as it is."""
        ...


class Each:
    """The transform of a function from one text to (text, weight) pairs."""

    def __init__(self, function: Callable[[str], Iterable[tuple[str, float]]]) -> None:
        self.function = function

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return what the function says for each query."""
        return [[Variant(*pair) for pair in self.function(query)] for query in queries]


def merged(query: str, variants: Iterable[Variant], name: str) -> list[Variant]:
    """Return variants without blank ones and those of weight 0, equal ones as one.

    A query without any variant is its own. Raises ``DataError`` for what is not text, and
    ``ConfigError`` for a weight that is not a finite number, 0 or more.
    """
    weights: dict[tuple[str, bool], float] = {}
    for text, weight, document in variants:
        if not isinstance(text, str):
            raise DataError(f"{name}: {text!r:.60} for query {query!r:.60}; expected text")
        own = finite_number(weight, f"{name}: weight", 0)
        if text.strip() and own > 0:
            weights[text, document] = weights.get((text, document), 0.0) + own
    if not weights:
        return [Variant(query)]
    return [Variant(text, weight, document) for (text, document), weight in weights.items()]


Changed = Mapping[str, list[Variant]]  # by query id
SHOWN = 300  # characters of a text in an explanation


class Transformed(Around):
    """``stage``, searched by what ``transform`` makes of each query.

    A query of one variant is searched by that text instead; one that stays as it is gets the very
    ranking of ``stage``. Of several variants a retriever with single vectors, dense or sparse, is
    searched by their weighted mean, which scores a document by the weighted mean of its scores
    (vectors that are compared by cosine count at unit length, and so does the mean). Any other
    stage ranks by each variant, and the lists are fused by reciprocal ranks, with the weights.

    ``options`` are those of the ``function`` of pipelines that makes it, ``models`` its parts
    behind the stage: a transform that has them can be saved.
    """

    def __init__(
        self,
        stage: Stage,
        transform: QueryTransform,
        function: str = "transformed",
        *,
        models: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rule = transform
        super().__init__(stage, function, models=models, options=options)

    def _take(self, stage: Stage) -> None:
        super()._take(stage)
        if isinstance(self.rule, OfCorpus):
            self.rule = self.rule.for_stage(stage)

    @property
    def looks_inside(self) -> bool:  # type: ignore[override]
        """Whether it searches its retriever's index itself."""
        return retriever_of(self.stage) is not None

    @property
    def leaves(self) -> frozenset[str]:
        """Those of the stage, and the transform."""
        return self.stage.leaves | {self._function} if self.stage.leaves else frozenset()

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Transform the queries and search by what becomes of them."""
        changed = self._changed(queries)
        if is_traced():
            note({"searched": {query: shown(own) for query, own in changed.items()}})
        if not changed:
            return self.stage.rank(queries, given, k)
        several = {q: own for q, own in changed.items() if len(own) > 1 or own[0].document}
        plain = {
            query: changed[query][0].text if query in changed else text
            for query, text in queries.items()
            if query not in several
        }
        found: dict[str, Ranking] = {}
        if plain:
            found.update(self.stage.rank(like(queries, plain), given, k))
        if several:
            state = self._state()
            if state is None:
                found.update(self._by_lists(queries, several, given, k))
            else:
                found.update(self._by_vectors(state, queries, several, k))
        return Run({query: found[query] for query in queries}, name=self.name)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage by the variant that ranked each document best, or by the mean."""
        if span.inner:
            return passages_by_best(span.inner, query, doc_ids)
        state = self._state()
        return [None] * len(doc_ids) if state is None else state.passages_of(query, doc_ids, span)

    def _changed(self, queries: Queries) -> dict[str, list[Variant]]:
        """Return the variants of the queries that do not stay as they are."""
        with_text = [query for query, text in queries.items() if text.strip()]
        texts = [queries[query] for query in with_text]
        made = list(self.rule.variants(texts)) if texts else []
        if len(made) != len(texts):
            raise ConfigError(
                f"{self._function}: variants of {len(made)} queries, expected {len(texts)}"
            )
        changed = {}
        for query, text, variants in zip(with_text, texts, made, strict=True):
            own = merged(text, variants, self._function)
            if len(own) > 1 or own[0].text != text or own[0].document:
                changed[query] = own
        return changed

    def _state(self) -> RetrieverState | None:
        """Return the retriever whose queries' vectors have a mean, None for any other stage."""
        retriever = retriever_of(self.stage)
        if retriever is None:
            return None
        state = retriever.state
        return state if hooks_of(state.encoder).similarity in ("cosine", "dot") else None

    def _by_lists(
        self, queries: Queries, several: Changed, given: Run | None, k: int | None
    ) -> dict[str, Ranking]:
        runs = []
        for number in range(max(map(len, several.values()))):
            texts = {q: own[number].text for q, own in several.items() if number < len(own)}
            runs.append(self.stage.rank(like(queries, texts), given, max(DEPTH, k or 0)))
        alike: dict[tuple[float, ...], list[str]] = {}
        for query, own in several.items():
            alike.setdefault(tuple(each.weight for each in own), []).append(query)
        found: dict[str, Ranking] = {}
        for weights, names in alike.items():
            parts = [Run({q: run[q] for q in names}) for run in runs[: len(weights)]]
            found.update(Fusion("rrf", list(weights)).fuse(parts))
        return found

    def _by_vectors(
        self, state: RetrieverState, queries: Queries, several: Changed, k: int | None
    ) -> dict[str, Ranking]:
        vectors = self._means(state, list(several.values()))
        keep_vectors(vectors)
        texts = like(queries, {query: queries[query] for query in several})
        found: dict[str, Ranking] = dict(
            state.nearest(texts, list(several), vectors, k, where=self.stage.base_where)
        )
        return found

    def _means(self, state: RetrieverState, variants: Sequence[Sequence[Variant]]) -> Any:
        """Return the weighted mean of each query's variants ``[queries, dim]``."""
        places: dict[tuple[str, bool], int] = {}
        for own in variants:
            for each in own:
                places.setdefault((each.text, each.document), len(places))
        vectors = _encoded(state, list(places))
        weights = [[each.weight / sum(v.weight for v in own) for each in own] for own in variants]
        columns = [[places[each.text, each.document] for each in own] for own in variants]
        ends = np.cumsum([0, *map(len, columns)])
        mixing: Any = sp.csr_array(
            (np.concatenate(weights), np.concatenate(columns), ends),
            shape=(len(variants), len(places)),
        )
        if by_cosine(state):
            return _unit(mixing @ _unit(vectors)).astype(np.float32)
        return (mixing @ vectors).astype(np.float32)


def shown(variants: Sequence[Variant]) -> list[tuple[str, float]]:
    """Return variants for an explanation, long texts cut."""
    return [(each.text[:SHOWN], round(each.weight, 6)) for each in variants]


def _encoded(state: RetrieverState, texts: Sequence[tuple[str, bool]]) -> Any:
    """Return the vectors ``[texts, dim]``, documents' where both sides are of one dense kind."""
    documents = [place for place, (_, document) in enumerate(texts) if document]
    sparse = state.index.innermost.explains
    if not documents or sparse or hooks_of(state.encoder).one_way:
        return state.query_vectors([text for text, _ in texts])
    drafts = state.encoder.encode_documents([texts[place][0] for place in documents])
    vectors = np.empty((len(texts), drafts.shape[1]), np.float32)
    vectors[documents] = drafts
    queries = [place for place, (_, document) in enumerate(texts) if not document]
    if queries:
        vectors[queries] = state.query_vectors([texts[place][0] for place in queries])
    return vectors


def _unit(vectors: Any) -> Any:
    """Return rows at unit length; those of length 0 stay."""
    lengths = np.sqrt(np.asarray((vectors * vectors).sum(axis=1), np.float64)).ravel()
    scale: Any = sp.diags_array(1.0 / np.where(lengths > 0, lengths, 1.0))
    return scale @ vectors
