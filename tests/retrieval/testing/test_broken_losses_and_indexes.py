"""A loss or an index that breaks a rule is found out, and the message says which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sluice.indexing import FlatIndex, Hits, InvertedIndex
from sluice.retrieval.testing import BrokenRule, check_index, check_loss
from sluice.training.losses.base import LossBase


class Squares(LossBase):
    """The mean over rows of the mean squared distance of scores from labels."""

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        cells = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
        rows = (self.cost(scores, labels.to(scores.dtype)) * cells).sum(1)
        rows = rows / cells.sum(1).clamp(min=1)
        share = (cells.sum(1) > 0).to(scores.dtype)
        share = share if weights is None else share * weights
        return (rows * share).sum() / share.sum().clamp(min=1e-9)

    def cost(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels) ** 2


def loss(**methods: Any) -> Any:
    return type("Broken", (Squares,), methods)


def call(change: Any) -> Any:
    def changed(
        self: Any,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        return change(scores, labels, mask, weights)  # type: ignore[no-any-return]

    return loss(__call__=changed)


PLAIN = Squares()
LOSSES: dict[str, Any] = {
    "hooks": loss(negatives="some"),
    "scalar": call(lambda scores, labels, mask, weights: ((scores - labels) ** 2).mean(1)),
    "gradient": loss(cost=lambda self, scores, labels: (scores - labels) * scores.detach()),
    "again": loss(
        cost=lambda self, scores, labels: (scores - labels) ** 2 * torch.rand(()).double()
    ),
    "order": loss(
        cost=lambda self, scores, labels: (
            (scores - labels) ** 2 * torch.arange(len(scores))[:, None]
        )
    ),
    "mask": call(lambda scores, labels, mask, weights: PLAIN(scores, labels, None, weights)),
    "empty_rows": call(
        lambda scores, labels, mask, weights: (
            PLAIN(scores, labels, mask, weights) * (1 + (mask.sum(1) == 0).sum())
        )
    ),
    "weights": call(
        lambda scores, labels, mask, weights: (
            PLAIN(scores, labels, mask, weights) * (1 if weights is None else weights.sum())
        )
    ),
    "extreme_scores": loss(cost=lambda self, scores, labels: (scores - labels) ** 16),
    "half_precision": call(
        lambda scores, labels, mask, weights: (
            PLAIN(scores, labels, mask, weights) * (5 if scores.dtype == torch.float16 else 1)
        )
    ),
    "state": loss(state=lambda self: {"now": torch.rand(2)}),
}


def test_right_ones_pass() -> None:
    check_loss(Squares)
    check_loss(lambda: Squares().__call__)  # a function has the signature alone


@pytest.mark.parametrize("rule", LOSSES)
def test_broken_losses_are_found_out(rule: str) -> None:
    with pytest.raises(BrokenRule, match=rf"^loss Broken \(\w+\): .* \({rule}\)\n"):
        check_loss(LOSSES[rule], skip=["gradient"] if rule == "again" else [])


def index(kind: Any = FlatIndex, **methods: Any) -> Any:
    made = type("Broken", (kind,), {"type_name": "", "__module__": __name__, **methods})
    globals()["Broken"] = made  # where a saved index finds its class
    return made


def searching(change: Any) -> dict[str, Any]:
    def search(self: Any, vectors: Any, k: int, **options: Any) -> Hits:
        return change(FlatIndex.search(self, vectors, k, **options))  # type: ignore[no-any-return]

    return {"search": search}


INDEXES: dict[str, Any] = {
    "is_an_index": {"rows": property(lambda self: 3)},
    "rows_of_adding": {"add": lambda self, vectors: FlatIndex.add(self, vectors) + 1},
    "form_of_hits": searching(lambda hits: Hits(hits.rows.astype(np.int32), hits.scores)),
    "brute_force": searching(lambda hits: Hits(hits.rows, hits.scores / 2)),
    "one_query_at_a_time": searching(
        lambda hits: Hits(hits.rows, hits.scores - len(hits.rows) // 6)
    ),
    "kept_rows": {
        "search": lambda self, vectors, k, keep=None: FlatIndex.search(
            self, vectors, k, keep=None if isinstance(keep, np.ndarray) else keep
        )
    },
    "deleted_rows": {"delete": lambda self, rows: FlatIndex.delete(self, rows[:-1])},
    "empty_index": {"compact": lambda self: FlatIndex.compact(self) if len(self) else [0]},
    "saved_and_opened": {"size_bytes": property(lambda self: id(self))},
    "refused": {"delete": lambda self, rows: FlatIndex.delete(self, np.unique(rows))},
    "stored_vectors": {"documents": lambda self, rows: FlatIndex.documents(self, rows)[::-1]},
}


@pytest.mark.parametrize("rule", INDEXES)
def test_broken_indexes_are_found_out(rule: str) -> None:
    with pytest.raises(BrokenRule, match=rf"^index Broken: .* \({rule}\)\n"):
        check_index(index(**INDEXES[rule]))


def test_subclasses_pass() -> None:
    check_index(index())
    check_index(index(InvertedIndex))
