"""Training a model to write the order of documents: the batches, and the pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sluice.training.batches.collator import Batch
from sluice.training.batches.forward import TrainedModule
from sluice.training.batches.masked import IGNORED
from sluice.training.batches.processes import rank, shares, world
from sluice.training.example import Example
from sluice.training.protocol import Features, ListWriter


class RankingCollator:
    """Shows each query's documents in an order drawn by seed, epoch and query.

    What is to be written is their order by label; documents of equal labels follow as they are
    shown. Of an example that orders nothing no token counts.
    """

    def __init__(self, encoder: ListWriter, seed: int) -> None:
        self.encoder = encoder
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order of documents the next batches get."""
        self.epoch = epoch

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the prompts' features, and ``labels`` and ``ranks`` ``[n, longest]``."""
        parts = [examples[part] for part in shares(len(examples), world())]
        own = parts[rank()]
        shown = [self.shown(each) for each in own]
        lists = [
            (each.query.text, [each.documents[place].text for place in places])
            for each, places in zip(own, shown, strict=True)
        ]
        answers = []
        for each, places, (query, texts) in zip(own, shown, lists, strict=True):
            labels = np.array([each.labels[place] for place in places])
            order = np.argsort(-labels, kind="stable").tolist()
            tokens, ranks = self.encoder.answer(query, texts, order)
            answers.append((tokens if orders(each) else [IGNORED] * len(tokens), ranks))
        features: Features = dict(self.encoder.tokenize_lists(lists))
        features["labels"] = _padded([tokens for tokens, _ in answers], IGNORED)
        features["ranks"] = _padded([ranks for _, ranks in answers], 0)
        return {
            "features": {"query": features},
            "sizes": {"query": [len(part) for part in parts]},
            "ids": {"query": tuple(e.query.id for e in examples), "document": ()},
        }

    def shown(self, example: Example) -> list[int]:
        """Return the places of an example's documents in the order they are shown."""
        name = f"{self.seed}:{self.epoch}:{example.query.id}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        chance = np.random.default_rng(int.from_bytes(digest[:16], "little"))
        places: list[int] = chance.permutation(len(example.documents)).tolist()
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
