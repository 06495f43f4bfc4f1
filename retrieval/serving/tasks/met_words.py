"""Shows in a text the words that tokens of a query met, for scores by token vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.snippet import LONGEST_WORD, WORD, best_part
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.serving.shapes.search import MetSnippet, MetWord

SNIPPET = 320  # characters, as many as of a snippet by words
UNSPACED = 0x2E80  # the first letter of scripts that put no spaces between words
SPACE = re.compile(r"\s")


def met_snippet(document: Document, matches: Sequence[TokenMatch]) -> MetSnippet | None:
    """Return the part of a document's text with most words that the query's own tokens met.

    None where no such word is in the text: in the title alone, or the encoder does not tell where
    its tokens stand. A token that is part of a word stands for the word.
    """
    text = SPACE.sub(" ", document.text)
    met: dict[tuple[int, int], list[TokenMatch]] = {}
    for match in matches:
        if not match.in_query:
            continue
        places = {_word(text, *document.own_characters(*span)) for span in match.spans}
        for start, end in sorted(places):
            if start < end:
                met.setdefault((start, end), []).append(match)
    if not met:
        return None
    first, last = best_part(text, [(*place, str(place)) for place in sorted(met)], SNIPPET)
    ahead = "... " if first else ""
    words = [
        MetWord(
            start=start - first + len(ahead),
            end=end - first + len(ahead),
            adds=sum(float(match.similarity) for match in of_word),
            tokens=[match.query_token for match in of_word],
        )
        for (start, end), of_word in sorted(met.items())
        if first <= start and end <= last
    ]
    behind = " ..." if last < len(text) else ""
    return MetSnippet(text=ahead + text[first:last] + behind, words=words)


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the word around the characters of a token; the characters alone if it is none.

    So too in a word too long to be one, such as base64.
    """
    if start >= end or ord(text[start]) >= UNSPACED or WORD.match(text, start, start + 1) is None:
        return start, end
    first, least = start, max(0, start - LONGEST_WORD)
    while first > least and WORD.match(text, first - 1, first):
        first -= 1
    found = WORD.match(text, start, first + LONGEST_WORD + 1)
    last = max(end, found.end()) if found else end
    return (start, end) if last - first > LONGEST_WORD else (first, last)
