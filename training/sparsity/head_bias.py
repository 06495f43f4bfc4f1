"""After a step of sparsity by target: counts terms without dropout and raises the head's bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from sluice.encoders.encoder import Side, hooks_of
from sluice.training.example import Example
from sluice.training.protocol import BiEncoder
from sluice.training.sparsity.regulariser import Regulariser, active_terms

EVERY = 16  # steps between counts with and without dropout
COUNTED = 32  # texts of a side that are counted, the same ones throughout
PIECE = 16  # of them at a time


class Steering:
    """What the conductor does with a regulariser at the end of each step.

    The texts that are counted are spread evenly over ``examples``; all processes count the same
    ones, so they raise their heads alike. A head that both sides share rises by the larger need.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        regulariser: Regulariser,
        examples: Sequence[Example],
        arithmetic: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.encoder = encoder
        self.regulariser = regulariser
        self.arithmetic = arithmetic
        count = min(COUNTED, len(examples))
        chosen = [examples[i * len(examples) // count] for i in range(count)]
        self.texts: dict[Side, list[str]] = {
            "query": [example.query.text for example in chosen],
            "document": [example.documents[0].text for example in chosen],
        }

    def dropout(self) -> dict[str, float] | None:
        """Return the ratios of ``_dropout`` where it is time to count, every ``EVERY`` steps."""
        return self._dropout() if self.regulariser.step % EVERY == 0 else None

    def _dropout(self) -> dict[str, float]:
        """Return what active terms without dropout are of those with it, by steered side."""
        module = self.encoder.module
        sides = [side for side in self.texts if side in self.regulariser.controls]
        training = [part for part in module.modules() if part.training]
        # The draws of this count are not taken out of the training's own.
        with torch.no_grad(), self.arithmetic(), torch.random.fork_rng(_accelerators(module)):
            dropped = {side: self._terms(side) for side in sides}
            module.eval()
            try:
                return {str(side): self._terms(side) / max(dropped[side], 0.1) for side in sides}
            finally:
                for part in training:
                    part.training = True

    def _terms(self, side: Side) -> float:
        device = next(self.encoder.module.parameters()).device
        texts, terms = self.texts[side], 0.0
        for start in range(0, len(texts), PIECE):
            piece = texts[start : start + PIECE]
            features = self.encoder.tokenize(piece, side)
            placed = {name: values.to(device) for name, values in features.items()}
            terms += float(active_terms(self.encoder.embed(placed, side))) * len(piece)
        return terms / len(texts)

    def raise_heads(self) -> None:
        """Raise the head of a side that is short of terms."""
        towers = hooks_of(self.encoder).towers
        needs: dict[int, tuple[Callable[[float], None], float]] = {}
        for side in self.texts:
            control = self.regulariser.controls.get(side)
            if control is None:
                continue
            head = towers.get(side, self.encoder)
            hooks = hooks_of(head)
            if hooks.raises is None or hooks.raise_bias is None or not hooks.raises(side):
                continue
            amount = max(control.lift, needs.get(id(head), (None, 0.0))[1])
            needs[id(head)] = hooks.raise_bias, amount
            control.lift_by(control.lift)
        for raise_bias, amount in needs.values():
            if amount:
                raise_bias(amount)


def _accelerators(module: nn.Module) -> list[torch.device]:
    """Return the devices besides the CPU whose random state a pass of the module moves."""
    devices = {parameter.device for parameter in module.parameters()}
    return [device for device in devices if device.type == "cuda"]
