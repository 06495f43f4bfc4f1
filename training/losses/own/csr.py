"""The loss of sparse codes of dense vectors: a loss over the codes, and the reconstruction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import mse_loss, relu

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.own.csr import SparseAutoencoder
from sluice.encoders.splade.terms import keep_top
from sluice.encoders.tuning.learning import learning_of
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import USUAL
from sluice.training.losses.base import types_trained
from sluice.training.losses.composed.members import Wrapping, of_vectors

WIDER = 4  # times the latents of a code, in the second reconstruction
SHARE = 1 / 8  # what that one counts


def _below(step: int) -> tuple[int, ...]:
    return (0,)


@dataclass(eq=False)
@checked("csr.")
class CSR(Wrapping):
    """``L_k + L_4k / 8 + beta L_aux + gamma loss``: a loss over codes, and their reconstructions.

    ``L_k`` is the mean squared error, over texts and dimensions, between the dense vectors x and
    those that the codes stand for, ``L_4k`` that of codes of four times as many latents, as far as
    there are. ``L_aux`` is the mean squared error between the residual of L_k, held constant but
    for x, and what the ``k_aux`` largest of the dead latents make of it, over the residual's
    variance in the batch (1 where that is 0). Dead is what was in no code for ``dead_threshold``
    batches; both are in the autoencoder's ``config.json`` (512 and 30). Every text of the batch
    counts alike, whatever weight its row has in ``loss``, which is by default InfoNCE at
    temperature 1.

    Wen et al. 2025, Beyond Matryoshka, arXiv 2503.01776, section 3, as sentence-transformers has it
    of one column. Gradients reach the dense encoder, which the authors froze.
    """

    summary = "any loss over codes of dense vectors, and what the codes lose of them"
    paper = "Wen et al. 2025 (CSR, arXiv 2503.01776), section 3"

    called: ClassVar[str] = "csr"
    usual: ClassVar[Mapping[str, Any]] = {**USUAL, "temperature": 1.0}

    beta: Annotated[
        float,
        Ge(0.0),
        "The weight of the reconstruction that dead latents make of what codes lose.",
    ] = 0.1
    gamma: Annotated[float, Gt(0), "The weight of the loss over codes."] = 1.0

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self._head: SparseAutoencoder | None = None
        self._parts: dict[str, Tensor] = {}
        if "sparse" not in self.inner.forms:
            raise ConfigError(
                f"csr.loss: {type(self.inner).__name__} trains {types_trained(self.inner)}; "
                "expected a loss of sparse vectors or of scores, such as info_nce"
            )

    @property
    def forms(self) -> tuple[str, ...]:
        """Those of encoders with an autoencoder alone."""
        return ("codes",)

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]]:
        """The dense vectors beside their codes, at every step."""
        return _below

    def bind(self, encoder: Any, seed: int) -> None:
        """Take the encoder's autoencoder."""
        super().bind(encoder, seed)
        if "codes" not in learning_of(hooks_of(encoder).kind).learns:
            return
        head: SparseAutoencoder = encoder.autoencoder
        self._head = head
        if not head.auxiliary and self.beta not in (0, type(self).beta):
            raise ConfigError(
                f"csr.beta: {self.beta!r} does nothing: the model's k_aux is 0, so that no dead "
                "latent learns; leave beta out, or set k_aux in the config.json of the autoencoder"
            )

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss of a batch whose vectors are codes, and after them the dense vectors."""
        of_vectors(batch, self.called)
        head = self._head
        if head is None:
            raise ConfigError(
                "csr: the batch is of no encoder with an autoencoder; train one (encoder: {type: "
                "csr, ...}), or call bind(encoder, seed) with it first"
            )
        latents = len(head.weight)
        sides = [batch.queries, batch.documents]
        changes: dict[str, Any] = {}
        for name in ("answered", "negative_queries"):
            further = getattr(batch, name)
            if further is not None:
                sides.append(further[1])
                changes[name] = further[0], further[1][:, :latents]
        codes = (side[:, :latents] for side in (batch.queries, batch.documents))
        value = self.gamma * self.inner.over(batch.with_vectors(*codes, **changes))
        return value + self._reconstruction(head, torch.cat([s[:, latents:] for s in sides]))

    def _reconstruction(self, head: SparseAutoencoder, vectors: Tensor) -> Tensor:
        """Return the weighted sum of the three errors of dense vectors ``[n, inputs]``."""
        vectors = vectors[vectors.detach().any(dim=1)]  # an empty text has no vector
        if not len(vectors):
            return vectors.sum()
        scaled, mean, spread = head.scaled(vectors)
        latents = head.latents(scaled)
        codes = relu(keep_top(latents, head.top_k))
        if head.training:
            head.count(codes)
        near = head.decoded(codes) * spread + mean
        wider = relu(keep_top(latents, WIDER * head.top_k))
        parts = {
            "reconstruction": mse_loss(near, vectors),
            "reconstruction_4k": mse_loss(head.decoded(wider) * spread + mean, vectors),
        }
        value = parts["reconstruction"] + SHARE * parts["reconstruction_4k"]
        dead = head.dead()
        if head.auxiliary:
            residual = vectors - (near - head.pre_bias * spread).detach()
            silent = relu(keep_top(latents * dead, head.auxiliary))
            parts["auxiliary"] = _relative_error(head.decoded(silent) * spread, residual)
            value = value + self.beta * parts["auxiliary"]
        parts["dead_latents"] = dead.float().mean()
        self._parts = {name: part.detach() for name, part in parts.items()}
        return value

    def notes(self) -> dict[str, float]:
        """Return the last batch's errors, unweighted, and the share of dead latents."""
        return {**super().notes(), **{name: float(part) for name, part in self._parts.items()}}


def _relative_error(values: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error over the target's variance, or over 1 where that is 0."""
    if bool((target == target[:1]).all()):
        return mse_loss(values, target)
    return mse_loss(values, target) / mse_loss(target.mean(0).expand_as(target), target)
