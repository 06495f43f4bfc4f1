"""Every rule over an experiment's retrievers and rerankers has an example that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.rules import PARTS, parts_of
from sluice.training.rules import Rule, broken

PLAIN = {"output": "o", "dataset": "d", "retrievers": {"bm25": "bm25"}}


@pytest.mark.parametrize("rule", PARTS, ids=lambda rule: f"{rule.key}-{rule.example}")
def test_an_example_breaks_its_rule_and_none_before(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = checked({**PLAIN, **yaml.safe_load(rule.example)}, ExperimentConfig)
    [message] = [text for part in parts_of(config) for text in broken([rule], part)]
    with pytest.raises(ConfigError) as error:
        check_experiment(config)
    assert str(error.value) == message
