"""Cross-entropy of spans of relevant documents: what a SEAL encoder learns to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Gt, Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import Form
from sluice.training.losses.written import WrittenLoss

if TYPE_CHECKING:
    from sluice.training.generation.spans import SpanCollator, SpanModule


@dataclass(frozen=True, slots=True)
@checked("spans.")
class Spans(WrittenLoss):
    """Mean cross-entropy of the tokens of spans, which a language model writes for a query.

    ``spans``: so many are drawn for a query in each epoch, each of ``length`` tokens of a positive,
    those that share more with the query the rather: the lower ``temperature``, the more so (see
    ``sluice.training.generation.spans``). ``smoothing``: that of the labels. Negatives are not
    read.
    (SEAL; Bevilacqua et al. 2022, "Autoregressive search engines", section 3.4.)
    """

    summary = "spans of relevant documents, written by a language model: SEAL"
    paper = "Bevilacqua et al. 2022 (SEAL, arXiv 2204.10628), section 3.4"

    forms: ClassVar[tuple[Form, ...]] = ("ngrams",)  # what it trains

    spans: int = 10
    length: Annotated[int, "Tokens of a span, 10."] = 10
    temperature: Annotated[
        float, Gt(0), "The lower, the rather spans that share trigrams with the query, 0.1."
    ] = 0.1
    smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.1

    def __post_init__(self) -> None:
        for name in ("spans", "length"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"spans.{name}: {value!r}, expected 1 or more")

    def own_pass(self, encoder: Any, *, seed: int, sparse: bool) -> tuple[SpanModule, SpanCollator]:
        """Return the forward pass and the collator that replace those of ranking losses."""
        from sluice.training.generation.spans import SpanCollator, SpanModule

        if self.length > encoder.written:
            raise ConfigError(
                f"spans.length: {self.length}, and this model writes at most {encoder.written} "
                "tokens after a query; lower it, or raise the encoder's length"
            )
        collator = SpanCollator(
            encoder,
            spans=self.spans,
            length=self.length,
            temperature=self.temperature,
            seed=seed,
        )
        return SpanModule(encoder, smoothing=self.smoothing), collator
