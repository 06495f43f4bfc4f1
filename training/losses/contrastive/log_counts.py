"""How often a document is expected in a batch, for the sampled-softmax correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import DataError


class LogCounts:
    """Log expected counts from how often each document occurs among the training pairs.

    A batch of N documents drawn from pairs with ``total`` occurrences holds a document that occurs
    c times ``N c / total`` times on average. A document without a count (mined after the counting)
    counts as having occurred once. Raises ``DataError`` for a count that is not above 0.
    """

    def __init__(self, counts: Mapping[str, float]) -> None:
        for document, count in counts.items():
            if not 0 < count < math.inf:
                raise DataError(
                    f"counts: document {document!r} occurs {count!r} times, expected above 0; "
                    "count only documents of the training pairs"
                )
        self.counts = dict(counts)
        self.total = math.fsum(counts.values()) or 1.0

    def of(self, documents: Sequence[str]) -> Tensor:
        """Return ``[N]`` float64 log expected counts of the documents of one batch."""
        share = len(documents) / self.total
        return torch.tensor(
            [math.log(share * self.counts.get(d, 1.0)) for d in documents], dtype=torch.float64
        )
