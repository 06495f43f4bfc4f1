"""A training that two processes share, one of which is killed, and the same by one process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_models
import torch
from safetensors.torch import load_file
from small_training import BM25, MINED, TRAINER, short_training

from sluice.retrieval import train
from sluice.training.batches.processes import rank
from sluice.training.losses.contrastive.softmax import InfoNCE


@dataclass(eq=False)
class StrikingLoss(InfoNCE):
    """InfoNCE, until the fourth step is done in the second process: a mark on disk says it was."""

    mark: str = ""

    def advance(self, step: int) -> None:
        super().advance(step)
        if step == 4 and rank() == 1 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def training(folder: Path) -> dict[str, Any]:
    """Return a training without dropout, which every process draws for itself, by fours."""
    model = tiny_models.save_model(
        folder / "model", "Model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    negatives = {**MINED, "retriever": ["self", BM25], "refresh": 3}
    trainer = {**TRAINER, "optim": "sgd", "learning_rate": 0.05, "save_steps": 1, "max_steps": 6}
    return short_training(folder, model, negatives=negatives, trainer=trainer)


def check_struck(folder: Path, launch: dict[str, Any]) -> None:
    """Check that a killed process costs no step: two with half the batch are one with all of it."""
    config, mark = training(folder), folder / "mark"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = train(config)
    finally:
        torch.set_num_threads(threads)
    loss = {"type": "launched_training:StrikingLoss", "mark": str(mark)}
    trainer = {**config["trainer"], "per_device_train_batch_size": 2}
    output = str(folder / "struck")
    struck = train({**config, "loss": loss, "trainer": trainer, "launch": launch, "output": output})
    assert mark.exists()
    one, other = (load_file(each / "model.safetensors") for each in (alone, struck))
    assert one.keys() == other.keys()
    assert all(torch.allclose(one[name], other[name], atol=2e-5) for name in one)
    facts = json.loads((struck / "manifest.json").read_text())["summary"]["negatives_age"]
    assert (facts["max"], facts["refreshes"]) == (3, 1)
