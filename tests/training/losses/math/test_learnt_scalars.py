"""Losses with parameters of their own inside the Trainer: trained, journalled, resumed."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.build import build
from sluice.training import fit
from sluice.training.losses import LOSSES

SPECS: list[dict[str, Any]] = [
    {"type": "info_nce", "learnable_temperature": True, "chunk": 4, "learning_rate": 0.05},
    {"type": "bixse", "learning_rate": 0.05},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["type"])
def test_scalars_are_trained_and_resumed(spec: dict, tiny: ModuleType, tmp_path: Path) -> None:
    trainer = {
        "num_train_epochs": 1, "per_device_train_batch_size": 8, "save_steps": 2,
        "logging_steps": 1, "learning_rate": 1e-3, "save_total_limit": 5,
    }  # fmt: skip

    def trained(output: Path) -> tuple[Any, Any]:
        encoder = tiny.Dense()
        report = fit(
            encoder, tiny.examples(), build(spec, LOSSES, where="loss"), output=output,
            trainer=trainer,
        )  # fmt: skip
        return report, tiny.weights_of(encoder)

    report, whole = trained(tmp_path)
    name = "temperature" if spec["type"] == "info_nce" else "scale"
    told = [line[name] for line in report.history if name in line]
    assert len(set(told)) > 1
    assert told[0] == pytest.approx(0.05 if name == "temperature" else 20, rel=0.1)
    for late in tmp_path.glob("checkpoint-3"):
        late.rename(tmp_path / "gone")
    again, resumed = trained(tmp_path)
    assert again.resumed_step == 2
    assert again.history[-1]["step"] == report.history[-1]["step"]
    last = [[line[name] for line in r.history if name in line][-1] for r in (report, again)]
    assert last[0] == last[1]
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
