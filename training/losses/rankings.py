"""Weighted cross-entropy of written orders: what a listwise reranker learns to write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.tuning.learning import Form
from sluice.training.losses.written import WrittenLoss
from sluice.training.protocol import ListWriter

if TYPE_CHECKING:
    from sluice.training.example import Example
    from sluice.training.generation.rankings import RankingCollator, RankingModule

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
    """

    summary = "the order of all documents, written by a language model, the top weighing most"
    paper = "Liu et al. 2025 (Full ranking, arXiv 2412.14574)"

    forms: ClassVar[tuple[Form, ...]] = ("rankings",)  # what it trains
    negatives: ClassVar[Literal["own"]] = "own"

    importance: Annotated[
        float, Ge(0), "How much more the numbers of the first ranks weigh; 0: nothing, 1."
    ] = 1.0
    smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        self._encoder: ListWriter | None = None

    def bind(self, encoder: Any, seed: int) -> None:
        """Note the model whose window and length the examples must fit."""
        self._encoder = encoder if isinstance(encoder, ListWriter) else None

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Raise ``DataError`` for examples that are not rankings, or that the model cannot read.

        Those that order nothing are counted in a warning.
        """
        from sluice.training.generation.rankings import RankingCollator, orders

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
        RankingCollator(self._encoder, 0)([longest])  # refuses lists without room for texts

    def own_pass(
        self, encoder: Any, *, seed: int, sparse: bool
    ) -> tuple[RankingModule, RankingCollator]:
        """Return the forward pass and the collator that replace those of ranking losses."""
        from sluice.training.generation.rankings import RankingCollator, RankingModule

        module = RankingModule(encoder, importance=self.importance, smoothing=self.smoothing)
        return module, RankingCollator(encoder, seed)
