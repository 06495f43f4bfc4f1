"""The Trainer: arguments, objective, gradient cache, checkpoints, refreshed negatives.

May import: `training.losses`, `training.batches`, `training.negatives`, `training.sparsity`,
`training.journal`, `indexing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.training.loop.trainer import RetrievalTrainer as RetrievalTrainer
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
