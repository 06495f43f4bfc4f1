"""Listwise generative reranking: a model writes the order of many documents, window by window."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.language_model import LanguageModel
from sluice.encoders.rerankers.prompt import Prompt, Template
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.answers import head_texts, read_order, told_silent

LISTWISE = (
    "Below are {count} documents, each behind its number in brackets. Rank them by how relevant "
    "they are to the query.\n\nQuery: {query}\n\n{documents}\n\nQuery: {query}\n\n"
    "Write the numbers of all {count} documents, the most relevant first, in the form "
    "[2] > [1] > ..., and nothing else.\nRanking:"
)
TOKENS_EACH = 6  # of an answer, such as "[12] > "


class Listwise:
    """A scorer of lists: the places in the order that a model writes.

    Windows of ``window`` candidates go from the back of the list to its front, each ``step``
    places before the last (half a window by default), ``passes`` times over. The best of a window
    move along with them: a model that orders windows rightly brings the best
    ``window - step`` to the top in one pass, and the next as many in each further one.
    ``window=None`` is full ranking: all candidates in one prompt. What the model leaves out stays
    in the order it was in. Windows of all queries are prompted together; cost: about candidates /
    step prompts per query and pass.
    (Sun et al., 2023, RankGPT, arXiv 2304.09542.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = LISTWISE,
        window: int | None = 20,
        step: int | None = None,
        passes: int = 1,
    ) -> None:
        self.model = model
        self.template = Template(prompt, ["query", "documents"], ["count"])
        self.window = window
        usual = 1 if window is None else max(1, whole_number(window, "window", 2) // 2)
        self.step = usual if step is None else whole_number(step, "step", 1)
        self.passes = whole_number(passes, "passes", 1)
        if window is not None and window <= self.step:
            raise ConfigError(
                f"step: {step}; expected less than the window, {window}, so that windows overlap"
            )

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and the windows."""
        settings = [self.template.text, self.window, self.step, self.passes]
        return fingerprint_of("listwise", self.model.fingerprint, settings)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return how many candidates each one is placed before, float64 ``[candidates]``."""
        texts = head_texts(heads, documents, type(self).__name__)
        orders = {query: list(range(len(own))) for query, own in texts.items()}
        plans = {query: self._windows(len(own)) for query, own in texts.items()}
        asked = silent = 0
        for turn in range(max(map(len, plans.values()), default=0)):
            here = {query: plan[turn] for query, plan in plans.items() if turn < len(plan)}
            silent += self._ask(queries, texts, orders, here)
            asked += len(here)
        told_silent(type(self).__name__, silent, asked)
        return {query: _worth(order) for query, order in orders.items()}

    def _windows(self, count: int) -> list[slice]:
        """Return the windows over ``count`` candidates, in the order of their prompts."""
        if count < 2:
            return []
        return windows(count, self.window or count, self.step) * self.passes

    def _ask(
        self,
        queries: Queries,
        texts: Mapping[str, list[str]],
        orders: dict[str, list[int]],
        here: Mapping[str, slice],
    ) -> int:
        """Reorder one window of each query; return how many answers named no document."""
        prompts = []
        for query, window in here.items():
            shown = [texts[query][place] for place in orders[query][window]]
            prompts.append(self._prompt(queries[query], shown))
        longest = max(window.stop - window.start for window in here.values())
        answers = self.model.completions(prompts, TOKENS_EACH * longest + 10)
        silent = 0
        for (query, window), answer in zip(here.items(), answers, strict=True):
            before = orders[query][window]
            order, named = read_order(answer, len(before))
            orders[query][window] = [before[place] for place in order]
            silent += not named
        return silent

    def _prompt(self, query: str, shown: list[str]) -> Prompt:
        return self.template.fill({"query": query, "documents": shown, "count": len(shown)})


def windows(count: int, width: int, step: int) -> list[slice]:
    """Return windows over ``count`` places from the back to the front, the last one at place 0."""
    starts = list(range(count - width, 0, -step))
    return [slice(start, start + width) for start in starts] + [slice(0, min(width, count))]


def _worth(order: list[int]) -> NDArray[np.float64]:
    worth = np.empty(len(order))
    worth[order] = np.arange(len(order) - 1, -1, -1)
    return worth
