"""Cross-entropy of documents' identifiers: what a DSI encoder learns to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import Form
from sluice.training.losses.written import WrittenLoss

if TYPE_CHECKING:
    from sluice.training.generation.identifiers import IdentifierCollator
    from sluice.training.generation.spans import SpanModule


@dataclass(frozen=True, slots=True)
class Identifiers(WrittenLoss):
    """Mean cross-entropy of the tokens of identifiers, which a language model writes for a text.

    That text is a query, or one of the document itself (``examples: {type: indexing}``); of several
    positives one is drawn in each epoch. ``smoothing``: that of the labels. Negatives are not read.
    (DSI; Tay et al. 2022, "Transformer memory as a differentiable search index", section 3.)
    """

    summary = "identifiers of relevant documents, written by a language model: DSI"
    paper = "Tay et al. 2022 (DSI, arXiv 2202.06991), section 3"

    forms: ClassVar[tuple[Form, ...]] = ("identifiers",)  # what it trains

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.smoothing, bool) or not 0 <= self.smoothing < 1:
            raise ConfigError(
                f"identifiers.smoothing: {self.smoothing!r}, expected a share from 0, below 1"
            )

    def own_pass(
        self, encoder: Any, *, seed: int, sparse: bool
    ) -> tuple[SpanModule, IdentifierCollator]:
        """Return the forward pass and the collator that replace those of ranking losses."""
        from sluice.training.generation.identifiers import IdentifierCollator
        from sluice.training.generation.spans import SpanModule

        return SpanModule(encoder, smoothing=self.smoothing), IdentifierCollator(encoder, seed)
