"""Fits an error adapter (RRRA, stage 2) to a bi-encoder's vectors and its decisions."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sluice.encoders.dense.error_adapter import ErrorAdapter, segment_distance
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError

DECISIONS = ("true negatives", "false positives", "false negatives", "true positives")


class Decisions(NamedTuple):
    """Pairs of a query and a document, by their rows, and what is known of them, all ``[n]``.

    ``relevant``: a judgement says so. ``found``: it is among the query's first hits.
    """

    queries: NDArray[np.int64]
    documents: NDArray[np.int64]
    relevant: NDArray[np.bool_]
    found: NDArray[np.bool_]

    @property
    def kinds(self) -> NDArray[np.int64]:
        """The place of each pair's kind in ``DECISIONS``."""
        return 2 * self.relevant.astype(np.int64) + self.found


@checked()
def fit_error_adapter(
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    decisions: Decisions,
    *,
    hidden: Annotated[int | None, Ge(1), "Units of the hidden layer."] = None,
    steps: Annotated[int, Ge(1), "Steps of training."] = 400,
    batch: Annotated[int, Ge(1)] = 512,
    learning_rate: Annotated[float, Gt(0), "The learning rate of AdamW."] = 1.0e-3,
    pull: Annotated[float, Ge(0)] = 0.1,
    seed: int = 13,
) -> ErrorAdapter:
    """Learn which of the pairs of vectors ``[n, dim]`` and ``[m, dim]`` are relevant.

    Minimises, by AdamW, the cross-entropy of relevance with the four kinds of ``DECISIONS`` equally
    heavy, plus ``pull`` times ``segment_distance``. A step draws as many pairs of each kind, so
    that ``batch`` is divided among the kinds that there are. ``hidden`` is the width, by default
    that of a vector. Raises ``DataError`` unless some pairs are relevant and some are not.
    """
    kinds = decisions.kinds
    groups = [rows for kind in range(4) if len(rows := np.flatnonzero(kinds == kind))]
    if len(np.unique(decisions.relevant)) < 2:
        raise DataError(
            f"error adapter: all {len(kinds):,} pairs are "
            f"{'relevant' if decisions.relevant.any() else 'not relevant'}; there is nothing to "
            "learn from"
        )
    dim = documents.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = ErrorAdapter(dim, dim if hidden is None else hidden)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=learning_rate, weight_decay=0.01)
    draw = np.random.default_rng(seed)
    each = max(1, batch // len(groups))
    for _ in range(steps):
        rows = np.concatenate([group[draw.integers(0, len(group), each)] for group in groups])
        q = torch.from_numpy(queries[decisions.queries[rows]])
        c = torch.from_numpy(documents[decisions.documents[rows]])
        goal = torch.from_numpy(decisions.relevant[rows]).float()
        loss = adapter_loss(adapter, q, c, goal, pull=pull)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if not all(torch.isfinite(value).all() for value in adapter.parameters()):
        raise DataError("error adapter: the weights are not finite; lower learning_rate")
    return adapter.eval()


def adapter_loss(
    adapter: ErrorAdapter, queries: Tensor, documents: Tensor, relevant: Tensor, *, pull: float
) -> Tensor:
    """Return the mean cross-entropy of relevance ``[n]`` plus ``pull`` segment distances."""
    adapted = adapter(queries, documents)
    value = binary_cross_entropy_with_logits(adapter.logits(queries, adapted), relevant)
    return value + pull * segment_distance(adapted, queries, documents).mean()
