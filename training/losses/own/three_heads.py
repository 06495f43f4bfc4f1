"""The loss of a model with three heads: each learns from the pairs, and from all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Gt
from torch import Tensor

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.own.three_heads.packing import HeadVectors, unpack
from sluice.encoders.tuning.learning import learning_of
from sluice.training.batches.scoring import TokenScoring
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.base import LossBase, type_name, types_trained
from sluice.training.losses.composed.members import Composed, Wrapping, of_vectors, plain_inside
from sluice.training.losses.math.reduction import averaged, choices, group_of, log_shares
from sluice.training.protocol import ScoreMatrix, Similarity

HEADS = ("dense", "sparse", "tokens")
MIXTURE = {"dense": 1.0, "sparse": 0.3, "tokens": 1.0}
WEIGHTS = {"dense": 1.0, "sparse": 0.1, "tokens": 1.0}


@dataclass(eq=False)
@checked("three_heads.")
class ThreeHeads(Wrapping):
    """``(L + L') / 2``: three heads learn from the pairs (L) and from their mixture (L').

    Scores are s_dense (cosine), s_sparse (the sum, over shared terms, of the products of weights)
    and s_tokens (MaxSim over the number of the query's tokens), and their mixture
    ``s = sum_h m_h s_h``. ``L = (sum_h w_h loss(s_h) + loss(s)) / 4``, and ``L' = sum_h w_h H_h /
    3``, H_h the cross entropy of softmax(s_h / t) under softmax(s / t), which is held constant: the
    mixture teaches each of its parts. ``mixture`` are the m_h (1, .3, 1), ``weights`` the w_h (1,
    .1, 1), by head; ``distil: false`` leaves L' out, and the loss is L. ``temperature`` is t.

    The inner loss is by default InfoNCE at temperature 0.02. Chen et al. 2024, arXiv 2402.03216,
    section 3.3.
    """

    summary = "all three heads of a `three_heads` encoder, which learn from their mixture too"
    paper = "Chen et al. 2024 (BGE-M3, arXiv 2402.03216)"

    called: ClassVar[str] = "three_heads"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 0.02}

    mixture: Annotated[
        Mapping[str, float] | None,
        "What each head's scores count in the mixture: {dense: 1, sparse: 0.3, tokens: 1}.",
    ] = None
    weights: Annotated[
        Mapping[str, float] | None,
        "What each head's own loss counts: {dense: 1, sparse: 0.1, tokens: 1}.",
    ] = None
    distil: Annotated[bool, "Whether the mixture of the heads' scores teaches each of them."] = True
    temperature: Annotated[
        float, Gt(0), "Of the softmax by which the mixture teaches the heads."
    ] = 0.02

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        why = "a model with three heads compares queries with documents alone"
        plain_inside(self, why)
        if "tokens" not in self.inner.forms:
            raise ConfigError(
                f"three_heads.loss: {type_name(self.inner)} trains {types_trained(self.inner)}; "
                "expected a loss of scores, such as info_nce"
            )
        wrapper = _wrapping(self.inner)
        if wrapper is not None:
            raise ConfigError(
                f"three_heads.loss: {wrapper.called} needs one head's vectors; expected a loss of "
                "scores, such as info_nce"
            )
        if self.inner.similarity != "auto":
            raise ConfigError(
                f"three_heads.loss.similarity: {self.inner.similarity}: scores are each "
                "head's own, and those of terms and mixture are not within -1 and 1; leave it "
                "out, or take another loss than psl"
            )
        if not self.distil and self.temperature != type(self).temperature:
            raise ConfigError(
                f"three_heads.temperature: {self.temperature!r} does nothing: it is that of "
                "distil; set distil: true, or leave it out"
            )
        self._mixture = _by_head("mixture", self.mixture, MIXTURE)
        self._weights = _by_head("weights", self.weights, WEIGHTS)
        self._hidden: int | None = None
        self._parts: dict[str, Tensor] = {}

    @property
    def forms(self) -> tuple[str, ...]:
        """Those with three heads alone."""
        return ("heads",)

    def bound_to(self, similarity: Similarity) -> Self:
        """Decide the inner loss's ``similarity: auto``: scores are cosines, or nearly."""
        return super().bound_to("cosine")

    def bind(self, encoder: Any, seed: int) -> None:
        """Learn where an encoder's dense vectors end."""
        if "heads" in learning_of(hooks_of(encoder).kind).learns:
            self._hidden = encoder.trunk.state_width
        super().bind(encoder, seed)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch whose vectors are those of all heads, packed."""
        of_vectors(batch, self.called)
        if self._hidden is None:
            raise ConfigError(
                "three_heads: the batch is of no encoder with three heads; train one "
                "(encoder: {type: three_heads, ...}), or call bind(encoder, seed) with it first"
            )
        sides = (unpack(side, self._hidden) for side in (batch.queries, batch.documents))
        scores = head_scores(*sides)
        mixed = torch.stack([self._mixture[head] * scores[head] for head in HEADS]).sum(0)
        shared = batch.labels, batch.mask, batch.weights, batch.teacher
        parts = {head: self.inner(scores[head], *shared) for head in HEADS}
        parts["mixture"] = self.inner(mixed, *shared)
        total = sum((self._weights[head] * parts[head] for head in HEADS), start=parts["mixture"])
        value: Tensor = total / 4
        if self.distil:
            taught = {
                head: self._distilled(ScoreMatrix(scores[head], *shared), mixed.detach())
                for head in HEADS
            }
            learnt = torch.stack([self._weights[head] * taught[head] for head in HEADS]).sum() / 3
            parts["distilled"] = learnt
            value = (value + learnt) / 2
        self._parts = {name: part.detach() for name, part in parts.items()}
        return value

    def _distilled(self, matrix: ScoreMatrix, mixed: Tensor) -> Tensor:
        """Return the mean cross entropy of a head's scores under the mixture's."""
        group = group_of(matrix._replace(teacher=mixed), taught=self.called)
        target = log_shares(group.teacher / self.temperature, group.taking)
        student = log_shares(group.scores / self.temperature, group.taking)
        rows = -(target.exp() * student).masked_fill(~group.taking, 0.0).sum(1)
        return averaged(rows, choices(group.taking), matrix.weights, "sum")

    def notes(self) -> dict[str, float]:
        """Return the last batch's loss of each head and of the mixture, unweighted."""
        own = {f"loss_{name}": float(part) for name, part in self._parts.items()}
        return {**super().notes(), **own}


def head_scores(queries: HeadVectors, documents: HeadVectors) -> dict[str, Tensor]:
    """Return the scores ``[B, N]`` of each head: the cosine, shared terms, and the mean MaxSim."""
    asked, answers = _term_weights(queries, documents)
    return {
        "dense": queries.dense @ documents.dense.T,
        "sparse": asked @ answers.T,
        "tokens": TokenScoring("mean_max_sim").scores(queries.tokens, documents.tokens),
    }


def _term_weights(*sides: HeadVectors) -> list[Tensor]:
    """Return each side's weights ``[n, terms]``, over the terms that any text has.

    A term weighs what the heaviest of its tokens does.
    """
    weighted = torch.cat([side.terms[side.weights.detach() > 0] for side in sides])
    used: Tensor = torch.unique(weighted)
    found = []
    for terms, weights in ((side.terms, side.weights) for side in sides):
        places = torch.searchsorted(used, terms).clamp(max=max(0, len(used) - 1))
        empty = weights.new_zeros(len(weights), max(1, len(used)))
        # Special tokens and padding weigh 0, and a maximum does not see that.
        found.append(empty.scatter_reduce(1, places, weights, "amax"))
    return found


def _wrapping(loss: LossBase) -> Wrapping | None:
    """Return a loss around another, as which or in whose sum this one is; None without."""
    if isinstance(loss, Wrapping):
        return loss
    members = loss._members() if isinstance(loss, Composed) else ()
    return next((found for _, each in members if (found := _wrapping(each))), None)


def _by_head(
    name: str, given: Mapping[str, float] | None, usual: Mapping[str, float]
) -> Mapping[str, float]:
    """Return a number for each head, ``usual`` where none is given."""
    own = dict(given or {})
    for head, value in own.items():
        if head not in HEADS:
            raise ConfigError(
                f"three_heads.{name}: unknown head {head!r}, expected {', '.join(HEADS)}"
                f"{suggest(str(head), HEADS)}"
            )
        if not is_number(value) or value < 0:
            raise ConfigError(f"three_heads.{name}.{head}: {value!r}, expected 0 or more")
    merged = {**usual, **own}
    if not any(merged.values()):
        raise ConfigError(f"three_heads.{name}: 0 for every head; give one of them a weight")
    return merged
