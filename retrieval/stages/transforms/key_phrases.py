"""Key phrases: a long query is also searched by its phrases of rare words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Final

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.lexical.analyzer import marks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.transforms.corpus_words import CorpusWords, OfCorpus
from sluice.retrieval.stages.transforms.stage import Transformed, Variant

LONGEST: Final = 4  # words of a phrase; longer runs are cut


class KeyPhrases(OfCorpus):
    """The transform that adds a query's key phrases to it.

    A phrase is a run of words, not interrupted by a mark, all of which a document has and none of
    which more than ``common`` of the documents (and more than one) have; runs are cut into pieces
    of four words. Its score is the sum, over its words, of the count in the query times
    ln((N + 1) / (df + 0.5)), for N documents, df of them with the word. The best ``phrases`` share
    ``weight`` by their scores; the query counts ``query_weight``.
    """

    def __init__(
        self, phrases: int, weight: float, query_weight: float, common: float, language: str
    ) -> None:
        super().__init__(language, "key_phrases")
        self.phrases = whole_number(phrases, "key_phrases: phrases", 1)
        self.weight = finite_number(weight, "key_phrases: weight", 0)
        self.query_weight = finite_number(query_weight, "key_phrases: query_weight", 0)
        if self.weight == 0:
            raise ConfigError("key_phrases: weight 0 changes nothing; expected a number above 0")
        self.common = finite_number(common, "key_phrases: common", 0, 1)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its phrases; nothing where these are its only words."""
        words = self.words
        return [self._of(query, words) for query in queries]

    def _of(self, query: str, words: CorpusWords) -> list[Variant]:
        scores = self.scored(query, words)
        best = sorted(scores, key=lambda phrase: (-scores[phrase], phrase))[: self.phrases]
        if not best or set(" ".join(best).split()) == set(words.analyzer.words(query)):
            return []
        total = sum(scores[phrase] for phrase in best)
        shares = [Variant(phrase, self.weight * scores[phrase] / total) for phrase in best]
        return [Variant(query, self.query_weight), *shares]

    def scored(self, query: str, words: CorpusWords) -> dict[str, float]:
        """Return the score of each phrase of a query."""
        most = max(1.0, self.common * words.documents)
        runs: list[list[str]] = []
        for part in _breaks(query.isascii()).split(query):
            runs.append([])
            for word in words.analyzer.words(part):
                if 0 < words.frequencies.get(word, 0) <= most:
                    runs[-1].append(word)
                else:
                    runs.append([])
        counts = Counter(word for run in runs for word in run)
        pieces = (run[at : at + LONGEST] for run in runs for at in range(0, len(run), LONGEST))
        return {
            " ".join(piece): sum(
                counts[word] * math.log((words.documents + 1) / (words.frequencies[word] + 0.5))
                for word in piece
            )
            for piece in pieces
        }


def key_phrases(
    stage: Stage,
    /,
    *,
    phrases: Annotated[int, "Phrases that are searched by, at most."] = 3,
    weight: Annotated[
        float, "What all phrases count together; the query counts query_weight."
    ] = 0.5,
    query_weight: Annotated[float, "What the query itself counts; 0: the phrases alone."] = 1.0,
    common: Annotated[float, "Words in a larger share of the documents are in no phrase."] = 0.1,
    language: Annotated[str, "The language of the texts, as of BM25."] = "en",
) -> Transformed:
    """Search by the query and its key phrases: runs of words that few documents have.

    The best ``phrases`` share ``weight`` by their scores, and the query counts ``query_weight``; 0
    searches by the phrases alone. Words in more than ``common`` of the documents are in no phrase,
    and ``language`` says where words end. (Phrases as in RAKE, Rose et al. 2010, Automatic keyword
    extraction from individual documents, with document frequencies in the place of stop words;
    weighed against the query as in Bendersky and Croft 2008, Discovering key concepts in verbose
    queries.)
    """
    rule = KeyPhrases(phrases, weight, query_weight, common, language)
    options = {
        "phrases": phrases, "weight": weight, "query_weight": query_weight, "common": common,
        "language": language,
    }  # fmt: skip
    return Transformed(stage, rule, "key_phrases", options=options)


@cache
def _breaks(ascii_only: bool) -> re.Pattern[str]:
    """Return what finds the signs that no phrase goes across; accents are none of them."""
    parts_of_words = "" if ascii_only else marks()
    return re.compile(rf"[^\w\s'\u2019\-{parts_of_words}]+|\n\s*\n")
