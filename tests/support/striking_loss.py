"""A loss that ends the second process of a training once, or fails in the first: a mark on disk."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.processes import rank
from sluice.training.losses.contrastive.info_nce import InfoNCE


@dataclass(eq=False)
class StrikingLoss(InfoNCE):
    """InfoNCE, until the fourth step is done."""

    mark: str = ""
    fails: bool = False

    def advance(self, step: int) -> None:
        super().advance(step)
        if step != 4 or Path(self.mark).exists():
            return
        if self.fails and rank() == 0:
            raise DataError("the fourth step is refused")
        if not self.fails and rank() == 1:
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
