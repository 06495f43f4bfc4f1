"""From examples to a batch of tensors: texts tokenised, labels and mask laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.batch import Negatives, group_targets, matrix_targets
from training.example import Example
from training.protocol import BiEncoder, PairEncoder


@dataclass(frozen=True, slots=True)
class BiEncoderCollator:
    """Queries in one call of the tokenizer, all documents of the batch in another."""

    encoder: BiEncoder
    negatives: Negatives = "all"
    same_side: bool = False

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the features of both sides and the ``Targets`` of the batch."""
        targets = matrix_targets(examples, self.negatives, same_side=self.same_side)
        return {
            "query": self.encoder.tokenize([e.query.text for e in examples], "query"),
            "document": self.encoder.tokenize(
                [d.text for e in examples for d in e.documents], "document"
            ),
            **targets._asdict(),
        }


@dataclass(frozen=True, slots=True)
class PairCollator:
    """Every query with each of its own documents, in one call of the tokenizer."""

    encoder: PairEncoder

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the features of the pairs and the ``Targets`` of their groups."""
        pairs = [(e.query.text, d.text) for e in examples for d in e.documents]
        return {
            "pairs": self.encoder.tokenize_pairs(pairs),
            **group_targets(examples)._asdict(),
        }
