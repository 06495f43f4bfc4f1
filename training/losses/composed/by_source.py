"""A loss for each dataset of a mixture: every batch is of one, and has that one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.base import LossBase, as_loss
from sluice.training.losses.composed.members import Composed, Members

if TYPE_CHECKING:
    from sluice.training.batches.vector_batch import Negatives, VectorBatch


class BySource(Composed):
    """The loss of the batch's source, by ``Example.source``.

    The losses may compare documents in different ways, each with the collator that it needs; they
    share an encoder, and so its similarity.
    """

    def __init__(self, losses: Mapping[str, Any]) -> None:
        self.losses = {source: as_loss(loss, source) for source, loss in losses.items()}
        self._values: dict[str, Tensor] = {}

    def _members(self) -> Members:
        return list(self.losses.items())

    @property
    def negatives(self) -> Negatives:
        """Those of the losses where they agree, else all; each source's own count."""
        values = {loss.negatives for loss in self.losses.values()}
        return values.pop() if len(values) == 1 else "all"

    @property
    def same_side(self) -> bool:
        """Whether a loss's is; each source's own counts."""
        return any(loss.same_side for loss in self.losses.values())

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the value of the loss of the batch's source."""
        value = self.losses[batch.source].over(batch)
        self._values[batch.source] = value.detach()
        return value

    def notes(self) -> dict[str, float]:
        """Return each source's last value, and its loss's own notes, with the source's name."""
        own = {f"loss {source}": float(value) for source, value in self._values.items()}
        return own | {
            f"{name} {source}": value
            for source, loss in self.losses.items()
            for name, value in loss.notes().items()
        }


def loss_of(loss: LossBase, source: str) -> LossBase:
    """Return the loss of a source's examples; ``ConfigError`` for a source without one."""
    if not isinstance(loss, BySource):
        return loss
    if source not in loss.losses:
        raise ConfigError(
            f"loss: none for {source!r}, which has examples; there is one for each of "
            f"{', '.join(loss.losses)}"
        )
    return loss.losses[source]
