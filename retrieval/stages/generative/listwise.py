"""Listwise generative reranking: a model writes the order of many documents, window by window."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.generative.list_order import LISTWISE, ListOrder, places_won
from sluice.encoders.rerankers.language_model import LanguageModel
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.generative.answers import head_texts, told_silent


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
        self.order = ListOrder(model, prompt=prompt, window=window, step=step, passes=passes)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and the windows."""
        order = self.order
        settings = [order.template.text, order.window, order.step, order.passes]
        return fingerprint_of("listwise", self.model.fingerprint, settings)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return how many candidates each one is placed before, float64 ``[candidates]``."""
        texts = head_texts(heads, documents, type(self).__name__)
        orders, asked, silent = self.order.ordered(queries, texts)
        told_silent(type(self).__name__, silent, asked)
        return {query: places_won(order) for query, order in orders.items()}
