"""Training a model to write the order of documents: the batches, and the pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sluice.training.batches.forward import TrainedModule
from sluice.training.batches.masked import IGNORED
from sluice.training.example import Example
from sluice.training.generation.drawn import DrawingCollator
from sluice.training.protocol import Features, ListWriter


class RankingCollator(DrawingCollator):
    """Shows each query's documents in an order drawn by seed, epoch and query.

    What is to be written is their order by label; documents of equal labels follow as they are
    shown. Of an example that orders nothing no token counts.
    """

    encoder: ListWriter

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the prompts' features, and ``labels`` and ``ranks`` ``[n, longest]``."""
        shown = [self.shown(each) for each in examples]
        lists = [
            (each.query.text, [each.documents[place].text for place in places])
            for each, places in zip(examples, shown, strict=True)
        ]
        answers = []
        for each, places, (query, texts) in zip(examples, shown, lists, strict=True):
            labels = np.array([each.labels[place] for place in places])
            order = np.argsort(-labels, kind="stable").tolist()
            tokens, ranks = self.encoder.answer(query, texts, order)
            answers.append((tokens if orders(each) else [IGNORED] * len(tokens), ranks))
        features: Features = dict(self.encoder.tokenize_lists(lists))
        features["labels"] = _padded([tokens for tokens, _ in answers], IGNORED)
        features["ranks"] = _padded([ranks for _, ranks in answers], 0)
        return features

    def shown(self, example: Example) -> list[int]:
        """Return the places of an example's documents in the order they are shown."""
        places: list[int] = self.chance(example).permutation(len(example.documents)).tolist()
        return places


def orders(example: Example) -> bool:
    """Return whether an example has documents of different labels."""
    return len(set(example.labels)) > 1


def _padded(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    values = torch.full((len(rows), max(map(len, rows), default=1)), padding)
    for number, row in enumerate(rows):
        values[number, : len(row)] = torch.tensor(row, dtype=torch.long)
    return values


class RankingModule(TrainedModule):
    """Lists to how badly the tokens of their orders are predicted."""

    def __init__(self, encoder: Any, *, importance: float, smoothing: float) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.importance = importance
        self.smoothing = smoothing

    def forward(self, query: Features) -> dict[str, Tensor]:
        """Return ``query`` ``[n, 2]``: weighted sums of cross-entropies, and numbers of tokens."""
        labels, ranks = query["labels"], query["ranks"]
        features = {name: query[name] for name in query if name not in ("labels", "ranks")}
        logits = self.encoder.answer_logits(features, labels.clamp_min(0))
        entropies = cross_entropy(
            logits.float().flatten(0, 1) if logits.element_size() < 4 else logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
            reduction="none",
        ).view(labels.shape)
        sums = (entropies * importances(ranks, self.importance).to(entropies.dtype)).sum(1)
        counts = (labels != IGNORED).sum(1).to(sums.dtype)
        return {"query": torch.stack([sums, counts], dim=1)}


def importances(ranks: Tensor, importance: float) -> Tensor:
    """Return ``1 + importance / log2(1 + r)`` for ranks r from 1, and 1 where they are 0."""
    more = importance / torch.log2(1 + ranks.clamp_min(1).double())
    return torch.where(ranks > 0, 1 + more, 1.0)
