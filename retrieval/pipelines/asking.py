"""What may go with a question: several as one, the reasoning so far, what was seen, a budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.lexical.long_query import LongQuery
from sluice.retrieval.documents.likeness import text_likeness, varied
from sluice.retrieval.documents.text import CHARACTERS, best_part, matches, tokens_of
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.hit import Hit, Passage
from sluice.retrieval.pipelines.search import Several, several
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import Span, passages_by_best
from sluice.retrieval.runs.queries import DEPTH, Queries, Unseen, as_queries, like
from sluice.retrieval.runs.run import Run, without

APART: Final = "\n\n"  # between a question and the context
HITS: Final = 10  # unless another number is asked for
LOOKED_AT: Final = 50  # documents, of which those are chosen that fill a budget
PART: Final = 300  # characters of a document that is not indexed by passages
DUPLICATES: Final = 0.8  # from which likeness on a passage repeats a better one, as in ``diverse``


class Dropped(NamedTuple):
    """A document that is left out: no room, or so like another one, ``of``, that is in."""

    doc_id: str
    of: str | None = None
    likeness: float | None = None


class Filled(list[Hit]):
    """Hits whose titles and passages have about ``tokens``, best first, and what was ``dropped``.

    Each has a passage, which is what was counted: the text of a hit is the whole document's.
    """

    def __init__(self, hits: Sequence[Hit], tokens: int, dropped: Sequence[Dropped]) -> None:
        super().__init__(hits)
        self.tokens, self.dropped = tokens, tuple(dropped)

    @property
    def repetitions(self) -> list[str]:
        """What was dropped for which better hit, in words."""
        return [f"{each.doc_id} like {each.of}" for each in self.dropped if each.of]


@dataclass(frozen=True, slots=True)
class Asking:
    """What goes with the questions; ``ConfigError`` names the one that is wrong.

    ``fuse`` answers several questions as one, by the reciprocal ranks in their lists. ``context``
    is read behind each question; BM25 weighs both as a document, see ``LongQuery``. ``seen`` are
    ids of documents that are left out, unknown ones too: as many others take their places.
    ``budget_tokens`` fills so many tokens with passages, see ``filled``.
    """

    fuse: bool = False
    context: str | None = None
    seen: Collection[str] = ()
    budget_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fuse, bool):
            raise ConfigError(f"fuse: {self.fuse!r:.60}; expected true or false")
        if self.context is not None and not (
            isinstance(self.context, str) and self.context.strip()
        ):
            raise ConfigError(
                f"context: {self.context!r:.60}; expected the reasoning so far, or leave it out"
            )
        if isinstance(self.seen, str) or not all(isinstance(each, str) for each in self.seen):
            raise ConfigError(f"seen: {self.seen!r:.60}; expected a list of documents' ids")
        if self.budget_tokens is not None:
            whole_number(self.budget_tokens, "budget_tokens", 1)

    @property
    def is_more(self) -> bool:
        """Whether there is more than a question."""
        beside = self.context is not None or self.budget_tokens is not None
        return self.fuse or beside or len(self.seen) > 0

    def depth(self, k: int | None) -> int:
        """Return how many documents to look at for ``k`` hits."""
        own = HITS if k is None else whole_number(k, "k", 1)
        return own if self.budget_tokens is None else max(own, LOOKED_AT)

    def over(self, stage: Stage, query: str | Several) -> tuple[Stage, str | Several]:
        """Return the stage that answers, and what to ask it: of fused questions one text."""
        if not self.is_more:
            return stage, query
        if not self.fuse:
            return Asked(stage, self), query
        questions = [query] if isinstance(query, str) else list(several(query).values())
        if not questions:
            raise ConfigError("query: an empty list; expected at least one question")
        if len(questions) == 1:
            return Asked(stage, self), questions[0]
        return Asked(stage, self, questions), "\n".join(questions)

    def hits(
        self, stage: Stage, query: str | Several, k: int | None
    ) -> list[Hit] | list[list[Hit]]:
        """Return the hits of one query, of fused ones, or of each of several."""
        asked, query = self.over(stage, query)
        found: Any = asked._hits(query, self.depth(k))
        if isinstance(query, str):
            return self.chosen(query, found, k)
        texts = several(query).values()
        return [self.chosen(*each, k) for each in zip(texts, found, strict=True)]

    def chosen(self, query: str, hits: list[Hit], k: int | None) -> list[Hit]:
        """Return those of the hits that fill the budget, all without one."""
        budget = self.budget_tokens
        return hits if budget is None else filled(query, hits, budget, k)


def filled(query: str, hits: Sequence[Hit], budget: int, k: int | None = None) -> Filled:
    """Return the hits, at most ``k``, whose passages fill a number of tokens.

    Of a document without passages it is the part with most words of the query. Passages that repeat
    a better one are dropped; the others are taken, the best first, as long as they fit. Where none
    does, the best is cut between words.
    """
    cut = [hit if hit.passage else _with_part(hit, query, PART) for hit in hits]
    scores = np.array([hit.score for hit in cut])
    found = varied(scores, text_likeness([*map(_text, cut)]), 1.0, DUPLICATES)
    chosen, left = list[int](), budget
    for place in found.places:
        size = tokens_of(_shown(cut[place]))
        if 0 < size <= left and (k is None or len(chosen) < k):
            chosen.append(place)
            left -= size
    if not chosen and cut and (part := _fitting(cut[found.places[0]], query, budget)):
        chosen, cut[found.places[0]] = [found.places[0]], part
        left -= tokens_of(_shown(part))
    like = {each.place: (hits[each.of].doc_id, round(each.likeness, 3)) for each in found.dropped}
    dropped = [
        Dropped(hit.doc_id, *like.get(place, ()))
        for place, hit in enumerate(hits)
        if place not in chosen
    ]
    return Filled([cut[place] for place in sorted(chosen)], budget - left, dropped)


def _text(hit: Hit) -> str:
    return hit.text if hit.passage is None else hit.passage.text


def _shown(hit: Hit) -> str:
    return f"{hit.title} {_text(hit)}".strip()


def _with_part(hit: Hit, query: str, length: int) -> Hit:
    """Return a hit with the part of its passage, or text, with most words of a query."""
    text, number, start = hit.text, 1, 0
    if hit.passage is not None:
        number, start, _, text = hit.passage
    first, last = best_part(text, matches(text, query), length)
    return hit._replace(passage=Passage(number, start + first, start + last, text[first:last]))


def _fitting(hit: Hit, query: str, budget: int) -> Hit | None:
    """Return a hit with as large a part of its passage as fits, None where no word does."""
    length = CHARACTERS * budget
    while length > 0:
        part = _with_part(hit, query, length)
        if tokens_of(_shown(part)) <= budget:
            return part if _text(part).strip() else None
        length -= max(1, length // 8)
    return None


class Asked(Around):
    """``stage``, asked with a context and without what was seen.

    Of fused ``questions`` the answer is that to each of the queries, whatever their texts.
    """

    def __init__(self, stage: Stage, asking: Asking, questions: Sequence[str] = ()) -> None:
        self.asking, self.questions = asking, questions
        super().__init__(stage, "asked")

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage for the queries, or for the questions to its full depth."""
        if not self.questions:
            return self._ranked(queries, given, k)
        depth = max(DEPTH, k or 0)
        texts = as_queries(list(self.questions))
        if self.names_passages:  # of each question by itself
            runs = [self._ranked({name: text}, given, depth) for name, text in texts.items()]
        else:
            runs = [self._ranked(texts, given, depth)]
        lists = [Run({"": ranking}) for run in runs for ranking in run.values()]
        return Run(dict.fromkeys(queries, Fusion("rrf").fuse(lists)[""]), name=self.name)

    def _ranked(self, queries: Queries, given: Run | None, k: int | None) -> Run:
        context, seen = self.asking.context, self.asking.seen
        if context is not None:
            long = {
                name: LongQuery(text + APART + context) if text.strip() else text
                for name, text in queries.items()
            }
            queries = like(queries, long)
        if not len(seen):
            return self.stage.rank(queries, given, k)
        run = self.stage.rank(Unseen(queries, seen), given, k)
        # Also of stages that search by queries of their own.
        return Run({name: without(each, *seen) for name, each in run.items()}, name=run.name)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask for each document the question that ranked it best."""
        return passages_by_best(span.inner, query, doc_ids)
