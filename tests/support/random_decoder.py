"""A decoder that writes at random: what constrained decoding must hold to what exists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sluice.encoders.generative.constrained_decoding import ConstrainedBeams
from sluice.encoders.generative.writer import IdentifierBeams


class RandomDecoder:
    """Log-probabilities drawn anew at every step, in place of ``Continuations``."""

    def __init__(self, texts: int, beams: int, vocabulary: int, chance: torch.Generator) -> None:
        self._shape = (texts * beams, vocabulary)
        self._chance = chance

    def first(self) -> Tensor:
        return torch.randn(self._shape, generator=self._chance).mul(3).log_softmax(dim=1)

    def next(self, tokens: Tensor, rows: Tensor) -> Tensor:
        assert tokens.shape == rows.shape == self._shape[:1]
        assert int(rows.max()) < self._shape[0]
        return self.first()


def emitted(
    index: Any, *, texts: int, rounds: int, beams: int, length: int, vocabulary: int
) -> set[tuple[int, ...]]:
    """Return all n-grams that random decoders write under an index."""
    chance = torch.Generator().manual_seed(13)
    by = ConstrainedBeams(beams=beams, length=length, unigrams=beams)
    keys: set[tuple[int, ...]] = set()
    for _ in range(rounds):
        rows: Any = RandomDecoder(texts, beams, vocabulary, chance)
        keys.update(*by.search(rows, index, texts))
    return keys


def written(
    index: Any, *, texts: int, beams: int, vocabulary: int, seed: int
) -> list[tuple[int, ...]]:
    """Return the identifiers that random decoders write under a trie."""
    rows: Any = RandomDecoder(texts, beams, vocabulary, torch.Generator().manual_seed(seed))
    return [code for keys in IdentifierBeams(beams).search(rows, index, texts) for code in keys]
