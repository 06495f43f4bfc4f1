"""A loss that ends the second process of a training once, by a mark on disk."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.training.batches.processes import rank
from sluice.training.losses.contrastive.info_nce import InfoNCE


@dataclass(eq=False)
class StrikingLoss(InfoNCE):
    """InfoNCE, until the fourth step is done in the second process."""

    mark: str = ""

    def advance(self, step: int) -> None:
        super().advance(step)
        if step == 4 and rank() == 1 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
