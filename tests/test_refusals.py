"""What is refused before any work, of training runs and of every kind: ``refusals.yaml``."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from click_logs import CLICK
from kinds import Models, experiment, filled
from places import ROOT

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

GROUPS = yaml.safe_load((ROOT / "tests" / "refusals.yaml").read_text("utf-8"))["groups"]
ROWS = [(name, *row) for name, group in GROUPS.items() for row in group["refused"]]


def changed(section: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a section with a change; null takes a key away."""
    return {key: value for key, value in {**section, **change}.items() if value is not None}


@pytest.mark.parametrize(("name", "change", "says"), ROWS)
def test_it_is_refused_before_any_work(
    name: str, change: Any, says: str | None, tmp_path: Path, models: Models
) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps(CLICK) + "\n")
    (tmp_path / "twice.txt").write_text("gold\ngold\n")
    group, change = (filled(each, tmp_path, models) for each in (GROUPS[name], change))
    raised = pytest.raises(ConfigError, match=says) if says else nullcontext()
    if "experiment" in group:
        with raised:
            check_experiment(checked({**group["experiment"], **change}, ExperimentConfig))
        return
    over = group["over"]
    kind, place, part = over if isinstance(over, list) else ("", "train", "a")
    facts = experiment(kind, tmp_path, models) if kind else {place: {part: over}}
    section = facts[place][part]
    if "within" in group:
        change = {group["within"]: changed(section[group["within"]], change)}
    encoder = change.get("encoder", {})
    if encoder and ("type" not in encoder or None in encoder.values()):
        change = {**change, "encoder": changed(section["encoder"], encoder)}
    section = facts[place][part] = changed(section, change)
    with raised:
        if place == "train":
            check_training(checked({"dataset": "d", "output": "o"} | section, TrainConfig), "")
        else:
            check_experiment(checked(facts, ExperimentConfig))
