"""Reranks long documents: scores their passages, and joins them into one score a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.pipelines.scorer import Scorer, Scores
from sluice.retrieval.pipelines.tracing import SCORED_PASSAGES, kept
from sluice.retrieval.retrievers.corpus.late_chunks import TokenPieces, windows, word_pieces
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerAround

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
        keep = kept()
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
