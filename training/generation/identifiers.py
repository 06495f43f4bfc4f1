"""Training a model to write documents' identifiers: the batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.masked import IGNORED
from sluice.training.example import Example
from sluice.training.generation.drawn import DrawingCollator
from sluice.training.protocol import Features


class IdentifierCollator(DrawingCollator):
    """Takes the identifier of one positive of each query, drawn by seed, epoch and query.

    ``DataError`` for a positive that the encoder was not assigned an identifier of.
    """

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the queries' features, and ``labels`` ``[n, 1, longest]``."""
        codes = [self.drawn(each) for each in examples]
        labels = np.full((len(examples), 1, max(map(len, codes), default=1)), IGNORED, np.int64)
        for row, code in enumerate(codes):
            labels[row, 0, : len(code)] = code
        features: Features = dict(self.encoder.tokenize([e.query.text for e in examples], "query"))
        features["labels"] = torch.from_numpy(labels)
        return features

    def drawn(self, example: Example) -> tuple[int, ...]:
        """Return the identifier of one of an example's positives."""
        positives = [
            text.id for text, label in zip(example.documents, example.labels, strict=True)
            if label > 0
        ]  # fmt: skip
        name = positives[int.from_bytes(self.digest(example)[:8], "little") % len(positives)]
        code: tuple[int, ...] | None = self.encoder.codes.get(name)
        if code is None:
            raise DataError(
                f"query {example.query.id!r}: its document {name!r} has no identifier; it is not "
                "in the corpus that identifiers were assigned to"
            )
        return code
