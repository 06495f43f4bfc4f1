"""Losses of token sequences: identifiers, spans, orders; predicted tokens, masked ones too."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.table import Learnt as Form
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase, Want
from sluice.training.protocol import LetterWriter, ListWriter

if TYPE_CHECKING:
    from sluice.training.batches.forward import MaskedCollator, MaskedModule
    from sluice.training.generation.collators import (
        IdentifierCollator,
        RankingCollator,
        RankingModule,
        SpanCollator,
        SpanModule,
    )
    from sluice.training.protocol import Example


def token_batch(sums: Tensor, documents: Tensor, inputs: Mapping[str, Any]) -> VectorBatch:
    """Return a batch without queries, whose ``matrix`` is ``sums`` ``[n, 2]``.

    Of each text these are the summed cross-entropy of its tokens and their number.
    """
    none = torch.zeros(0, dtype=torch.long, device=sums.device)
    return VectorBatch(
        queries=documents.new_zeros((0, documents.shape[1])),
        documents=documents,
        labels=sums.new_zeros((0, len(sums))),
        mask=torch.zeros((0, len(sums)), dtype=torch.bool, device=sums.device),
        positives=none,
        owners=none,
        features=inputs["features"],
        ids=inputs["ids"],
        matrix=sums,
    )


def mean_entropy(batch: VectorBatch, refusal: str) -> Tensor:
    """Return the mean over all tokens of a ``token_batch``, 0 where there are none.

    ``ConfigError`` with the text ``refusal`` for the batch of another loss.
    """
    if batch.matrix is None or len(batch.queries):
        raise ConfigError(refusal)
    total, count = batch.matrix.sum(0)
    mean: Tensor = total / count.clamp(min=1)
    return mean


class WrittenLoss(LossBase):
    """Mean cross-entropy of the tokens that ``SpanModule`` predicts."""

    __slots__ = ()

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch:
        """Lay out what ``SpanModule`` made: no vectors, sums and numbers."""
        sums = made["query"]
        return token_batch(sums, sums.new_zeros((0, 1)), inputs)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the tokens of the batch's texts, see ``mean_entropy``."""
        return mean_entropy(
            batch, "loss: what a model writes cannot be combined with ranking: it has no vectors"
        )


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
        from sluice.training.generation.collators import IdentifierCollator, SpanModule

        return SpanModule(encoder, smoothing=self.smoothing), IdentifierCollator(encoder, seed)


@dataclass(frozen=True, slots=True)
@checked("spans.")
class Spans(WrittenLoss):
    """Mean cross-entropy of the tokens of spans, which a language model writes for a query.

    ``spans``: so many are drawn for a query in each epoch, each of ``length`` tokens of a positive,
    those that share more with the query the rather: the lower ``temperature``, the more so (see
    ``sluice.training.generation.collators``). ``smoothing``: that of the labels. It reads
    no negatives.
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
        from sluice.training.generation.collators import SpanCollator, SpanModule

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


log = logging.getLogger("sluice")


@dataclass(eq=False)
@checked("rankings.")
class Rankings(WrittenLoss):
    """Cross-entropy of the tokens of an order, ``[3] > [1] > ...``, weighted by importance.

    The tokens of the number at rank r weigh ``1 + importance / log2(1 + r)``, separators and the
    end 1, and the sum is divided by the number of tokens. With ``importance: 0`` it is the loss of
    any language model. ``smoothing``: that of the labels. The order is that of the labels of an
    example's documents, which are shown in another order in each epoch.
    (Liu et al. 2025, "Sliding windows are not the end", arXiv 2412.14574.)

    ``first`` times RankNet over the logits s of the first letter is added, for ``first_token``: of
    each list the mean, over pairs at ranks i < j of different labels, of ``softplus(s_j - s_i) /
    (i + j)``. (Reddy et al. 2024, FIRST, arXiv 2406.15657: ``first: 10`` with ``importance: 0``.)
    """

    summary = "the order of all documents, written by a language model, the top weighing most"
    paper = "Liu et al. 2025 (Full ranking, arXiv 2412.14574)"

    forms: ClassVar[tuple[Form, ...]] = ("rankings",)  # what it trains
    wants: ClassVar[frozenset[Want]] = frozenset({"all_examples"})
    negatives: ClassVar[Literal["own"]] = "own"

    importance: Annotated[
        float, Ge(0), "How much more the numbers of the first ranks weigh; 0: nothing, 1."
    ] = 1.0
    smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    first: Annotated[
        float,
        Ge(0),
        "The weight of RankNet over first letters' logits (FIRST: 10, importance 0), 0.",
    ] = 0.0

    def __post_init__(self) -> None:
        self._encoder: ListWriter | None = None

    def bind(self, encoder: Any, seed: int) -> None:
        """Note the model whose window and length the examples must fit."""
        self._encoder = encoder if isinstance(encoder, ListWriter) else None

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Raise ``DataError`` for examples that are not rankings, or that the model cannot read.

        Those that order nothing are counted in a warning.
        """
        from sluice.training.generation.collators import RankingCollator, orders

        empty = [each for each in examples if not orders(each)]
        if len(empty) == len(examples):
            raise DataError(
                f"loss: rankings learns an order, and all documents of each of {len(examples):,} "
                "examples have one grade; give rows with different grades (`sluice teach rank` "
                "writes them), or mine negatives"
            )
        if empty:
            log.warning(
                "loss: %s of %s examples (such as query %s) have documents of one grade alone and "
                "are ignored", f"{len(empty):,}", f"{len(examples):,}", empty[0].query.id,
            )  # fmt: skip
        for each in examples:
            ids = [document.id for document in each.documents]
            if len(set(ids)) < len(ids):
                twice = next(name for name in ids if ids.count(name) > 1)
                raise DataError(
                    f"query {each.query.id!r}: document {twice!r} is in its list twice; expected "
                    "each once"
                )
        if self._encoder is None:  # which the forward pass refuses
            return
        longest = max(examples, key=lambda each: len(each.documents))
        window = self._encoder.window
        if window and len(longest.documents) > window:
            raise DataError(
                f"query {longest.query.id!r}: a list of {len(longest.documents):,} documents, and "
                f"the model reads windows of {window}; set encoder.window: 0 (all at once) or "
                f"{len(longest.documents)}, or make shorter lists (`sluice teach rank --depth "
                f"{window}`)"
            )
        # Lists without room for texts, or with more documents than letters, are refused here.
        RankingCollator(self._encoder, 0, letters=self.first > 0)([longest])

    def own_pass(
        self, encoder: Any, *, seed: int, sparse: bool
    ) -> tuple[RankingModule, RankingCollator]:
        """Return the forward pass and the collator that replace those of ranking losses."""
        from sluice.training.generation.collators import RankingCollator, RankingModule

        letters = self.first > 0
        if letters and not (isinstance(encoder, LetterWriter) and encoder.first_token):
            raise ConfigError(
                f"rankings.first: {self.first:g} ranks by the first letter, and this model writes "
                "numbers; set encoder.first_token: true, or leave first out"
            )
        module = RankingModule(encoder, importance=self.importance, smoothing=self.smoothing)
        return module, RankingCollator(encoder, seed, letters=letters)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean over the tokens of a batch, and ``first`` times that over its lists."""
        if batch.matrix is None or batch.matrix.shape[1] == 2:
            return super().over(batch)
        words, lists = (
            replace(batch, matrix=part) for part in (batch.matrix[:, :2], batch.matrix[:, 2:])
        )
        return super().over(words) + self.first * super().over(lists)


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
