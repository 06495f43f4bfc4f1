"""Training: examples and an encoder in, a better encoder out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.example import Example, Text, pair_examples
    from training.fitting import FitReport, fit
    from training.losses import LOSSES
    from training.mining_report import MinedNegatives, MiningReport, Provenance
    from training.negatives import Mining, mine
    from training.trainer import RetrievalTrainer

_HOMES = {
    "LOSSES": "training.losses",
    "Example": "training.example",
    "FitReport": "training.fitting",
    "MinedNegatives": "training.mining_report",
    "Mining": "training.negatives",
    "MiningReport": "training.mining_report",
    "Provenance": "training.mining_report",
    "RetrievalTrainer": "training.trainer",
    "Text": "training.example",
    "fit": "training.fitting",
    "mine": "training.negatives",
    "pair_examples": "training.example",
}

__all__ = [
    "LOSSES",
    "Example",
    "FitReport",
    "MinedNegatives",
    "Mining",
    "MiningReport",
    "Provenance",
    "RetrievalTrainer",
    "Text",
    "fit",
    "mine",
    "pair_examples",
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
