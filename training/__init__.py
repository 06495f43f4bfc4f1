"""Trains encoders from examples: losses, negatives, sparsity, the training loop.

May import: `indexing`, `encoders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.training.batches.stream import ExampleStream as ExampleStream
    from sluice.training.fit_encoder import FitReport as FitReport, fit as fit
    from sluice.training.loop.trainer import RetrievalTrainer as RetrievalTrainer
    from sluice.training.losses import LOSSES as LOSSES
    from sluice.training.losses.base import LossBase as LossBase
    from sluice.training.losses.contrastive.softmax import InfoNCE as InfoNCE
    from sluice.training.negatives.audit import (
        MiningAudit as MiningAudit,
        audit_mining as audit_mining,
    )
    from sluice.training.negatives.false_negatives import Judge as Judge, JudgedPair as JudgedPair
    from sluice.training.negatives.mining import mine as mine, mine_lists as mine_lists
    from sluice.training.negatives.provenance import Provenance as Provenance
    from sluice.training.negatives.report import (
        MinedNegatives as MinedNegatives,
        MiningReport as MiningReport,
        read_provenance as read_provenance,
        write_provenance as write_provenance,
    )
    from sluice.training.negatives.settings import Mining as Mining
    from sluice.training.protocol import (
        Example as Example,
        Text as Text,
        pair_examples as pair_examples,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
