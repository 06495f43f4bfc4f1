"""Masked language modelling: middle training of a SPLADE encoder on texts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Interval
from torch import Tensor

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.losses.sequences import mean_entropy, token_batch

if TYPE_CHECKING:
    from sluice.training.batches.forward import MaskedCollator, MaskedModule


@dataclass(frozen=True, slots=True)
@checked("masked_language.")
class MaskedLanguage(LossBase):
    """Mean cross-entropy of the words hidden in a batch of texts.

    A share ``probability`` of each text's tokens is hidden (see
    ``sluice.training.batches.forward``): ``keep`` of these stay, ``random`` become another token,
    the rest the mask; ``whole_words`` hides all tokens of a word together. With a section
    ``sparsity`` the document penalty is added, over the term weights of the same masked texts, so
    that one pass serves both. It is trained alone: its model is the start of retrieval training
    (Lassance and Clinchant 2022, "An efficiency study for SPLADE models", arXiv
    2207.03834, section 3.4).
    """

    summary = "masked words and FLOPS over a corpus, before retrieval training"
    paper = "Lassance and Clinchant 2022 (Efficient SPLADE, arXiv 2207.03834), section 3.4"

    forms: ClassVar[tuple[Form, ...]] = ("words",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"texts_alone"})
    noted: ClassVar[str] = "loss_masked_language"  # its name in the journal, beside penalties

    probability: Annotated[
        float, Interval(gt=0, le=1), "The share of each text's tokens that is hidden."
    ] = 0.15
    whole_words: bool = False
    keep: Annotated[
        float, Interval(ge=0, le=1), "The share of hidden tokens that stay as they are."
    ] = 0.1
    random: Annotated[
        float, Interval(ge=0, le=1), "The share of hidden tokens that become another one."
    ] = 0.1

    def __post_init__(self) -> None:
        if self.keep + self.random > 1:
            raise ConfigError(
                f"masked_language: keep {self.keep!r} and random {self.random!r} add up to more "
                "than 1"
            )

    def own_pass(
        self, encoder: Any, *, seed: int, sparse: bool
    ) -> tuple[MaskedModule, MaskedCollator]:
        """Return the forward pass and the collator that replace those of ranking losses."""
        from sluice.training.batches.forward import MaskedCollator, MaskedModule, Masking, MaskRates

        hooks = hooks_of(encoder)
        if None in (hooks.pooled, hooks.tokenizer):
            raise ConfigError(
                f"loss: masked_language trains a splade encoder, not a {type(encoder).__name__}"
            )
        rates = MaskRates(self.probability, self.whole_words, self.keep, self.random)
        masking = Masking(encoder.tokenizer, rates, seed)
        return MaskedModule(encoder, terms=sparse), MaskedCollator(encoder, masking)

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch:
        """Lay out what ``MaskedModule`` made: no queries, term weights, sums and numbers."""
        weights, sums = made["document"][:, :-2], made["document"][:, -2:]
        return token_batch(sums, weights, inputs)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the batch's masked positions, see ``mean_entropy``."""
        return mean_entropy(
            batch,
            "loss: masked_language cannot be combined with ranking: train with it first, then "
            "set encoder.model of the next training to its model",
        )
