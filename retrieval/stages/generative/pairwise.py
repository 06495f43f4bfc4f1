"""Pairwise generative reranking: the model compares two documents, in both orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.language_model import LanguageModel, chances
from sluice.encoders.rerankers.prompt import Prompt, Template
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.answers import checked_answers, head_texts, told_silent

PAIRWISE = (
    "Which of two documents is more relevant to the query?\n\nQuery: {query}\n\n"
    "Document {first}: {one}\n\nDocument {second}: {other}\n\n"
    "Answer with one letter, {first} or {second}.\nMore relevant:"
)
AT_ONCE = 4_096  # prompts in memory together


class Duel(NamedTuple):
    """Two candidates of a query, by their places, the first of them shown first."""

    query: str
    first: int
    second: int


class Pairwise:
    """A scorer of lists: the sum of the chances with which a document wins its comparisons.

    The first ``depth`` candidates are compared, each with each other in both orders, so that a
    model's liking for the first or the second place cancels: n (n - 1) prompts a query, and totals
    that sum to as many. With ``opponents`` m each is compared with the m candidates after it (and
    before it) in the order given, the last being followed by the first: n m pairs, 2 n m prompts.
    The candidates below the depth keep their order under the others. A comparison without an answer
    is a draw. (Huang and Chen, 2024, InstUPR, arXiv 2403.16435.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = PAIRWISE,
        answers: Sequence[str] = ("A", "B"),
        depth: int = 30,
        opponents: int | None = None,
    ) -> None:
        self.model = model
        self.answers = checked_answers(answers)
        if len(self.answers) != 2:
            raise ConfigError(f"answers: {self.answers}; expected two, for the first and second")
        for name, answer in zip(("{first}", "{second}"), self.answers, strict=True):
            prompt = prompt.replace(name, answer)
        self.template = Template(prompt, ["query", "one", "other"])
        self.depth = whole_number(depth, "depth", 1)
        self.opponents = opponents
        if opponents is not None:
            whole_number(opponents, "opponents", 1)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt, the answers and which pairs are compared."""
        settings = [self.template.text, self.answers, self.depth, self.opponents]
        return fingerprint_of("pairwise", self.model.fingerprint, settings)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return each candidate's total, float64 ``[candidates]`` a query; below the depth, < 0."""
        texts = head_texts(heads, documents, type(self).__name__, self.depth)
        totals: dict[str, NDArray[np.float64]] = {}
        for query, head in heads.items():
            compared = len(texts[query])
            totals[query] = -np.maximum(np.arange(len(head)) - compared + 1.0, 0.0)
        asked = silent = 0
        for duels in self._portions(texts):
            prompts = [self._prompt(queries[duel.query], texts, duel) for duel in duels]
            shares, unanswered = chances(self.model, prompts, self.answers)
            for duel, (one, other) in zip(duels, shares.tolist(), strict=True):
                totals[duel.query][duel.first] += one
                totals[duel.query][duel.second] += other
            asked, silent = asked + len(duels), silent + unanswered
        told_silent(type(self).__name__, silent, asked)
        # Sums of the same chances in another order differ by rounding, which would part ties.
        return {query: np.round(total, 9) for query, total in totals.items()}

    def _portions(self, texts: Mapping[str, Sequence[str]]) -> Iterator[list[Duel]]:
        waiting: list[Duel] = []
        for query, own in texts.items():
            for first, second in pairs_of(len(own), self.opponents):
                waiting += [Duel(query, first, second), Duel(query, second, first)]
            if len(waiting) >= AT_ONCE:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def _prompt(self, query: str, texts: Mapping[str, Sequence[str]], duel: Duel) -> Prompt:
        own = texts[duel.query]
        one, other = own[duel.first], own[duel.second]
        return self.template.fill({"query": query, "one": one, "other": other})


def pairs_of(count: int, opponents: int | None = None) -> list[tuple[int, int]]:
    """Return the pairs of places that are compared, all of them by default.

    With ``opponents`` m each place is paired with the m that follow it, around the end.
    """
    if opponents is None or 2 * opponents >= count - 1:
        return [(one, other) for one in range(count) for other in range(one + 1, count)]
    return [(one, (one + gap) % count) for one in range(count) for gap in range(1, opponents + 1)]
