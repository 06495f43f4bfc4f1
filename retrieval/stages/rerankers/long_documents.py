"""Reranks long documents: by the scores of their passages, or by summaries for each query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.pipelines.scorer import Scorer, Scores
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import SCORED_PASSAGES, passage_notes
from sluice.retrieval.retrievers.corpus.late_chunks import WORD, TokenPieces, windows, word_pieces
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


HOWS = ("max", "first", "sum", "mean")
CUT_AT_ONCE = 256  # documents: the tokens of many texts are large in memory


class PassageScorer(ScorerAround):
    """Scores a pair by ``scorer``'s scores of the query with the document's passages.

    ``how``: ``"max"`` takes the best passage's (MaxP), ``"first"`` scores only the first (FirstP),
    ``"sum"`` adds them up (SumP; Dai and Callan, 2019, arXiv 1905.09217), ``"mean"`` averages them.
    A passage has at most ``length`` tokens of the scorer's tokenizer, or white-space words where it
    has no fast one, and shares ``overlap`` of them with its neighbour; words stay whole. A document
    that fits is scored as it is. ``most`` takes only that many passages, the first ones.

    The scores of logits may be negative, so sums favour documents by their length.
    """

    def __init__(
        self,
        scorer: Scorer,
        /,
        *,
        how: Annotated[
            Literal["max", "first", "sum", "mean"],
            "A document's score: of its best passage (max), the first, the sum or the mean.",
        ] = "max",
        length: Annotated[int, "Tokens of a passage, at most."] = 200,
        overlap: Annotated[int, "Tokens that neighbours share."] = 50,
        most: int | None = None,
    ) -> None:
        super().__init__(scorer, "passages")
        if how not in HOWS:
            raise ConfigError(
                f"passages: how {how!r}; known: {', '.join(HOWS)}{suggest(str(how), HOWS)}"
            )
        self.how = how
        self.length = whole_number(length, "passages: length", 1)
        self.overlap = whole_number(overlap, "passages: overlap", 0, self.length - 1)
        self.most = None if most is None else whole_number(most, "passages: most", 1)

    @property
    def fingerprint(self) -> str:
        """A hash of the scorer and of how documents are cut and scores are joined."""
        settings = [self.how, self.length, self.overlap, self.most]
        return fingerprint_of("passages", self._identity(), settings)

    def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Return one score per (query, document) pair, float32 ``[n]``; all passages at once."""
        if not len(pairs):
            return np.zeros(0, np.float32)
        cut = self._cut(list(dict.fromkeys(document for _, document in pairs)))
        parts = [
            (query, document[start:end])
            for query, document in pairs
            for start, end in cut[document]
        ]
        scores = np.asarray(self.scorer.score(parts), np.float64)
        if scores.shape != (len(parts),):
            return scores.astype(np.float32)  # for the reranker to refuse
        counts = np.array([len(cut[document]) for _, document in pairs])
        starts = np.cumsum(counts) - counts
        self._keep_best([document for _, document in pairs], cut, starts, scores)
        if self.how == "max":
            joined = np.maximum.reduceat(scores, starts)
        else:
            joined = np.add.reduceat(scores, starts)
            joined = joined / counts if self.how == "mean" else joined
        return joined.astype(np.float32)

    def _keep_best(
        self,
        documents: Sequence[str],
        cut: dict[str, list[tuple[int, int]]],
        starts: NDArray[np.int64],
        scores: NDArray[np.float64],
    ) -> None:
        """Keep each document's best passage: its number from 1, and its characters."""
        keep = passage_notes()
        if keep is None:
            return
        best = keep.setdefault(SCORED_PASSAGES, {})
        for document, start in zip(documents, starts.tolist(), strict=True):
            spans = cut[document]
            number = int(np.argmax(scores[start : start + len(spans)]))
            best[document] = (number + 1, *spans[number])

    def _cut(self, documents: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the characters of each document's passages, one at least."""
        tokenizer = self._hooks.tokenizer
        fast = getattr(tokenizer, "is_fast", False)
        pieces_of: Any = TokenPieces(tokenizer) if fast else word_pieces
        most = 1 if self.how == "first" else self.most
        found: dict[str, list[tuple[int, int]]] = {}
        for start in range(0, len(documents), CUT_AT_ONCE):
            block = documents[start : start + CUT_AT_ONCE]
            for document, pieces in zip(block, pieces_of(block), strict=True):
                found[document] = [(0, len(document))]
                if len(pieces) > self.length:
                    spans = windows(pieces.begins, self.length, self.overlap)[:most]
                    found[document] = [pieces.characters(*span) for span in spans]
        return found


by_passages = PassageScorer  # ``passages(cross, how='max', depth=50)`` in a pipeline
