"""What max pooling loses: how often a term stands in a document, and how long the document is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.splade.term_selection import Terms
from sluice.encoders.transformer.tokens import Ids

KEYS = ("k1", "b", "length")


@dataclass(frozen=True, slots=True)
class TermFrequency:
    """Factors ``tf (1 + k1) / (tf + k1 (1 - b + b dl / length))`` of a document's term weights.

    ``tf`` is how often the term stands among the ``dl`` tokens that are read, special ones not
    counted, and 1 for terms of expansion; a term that stands once in a document of ``length``
    tokens keeps its weight. It is BM25's document weight with a fixed average length (Robertson and
    Zaragoza, 2009), so that binary weights times idf queries are BM25 over word pieces.
    """

    k1: float = 0.9
    b: float = 0.4
    length: float = 128.0

    def __post_init__(self) -> None:
        if not (is_number(self.k1) and self.k1 >= 0):
            raise ConfigError(f"term_frequency.k1: {self.k1!r}; expected a number above 0")
        if self.k1 == 0:
            raise ConfigError(
                "term_frequency.k1: 0 leaves every weight as it is; expected a number above 0, or "
                "leave term_frequency out"
            )
        if not (is_number(self.b) and 0 <= self.b <= 1):
            raise ConfigError(f"term_frequency.b: {self.b!r}; expected 0 to 1")
        if not (is_number(self.length) and self.length >= 1):
            raise ConfigError(f"term_frequency.length: {self.length!r}; expected 1 token or more")

    @classmethod
    def from_config(cls, config: bool | Mapping[str, Any]) -> TermFrequency | None:
        """Read ``true``, ``false`` or the settings; ``ConfigError`` for others."""
        if isinstance(config, bool):
            return cls() if config else None
        if not isinstance(config, Mapping):
            raise ConfigError(
                f"term_frequency: {config!r}; expected true, or some of {', '.join(KEYS)}"
            )
        for key in config:
            if key not in KEYS:
                raise ConfigError(
                    f"term_frequency.{key}: unknown; known: {', '.join(KEYS)}"
                    f"{suggest(str(key), KEYS)}"
                )
        return cls(**config)

    def of_batch(self, ids: Tensor, mask: Tensor, special: Tensor, size: int) -> Tensor:
        """Return the factors ``[n, size]`` of padded texts ``[n, length]``."""
        own = mask.bool() & ~torch.isin(ids, special.to(ids.device))
        counts = torch.zeros((len(ids), size), device=ids.device)
        counts.scatter_add_(1, ids, own.float())
        tokens = own.sum(1, keepdim=True).float()
        damping = self.k1 * (1 - self.b + self.b * tokens / self.length)
        counts = counts.clamp(min=1)
        return counts * (1 + self.k1) / (counts + damping)

    def of_text(self, terms: Terms, ids: Ids) -> NDArray[np.float32]:
        """Return the factor of each of one text's terms, ascending; ``ids`` are its own tokens."""
        own, counts = np.unique(ids, return_counts=True)
        places = np.searchsorted(own, terms)
        places[places == len(own)] = 0
        tf = np.ones(len(terms), np.float32)
        if len(own):
            tf = np.where(own[places] == terms, counts[places], 1).astype(np.float32)
        damping = np.float32(self.k1 * (1 - self.b + self.b * len(ids) / self.length))
        factors: NDArray[np.float32] = tf * np.float32(1 + self.k1) / (tf + damping)
        return factors
