"""Training a model to write spans of relevant documents: which spans, the batches, the pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sluice.training.batches.forward import TrainedModule
from sluice.training.batches.masked import IGNORED
from sluice.training.example import Example, Text
from sluice.training.generation.drawn import DrawingCollator
from sluice.training.protocol import Features


class SpanCollator(DrawingCollator):
    """Draws spans of each query's positives, as a function of seed, epoch and query.

    One positive is drawn for each span, and a span begins at a token drawn with the softmax of
    ``overlap / temperature`` over the document's spans of ``length`` tokens; ``overlap`` is the
    share of the query's character trigrams that the span has. A shorter document is one span. (The
    supervision of SEAL's code; Bevilacqua et al. 2022, section 3.4.)
    """

    def __init__(
        self, encoder: Any, *, spans: int, length: int, temperature: float, seed: int
    ) -> None:
        super().__init__(encoder, seed)
        self.spans = spans
        self.length = length
        self.temperature = temperature

    def features(self, examples: Sequence[Example]) -> Features:
        """Return the queries' features, and ``labels`` ``[n, spans, length]``."""
        features: Features = dict(self.encoder.tokenize([e.query.text for e in examples], "query"))
        features["labels"] = torch.from_numpy(np.stack([self.drawn(each) for each in examples]))
        return features

    def drawn(self, example: Example) -> np.ndarray:
        """Return an example's spans ``[spans, length]``, filled up with ``IGNORED``."""
        chance = self.chance(example)
        positives = [
            text for text, label in zip(example.documents, example.labels, strict=True) if label > 0
        ]
        labels = np.full((self.spans, self.length), IGNORED, np.int64)
        sequences = dict[Text, tuple[np.ndarray, np.ndarray]]()
        for row in range(self.spans):
            text = positives[chance.integers(len(positives))]
            if text not in sequences:
                ids = self.encoder.encode_documents([text.text]).ids
                sequences[text] = ids, self.chances(example.query.text, ids)
            ids, chances = sequences[text]
            if len(chances):
                start = int(chance.choice(len(chances), p=chances))
                span = ids[start : start + self.length]
                labels[row, : len(span)] = span
        return labels

    def chances(self, query: str, ids: np.ndarray) -> np.ndarray:
        """Return how likely each span of a document is drawn, by the token it begins at."""
        if not len(ids):
            return np.zeros(0)
        starts = range(max(1, len(ids) - self.length + 1))
        texts = self.encoder.terms([ids[at : at + self.length].tolist() for at in starts])
        exponents = np.array([overlap(query, text) for text in texts]) / self.temperature
        weights = np.exp(exponents - exponents.max())
        shares_of: np.ndarray = weights / weights.sum()
        return shares_of


def overlap(query: str, text: str) -> float:
    """Return the share of the query's character trigrams that a text has, from 0 to 1."""
    own, other = trigrams(query), trigrams(text)
    return sum((own & other).values()) / max(1, sum(own.values()))


def trigrams(text: str) -> Counter[str]:
    """Count the character trigrams of a text in small letters, with a space at both ends."""
    plain = f" {' '.join(text.lower().split())} "
    return Counter(plain[at : at + 3] for at in range(len(plain) - 2))


class SpanModule(TrainedModule):
    """Queries to how badly the tokens of their spans are predicted."""

    def __init__(self, encoder: Any, *, smoothing: float) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.smoothing = smoothing

    def forward(self, query: Features) -> dict[str, Tensor]:
        """Return ``query`` ``[n, 2]``: summed cross-entropy and number of tokens of its spans."""
        labels = query["labels"]
        features = {name: values for name, values in query.items() if name != "labels"}
        logits = self.encoder.span_logits(features, labels.clamp_min(0))
        entropies = cross_entropy(
            logits.float().flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
            reduction="none",
        )
        sums = entropies.view(len(labels), -1).sum(1)
        counts = (labels != IGNORED).flatten(1).sum(1).to(sums.dtype)
        return {"query": torch.stack([sums, counts], dim=1)}
