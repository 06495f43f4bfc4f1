"""CSR encoders from YAML: trained, indexed, searched, explained; what cannot be is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import Models, experiment

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        (
            "train",
            {"loss": {"type": "csr"}, "encoder": {"type": "splade", "model": "m"}},
            "loss: csr trains csr; a splade encoder takes info_nce",
        ),
        (
            "train",
            {"loss": {"type": "csr"}, "encoder": {"type": "dense", "model": "m"}},
            "loss: csr trains csr; a dense encoder takes info_nce",
        ),
        (
            "train",
            {"loss": {"type": "rrra"}},
            "rrra trains dense; a csr encoder, trained as splade, takes csr,",
        ),
        ("train", {"loss": {"type": "CSRLoss"}}, "unknown type 'CSRLoss'; here it is called csr"),
        ("train", {"loss": {"type": "sum", "losses": [{"type": "csr"}]}}, "put it around them"),
        ("retrievers", {"index": {"type": "flat"}}, "a csr encoder takes inverted"),
        ("retrievers", {"encoder": {"type": "splade", "model": "codes"}}, "write type: csr"),
    ],
)
def test_what_cannot_be_is_refused(
    section: str, change: dict[str, Any], says: str, tmp_path: Path, models: Models
) -> None:
    facts = experiment("csr", tmp_path, models)
    facts[section]["codes"] |= change
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))
