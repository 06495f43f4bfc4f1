"""Batches of queries with something to write, drawn by seed and epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from sluice.training.batches.collator import Batch
from sluice.training.batches.masked import drawn_bytes
from sluice.training.batches.processes import rank, shares, world
from sluice.training.example import Example
from sluice.training.protocol import Features


class DrawingCollator(ABC):
    """Makes features of queries alone; what it draws is a function of seed, epoch and query.

    So the order of the queries, and how many processes share a batch, change nothing.
    """

    def __init__(self, encoder: Any, seed: int) -> None:
        self.encoder = encoder
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next batches are drawn by."""
        self.epoch = epoch

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the features of this process's part of the queries, and the ids of all."""
        parts = [examples[part] for part in shares(len(examples), world())]
        return {
            "features": {"query": self.features(parts[rank()])},
            "sizes": {"query": [len(part) for part in parts]},
            "ids": {"query": tuple(e.query.id for e in examples), "document": ()},
        }

    @abstractmethod
    def features(self, examples: Sequence[Example]) -> Features:
        """Return tokenised queries, and ``labels``: the tokens to write, or ``IGNORED``."""

    def digest(self, example: Example) -> bytes:
        """Return the bytes, 32 of them, that decide an example's draws in this epoch."""
        return drawn_bytes(self.seed, self.epoch, example.query.id)

    def chance(self, example: Example) -> np.random.Generator:
        """Return the generator of an example's draws in this epoch."""
        return np.random.default_rng(int.from_bytes(self.digest(example)[:16], "little"))
