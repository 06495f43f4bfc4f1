"""Training a model to write documents' identifiers: the batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.collator import Batch
from sluice.training.batches.masked import IGNORED
from sluice.training.batches.processes import rank, shares, world
from sluice.training.example import Example
from sluice.training.protocol import Features


class IdentifierCollator:
    """Takes the identifier of one positive of each query, drawn by seed, epoch and query.

    ``DataError`` for a positive that the encoder was not assigned an identifier of.
    """

    def __init__(self, encoder: Any, seed: int) -> None:
        self.encoder = encoder
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose positives the next batches get."""
        self.epoch = epoch

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Return the queries' features, and ``labels`` ``[n, 1, longest]``."""
        parts = [examples[part] for part in shares(len(examples), world())]
        own = parts[rank()]
        codes = [self.drawn(each) for each in own]
        labels = np.full((len(own), 1, max(map(len, codes), default=1)), IGNORED, np.int64)
        for row, code in enumerate(codes):
            labels[row, 0, : len(code)] = code
        features: Features = dict(self.encoder.tokenize([e.query.text for e in own], "query"))
        features["labels"] = torch.from_numpy(labels)
        return {
            "features": {"query": features},
            "sizes": {"query": [len(part) for part in parts]},
            "ids": {"query": tuple(e.query.id for e in examples), "document": ()},
        }

    def drawn(self, example: Example) -> tuple[int, ...]:
        """Return the identifier of one of an example's positives."""
        positives = [
            text.id for text, label in zip(example.documents, example.labels, strict=True)
            if label > 0
        ]  # fmt: skip
        digest = hashlib.sha256(
            f"{self.seed}:{self.epoch}:{example.query.id}".encode("utf-8", "surrogatepass")
        ).digest()
        name = positives[int.from_bytes(digest[:8], "little") % len(positives)]
        code: tuple[int, ...] | None = self.encoder.codes.get(name)
        if code is None:
            raise DataError(
                f"query {example.query.id!r}: its document {name!r} has no identifier; it is not "
                "in the corpus that identifiers were assigned to"
            )
        return code
