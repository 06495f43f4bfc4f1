"""Spelling: words that no document has are replaced by near ones that documents have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Final

from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.lexical.analyzer import marks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.transforms.corpus_words import CorpusWords, OfCorpus, has_digit
from sluice.retrieval.stages.transforms.stage import Transformed, Variant

MOST: Final = 2  # edits of a word
SHORT, LONG = 3, 6  # letters from which one edit is allowed, and ``edits``
LONGEST: Final = 64  # letters; longer ones are not words that people misspell
CORRECTED: Final = 64  # words of a query, at most


class Spelling(OfCorpus):
    """The transform that corrects words by those of the corpus.

    A word that no document has, nor another word of the same term, is replaced by the word of the
    corpus at the least distance (``CorpusWords.nearest``), of several by that in most documents.
    Words of three to five letters may have one edit, longer ones ``edits``, shorter ones and those
    with digits or more than 64 letters none, and of a query its first 64 unknown words count. The
    query as it stands counts ``query_weight`` beside the corrected one's 1.
    """

    def __init__(self, edits: int, query_weight: float, language: str) -> None:
        super().__init__(language, "spelling")
        self.edits = whole_number(edits, "spelling: edits", 1, MOST)
        self.query_weight = finite_number(query_weight, "spelling: query_weight", 0)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its correction; nothing for one whose words are all known."""
        words = self.words
        corrected = [self._corrected(query, words) for query in queries]
        return [
            [] if text == query else [Variant(text), Variant(query, self.query_weight)]
            for query, text in zip(queries, corrected, strict=True)
        ]

    def _corrected(self, query: str, words: CorpusWords) -> str:
        unknown = [
            word
            for word in dict.fromkeys(words.analyzer.words(query))
            if SHORT <= len(word) <= LONGEST and not has_digit(word) and not words.knows(word)
        ]
        text = unicodedata.normalize("NFC", query)  # as the words are
        changed = False
        for word in unknown[:CORRECTED]:
            best = words.nearest(word, 1 if len(word) < LONG else self.edits)
            if best:
                text, changed = _replaced(text, word, best[0]), True
        return text if changed else query


def spelling(
    stage: Stage,
    /,
    *,
    edits: Annotated[
        int, "Letters of a word that may differ, 1 or 2; 1 in words of three to five."
    ] = 2,
    query_weight: Annotated[
        float, "What the query as it stands counts; the corrected one counts 1."
    ] = 0.0,
    language: Annotated[str, "The language of the texts, as of BM25."] = "en",
) -> Transformed:
    """Search with misspelt words corrected by the words of the documents.

    A word that no document has is replaced by the nearest one that documents have, and of several
    by the most frequent. Words of three to five letters may have one edit, longer ones ``edits``,
    1 or 2. ``query_weight`` is what the query as it stands counts beside the corrected one's 1, and
    ``language`` says which words are one term. (Candidates and their order as in SymSpell, Garbe
    2012; edits by length as in Elasticsearch's fuzziness AUTO.)
    """
    rule = Spelling(edits, query_weight, language)
    options = {"edits": edits, "query_weight": query_weight, "language": language}
    return Transformed(stage, rule, "spelling", options=options)


def _replaced(query: str, word: str, by: str) -> str:
    inside = r"\w" if query.isascii() else rf"\w{marks()}"
    pattern = re.compile(rf"(?<![{inside}]){re.escape(word)}(?![{inside}])", re.IGNORECASE)
    return pattern.sub(lambda match: _cased(by, match[0]), query)


def _cased(word: str, like: str) -> str:
    """Return a word with a capital where the one it replaces has one, or has only capitals."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word
