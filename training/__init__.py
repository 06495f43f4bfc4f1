"""Training: examples and an encoder in, a better encoder out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.lazy import lazy

if TYPE_CHECKING:
    from training.audit import MiningAudit as MiningAudit
    from training.audit import audit_mining as audit_mining
    from training.example import Example as Example
    from training.example import Text as Text
    from training.example import pair_examples as pair_examples
    from training.fitting import FitReport as FitReport
    from training.fitting import fit as fit
    from training.judge import Judge as Judge
    from training.judge import JudgedPair as JudgedPair
    from training.losses import LOSSES as LOSSES
    from training.mined_rows import Provenance as Provenance
    from training.mining_report import MinedNegatives as MinedNegatives
    from training.mining_report import MiningReport as MiningReport
    from training.mining_settings import Mining as Mining
    from training.negatives import mine as mine
    from training.negatives import mine_lists as mine_lists
    from training.provenance_file import read_provenance as read_provenance
    from training.provenance_file import write_provenance as write_provenance
    from training.trainer import RetrievalTrainer as RetrievalTrainer
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "training.audit": ["MiningAudit", "audit_mining"],
            "training.example": ["Example", "Text", "pair_examples"],
            "training.fitting": ["FitReport", "fit"],
            "training.judge": ["Judge", "JudgedPair"],
            "training.losses": ["LOSSES"],
            "training.mined_rows": ["Provenance"],
            "training.mining_report": ["MinedNegatives", "MiningReport"],
            "training.mining_settings": ["Mining"],
            "training.negatives": ["mine", "mine_lists"],
            "training.provenance_file": ["read_provenance", "write_provenance"],
            "training.trainer": ["RetrievalTrainer"],
        },
    )
