"""What may be asked beside a question: several as one, the reasoning so far, what was seen."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.long_query import LongQuery
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.hit import Hit, Passage
from sluice.retrieval.pipelines.search import Several, several
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import Span, passages_by_best
from sluice.retrieval.runs.queries import DEPTH, Queries, Unseen, as_queries
from sluice.retrieval.runs.run import Run, without

APART = "\n\n"  # between a question and the context


@dataclass(frozen=True, slots=True)
class Asking:
    """What goes with the questions; ``ConfigError`` names the one that is wrong.

    ``fuse`` answers several questions as one, by the reciprocal ranks in their lists. ``context``
    is read behind each question; BM25 weighs both as a document, see ``LongQuery``. ``seen`` are
    ids of documents that are left out, unknown ones too: as many others take their places.
    """

    fuse: bool = False
    context: str | None = None
    seen: Collection[str] = ()

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

    @property
    def is_more(self) -> bool:
        """Whether there is more than a question."""
        return self.fuse or self.context is not None or len(self.seen) > 0

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

    def hits(self, stage: Stage, query: str | Several, k: int) -> list[Hit] | list[list[Hit]]:
        """Return the hits of one query, of fused ones, or of each of several."""
        asked, query = self.over(stage, query)
        return asked._hits(query, k)


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
            queries = {
                name: LongQuery(text + APART + context) if text.strip() else text
                for name, text in queries.items()
            }
        if not len(seen):
            return self.stage.rank(queries, given, k)
        run = self.stage.rank(Unseen(queries, seen), given, k)
        # Also of stages that search by queries of their own.
        return Run({name: without(each, *seen) for name, each in run.items()}, name=run.name)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Ask for each document the question that ranked it best."""
        return passages_by_best(span.inner, query, doc_ids)
