"""Query-weighted extractive summaries: the sentences of a document that answer a query best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sluice.retrieval.retrievers.corpus.windows import WORD
from sluice.training.generation.inverse_cloze import sentences

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
