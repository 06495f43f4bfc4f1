"""Training: examples and an encoder in, a better encoder out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.audit import MiningAudit, audit_mining
    from training.example import Example, Text, pair_examples
    from training.fitting import FitReport, fit
    from training.judge import Judge, JudgedPair
    from training.losses import LOSSES
    from training.mined_rows import Provenance
    from training.mining_report import MinedNegatives, MiningReport
    from training.mining_settings import Mining
    from training.negatives import mine, mine_lists
    from training.provenance_file import read_provenance, write_provenance
    from training.trainer import RetrievalTrainer

_HOMES = {
    "LOSSES": "training.losses",
    "Example": "training.example",
    "FitReport": "training.fitting",
    "Judge": "training.judge",
    "JudgedPair": "training.judge",
    "MinedNegatives": "training.mining_report",
    "Mining": "training.mining_settings",
    "MiningAudit": "training.audit",
    "MiningReport": "training.mining_report",
    "Provenance": "training.mined_rows",
    "RetrievalTrainer": "training.trainer",
    "Text": "training.example",
    "fit": "training.fitting",
    "audit_mining": "training.audit",
    "mine": "training.negatives",
    "mine_lists": "training.negatives",
    "pair_examples": "training.example",
    "read_provenance": "training.provenance_file",
    "write_provenance": "training.provenance_file",
}

__all__ = [
    "LOSSES",
    "Example",
    "FitReport",
    "Judge",
    "JudgedPair",
    "MinedNegatives",
    "Mining",
    "MiningAudit",
    "MiningReport",
    "Provenance",
    "RetrievalTrainer",
    "Text",
    "audit_mining",
    "fit",
    "mine",
    "mine_lists",
    "pair_examples",
    "read_provenance",
    "write_provenance",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
