"""Experts from YAML: one for each dataset, or by a gate; trained, searched with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from kinds import Models, experiment
from small_world import write_marked

from sluice.encoders import ExpertEncoder
from sluice.retrieval import train

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


@pytest.mark.thorough
def test_a_saved_mixture_is_trained_on(sluice: Call, tmp_path: Path, models: Models) -> None:
    """On the same datasets it goes on; on one alone, or on others, it is refused, with the file."""
    facts = experiment("experts", tmp_path, models)
    base = {
        "datasets": facts["train"]["mixed"]["datasets"], "loss": "info_nce", "trainer": TRAINER,
        "encoder": facts["train"]["mixed"]["encoder"], "output": str(tmp_path / "first"),
    }  # fmt: skip
    model = train(base)
    again: dict[str, Any] = {
        **base,
        "output": str(tmp_path / "second"),
        "encoder": {"type": "experts"},
    }
    again["encoder"]["model"] = str(model)
    assert ExpertEncoder.from_pretrained(train(again), expert="b").dim == 32
    file = tmp_path / "third.yaml"
    for datasets, says in (
        ({"datasets": [base["datasets"][0]]}, "examples name none; train on several"),
        ({"dataset": base["datasets"][0], "datasets": None}, "examples name none; train on"),
        ({"datasets": [base["datasets"][0], str(write_marked(tmp_path / "c", "green"))]},
         "expert for each dataset, a, b, and none for 'c'"),
        ({"freeze": {"layers": 2}}, "freeze: the layers with experts are frozen"),
    ):  # fmt: skip
        changed = {**again, **datasets, "output": str(tmp_path / "third")}
        file.write_text(yaml.safe_dump({k: v for k, v in changed.items() if v is not None}))
        code, _, err = sluice("train", file)
        assert code == 2, err
        assert re.search(rf"{file.name}.*{says}", err), err
