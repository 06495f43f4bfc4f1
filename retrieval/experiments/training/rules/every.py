"""Every rule that a config of a training run is judged by, in their order."""

from __future__ import annotations

from typing import Final

from sluice.retrieval.experiments.training.rules.data import DATA, EXAMPLES, SELDOM
from sluice.retrieval.experiments.training.rules.models import ENCODER, LOSS, SETTINGS
from sluice.training.rules import RULES

RUN_RULES: Final = (*ENCODER, *DATA, *RULES, *LOSS, *EXAMPLES, *SETTINGS, *SELDOM)
