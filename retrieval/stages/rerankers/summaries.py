"""Reranks long documents by extractive summaries made for each query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.pipelines.scorer import Scorer
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.corpus.late_chunks import WORD
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerAround
from sluice.retrieval.stages.rerankers.stored_vectors import retriever_state
from sluice.training.generation.inverse_cloze import sentences

if TYPE_CHECKING:
    from sluice.encoders.lexical.bm25 import BM25Encoder

Terms = Callable[[str], Sequence[str]]


class Part(NamedTuple):
    """A sentence, or as much of a long one as fits: its text, its words' number, its terms."""

    text: str
    words: int
    terms: frozenset[str]


def parts_of(text: str, terms: Terms, most: int) -> list[Part]:
    """Return a text's sentences in order; one of more than ``most`` words is cut into several."""
    parts = []
    for sentence in sentences(text):
        spans = [word.span() for word in WORD.finditer(sentence)]
        for start in range(0, len(spans), most):
            stop = min(start + most, len(spans))
            piece = sentence[spans[start][0] : spans[stop - 1][1]]
            parts.append(Part(piece, stop - start, frozenset(terms(piece))))
    return parts


def chosen_parts(
    parts: Sequence[Part], weights: Mapping[str, float], budget: int, decay: float
) -> list[int]:
    """Return the places of the parts of a summary of at most ``budget`` words, in order.

    Greedy: each step takes the part with the largest sum of the weights of the query's terms in it,
    of those that still fit, the earlier one of two that tie; the weights of its terms are then
    multiplied by ``decay``. When none that fits has any weight left, the rest of the budget goes to
    the document's first sentences, as far as they fit without a gap.
    """
    left = dict(weights)
    hits = {place: part.terms & left.keys() for place, part in enumerate(parts)}
    open_places = [place for place, found in hits.items() if found]
    chosen: list[int] = []
    while open_places:
        open_places = [place for place in open_places if parts[place].words <= budget]
        gains = [sum(left[term] for term in sorted(hits[place])) for place in open_places]
        if not gains or max(gains) <= 0:
            break
        best = open_places.pop(gains.index(max(gains)))
        chosen.append(best)
        budget -= parts[best].words
        for term in hits[best]:
            left[term] *= decay
    for place, part in enumerate(parts):
        if place in chosen:
            continue
        if part.words > budget:
            break
        chosen.append(place)
        budget -= part.words
    return sorted(chosen)


Weigh = Callable[[str], Mapping[str, float]]  # a query to the weights of its terms


class Summarised(ScorerAround):
    """``scorer`` reads a summary of each document instead: at most ``words`` words, for the query.

    A document of no more words is read as it is. Of a longer one, sentences are picked greedily by
    the weights of the query's terms in them; what is covered already counts ``decay`` as much each
    time (0: once, 1: every time). They stand in the order of the document. Terms weigh their idf in
    ``bm25``, a BM25 retriever, or 1 without one. The same input always gives the same summary, and
    none is above the budget. (After the query-weighted summaries of Pyramid-ERNIE: Zou et al.,
    2021, arXiv 2105.11108.)
    """

    def __init__(
        self,
        scorer: Scorer,
        bm25: Stage | None = None,
        /,
        *,
        words: Annotated[int, "Words of a summary, at most."] = 150,
        decay: Annotated[
            float, "What a term counts that is covered already: 0 nothing, 1 as before."
        ] = 0.5,
    ) -> None:
        super().__init__(scorer, "summarised")
        if bm25 is not None and not isinstance(bm25, Stage):
            raise ConfigError(
                f"summarised: {type(bm25).__name__}; expected a BM25 retriever for the weights"
            )
        self.bm25 = bm25
        self.words = whole_number(words, "summarised: words", 1)
        self.decay = finite_number(decay, "summarised: decay", 0, 1)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The retriever that terms get their weights from, and those the scorer looks into."""
        own = () if self.bm25 is None else (self.bm25,)
        return (*own, *super().stages)

    @property
    def fingerprint(self) -> str:
        """A hash of the scorer, the settings and what the weights come from."""
        source = "" if self.bm25 is None else self._encoder().fingerprint
        return fingerprint_of("summarised", self._identity(), self.words, self.decay, source)

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return the scorer's score of each query with the document's summary for it."""
        return self.scorer.score(self.summaries(pairs))

    def summaries(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return each pair with the document's summary in its place."""
        terms, weigh = self._weighing()
        weights = {query: weigh(query) for query in dict.fromkeys(query for query, _ in pairs)}
        parts: dict[str, list[Part] | None] = {}
        for document in dict.fromkeys(document for _, document in pairs):
            short = sum(1 for _ in WORD.finditer(document)) <= self.words
            parts[document] = None if short else parts_of(document, terms, self.words)
        return [
            (query, self._summary(document, parts[document], weights[query]))
            for query, document in pairs
        ]

    def _summary(
        self, document: str, parts: list[Part] | None, weights: Mapping[str, float]
    ) -> str:
        if parts is None:
            return document
        places = chosen_parts(parts, weights, self.words, self.decay)
        return " ".join(parts[place].text for place in places)

    def _encoder(self) -> BM25Encoder:
        from sluice.encoders.lexical.bm25 import BM25Encoder

        if self.bm25 is None:
            raise ConfigError("summarised: no retriever was given")
        found = retriever_state(self.bm25, "summarised").encoder
        if not isinstance(found, BM25Encoder):
            raise ConfigError(
                f"summarised: {self.bm25.name} has a {type(found).__name__}, expected a BM25 "
                "retriever, whose idf weighs the terms"
            )
        return found

    def _weighing(self) -> tuple[Terms, Weigh]:
        """Return how texts become terms, and queries the weights of theirs."""
        from sluice.encoders.lexical.analyzer import analyzer

        if self.bm25 is None:
            plain = analyzer("en")
            return plain, lambda query: dict.fromkeys(plain(query), 1.0)
        encoder = self._encoder()
        terms = analyzer(encoder.language)
        weigh = _idf_of(encoder)
        return terms, lambda query: {term: weigh(term) for term in dict.fromkeys(terms(query))}


def _idf_of(encoder: BM25Encoder) -> Callable[[str], float]:
    """Return a term's idf; of fields the largest, 0 for a term that no document has."""
    vocabulary, idf = encoder.vocabulary, encoder.idf()
    fields = [f"{field}:" for field in encoder.fields or {}] or [""]

    def found(term: str) -> float:
        columns = [vocabulary[name] for field in fields if (name := field + term) in vocabulary]
        return float(max((idf[column] for column in columns), default=0.0))

    return found


summarised = Summarised  # ``summarised(cross, bm25, words=150, depth=50)`` in a pipeline
