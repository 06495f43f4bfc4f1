"""Every rule of training has an example that breaks it, and that is what a user is told first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training, run_facts
from sluice.retrieval.experiments.training.rules.models import RUN_RULES
from sluice.training.rules import Rule, broken

PLAIN = {"output": "o", "dataset": "d", "loss": "info_nce"}
ENCODER = {"type": "dense", "model": "m"}


def section_of(example: str) -> TrainConfig:
    """Return the plain training run with what an example changes; PAIRS is a file of pairs."""
    changes: dict[str, Any] = yaml.safe_load(example.replace("PAIRS", "pairs.csv"))
    encoder = changes.pop("encoder", {})
    if isinstance(encoder, dict) and "document" not in encoder:  # towers have a model each
        encoder = {**ENCODER, **encoder}
    plain = {**PLAIN, "datasets": changes["datasets"]} if "datasets" in changes else PLAIN
    config = {**plain, **changes, "encoder": encoder}
    return checked(config if plain is PLAIN else {**config, "dataset": None}, TrainConfig)


@pytest.mark.parametrize("rule", RUN_RULES, ids=lambda rule: f"{rule.key}-{rule.example}")
def test_an_example_breaks_its_rule_and_none_before(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.csv").write_text("query,positive\nhow,a sluice\nwhat,stones\n")
    monkeypatch.chdir(tmp_path)
    section = section_of(rule.example)
    [message] = broken([rule], run_facts(section, ""))
    with pytest.raises(ConfigError) as error:
        check_training(section, "train.a")
    assert str(error.value) == f"train.a.{message}"


def test_the_plain_training_run_breaks_none() -> None:
    check_training(section_of("seed: 1"), "")
