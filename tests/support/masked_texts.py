"""Texts and settings of masked-language training; a program that compares workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tiny_models
import torch

from sluice.encoders import SpladeEncoder
from sluice.training import Example, fit
from sluice.training.losses.sequences import MaskedLanguage
from sluice.training.protocol import Text

WORDS = tiny_models.WORDS.split()


def texts(count: int = 24, length: int = 20) -> list[Example]:
    made = []
    for i in range(count):
        words = " ".join(WORDS[(i * 7 + j * (1 + i % 3)) % len(WORDS)] for j in range(length))
        made.append(Example(Text(f"d{i}", ""), (Text(f"d{i}", words),)))
    return made


# Two epochs of three batches, checkpoints at steps 2, 4 and 6.
JOB: dict[str, Any] = {
    "trainer": {
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
        "save_steps": 2, "logging_steps": 1, "save_total_limit": 10,
    },
    "sparsity": {"document": {"type": "flops", "weight": 1e-3}, "ramp": 0.9},
}  # fmt: skip


def weights(encoder: SpladeEncoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.module.state_dict().items()}


def trained(folder: Path, output: Path, **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    encoder = SpladeEncoder.from_pretrained(folder, device="cpu")
    job = {**JOB, **changes}
    loss = job.pop("loss", MaskedLanguage())
    report = fit(encoder, job.pop("examples", texts()), loss, output=output, **job)
    return report, weights(encoder)


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(ours[name], theirs[name]) for name in {**ours, **theirs})


def compare_workers(folder: Path, work: Path) -> None:
    plain = {**JOB["trainer"], "save_strategy": "no", "num_train_epochs": 1}
    del plain["save_steps"]
    _, here = trained(folder, work / "a", trainer=plain)
    _, there = trained(folder, work / "b", trainer={**plain, "dataloader_num_workers": 1})
    if not equal(here, there):
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    compare_workers(Path(sys.argv[1]), Path(sys.argv[2]))
