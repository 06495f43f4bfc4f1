"""Settings of a training: the Trainer's keys, learning rates, logging, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError, DataError, MissingPackageError
from sluice.training import fit
from sluice.training.losses.contrastive.pairs import BCE
from sluice.training.losses.contrastive.softmax import InfoNCE


def lines(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_head_has_its_own_learning_rate(tiny: ModuleType, tmp_path: Path) -> None:
    from sluice.training.loop.arguments import training_arguments
    from sluice.training.loop.trainer import RetrievalTrainer

    arguments = training_arguments(
        {}, output=tmp_path, seed=1, evaluate_every=None, evaluated=False, metric=None
    )
    encoder = tiny.Splade()
    job = RetrievalTrainer(encoder, tiny.examples(8), InfoNCE(), arguments, head_learning_rate=0.5)
    rates = {
        id(p): group["lr"] for group in job.create_optimizer().param_groups for p in group["params"]
    }
    assert rates[id(encoder.module.head.bias)] == 0.5
    assert rates[id(encoder.module.bert.encoder.layer[0].output.dense.weight)] == 2e-5
    assert len(rates) == sum(1 for _ in encoder.module.parameters())
    job = RetrievalTrainer(
        tiny.Dense(), tiny.examples(8), InfoNCE(), arguments, head_learning_rate=0.5
    )
    with pytest.raises(ConfigError, match="head_learning_rate"):
        job.create_optimizer()


def test_a_key_has_the_name_that_the_installed_library_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``activation_checkpointing`` does, which older versions call by its former name."""
    from sluice.training.loop import arguments

    monkeypatch.setattr(arguments, "FORMER", {"new_name_of_max_steps": "max_steps"})
    made = arguments.training_arguments(
        {"new_name_of_max_steps": 7},
        output=tmp_path, seed=1, evaluate_every=None, evaluated=False, metric=None,
    )  # fmt: skip
    assert made.max_steps == 7


def test_accumulation_counts_optimiser_steps(tiny: ModuleType, tmp_path: Path) -> None:
    job = {**tiny.JOB, "trainer": {**tiny.JOB["trainer"], "gradient_accumulation_steps": 3}}
    report = fit(tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path, **job)
    assert report.steps == 2
    strengths = [line["sparsity_strength"] for line in report.history if "loss" in line]
    assert strengths == [pytest.approx((1 / 1.8) ** 2), 1.0]


def test_off_a_terminal_progress_is_logged(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    with caplog.at_level(logging.INFO, logger="sluice"):
        trainer = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1}
        fit(tiny.Dense(), tiny.examples(16), InfoNCE(), output=tmp_path, trainer=trainer)
    spoken = [
        record.getMessage()
        for record in caplog.records
        if "step 2 of 4" in record.msg % record.args
    ]
    assert spoken
    assert "s left" in spoken[0]
    assert "loss" in spoken[0]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"learning_rat": 1e-5}, "did you mean 'learning_rate'"),
        ({"learning_rate": "2e-5"}, "learning_rate: '2e-5'; expected a number"),
        ({"max_steps": 2.5}, "2.5; expected a whole number"),
        ({"bf16": 1}, "1; expected true or false"),
        ({"output_dir": "x"}, "decided by output"),
        ({"per_device_train_batch_size": None}, "batch_size: None; expected a whole number"),
        ({"per_device_train_batch_size": 0}, "batch_size: 0; expected 1 or more"),
        ({"lr_scheduler_type": None}, "trainer.lr_scheduler_type: None; expected"),
        ({"fsdp_config": True}, "trainer.fsdp_config: True; expected keys and values or a text"),
        ({"learning_rate": float("nan")}, "trainer.learning_rate: nan; expected a finite number"),
        ({"lr_scheduler_type": "linaer"}, "linaer"),
        ({"eval_strategy": "steps"}, "no dev evaluation"),
        ({"train_sampling_strategy": "sequential"}, "group_by_length"),
        ({"auto_find_batch_size": True}, "decided by per_device_train_batch_size"),
    ],
)
def test_bad_trainer_settings(
    tiny: ModuleType, tmp_path: Path, trainer: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(tiny.Dense(), tiny.examples(4), InfoNCE(), output=tmp_path, trainer=trainer)


def test_bad_input(tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no training examples"):
        fit(tiny.Dense(), [], InfoNCE(), output=tmp_path)
    with pytest.raises(ConfigError, match="sparsity: is for splade"):
        fit(tiny.Cross(), tiny.examples(4), BCE(), output=tmp_path, sparsity={"ramp": 0.5})
    half = tiny.Dense()
    half.module.to(torch.bfloat16)
    with pytest.raises(ConfigError, match="bf16: true"):
        fit(half, tiny.examples(4), InfoNCE(), output=tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'nDCG@10'"):
        fit(
            tiny.Dense(), tiny.examples(8), InfoNCE(), output=tmp_path / "m",
            trainer={"per_device_train_batch_size": 4}, evaluate=lambda _: {"nDCG@10": 0.1},
            metric="nDCG@1",
        )  # fmt: skip

    def broken(scores: torch.Tensor, *_: Any) -> torch.Tensor:
        return scores.sum() * float("nan")

    with pytest.raises(DataError, match="the loss is nan"):
        fit(tiny.Dense(), tiny.examples(8), broken, output=tmp_path / "n")
    with pytest.raises(DataError, match="step 0: the dev measure R@10 is nan"):
        fit(
            tiny.Dense(), tiny.examples(8), InfoNCE(), output=tmp_path / "e",
            trainer={"max_steps": 1}, evaluate=lambda _: {"nDCG@10": 0.1, "R@10": float("nan")},
        )  # fmt: skip
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="tensorboard"):
        fit(
            tiny.Dense(), tiny.examples(8), InfoNCE(), output=tmp_path / "t",
            trainer={"report_to": "tensorboard"},
        )  # fmt: skip


def test_activation_checkpointing_changes_nothing_but_memory(
    tiny: ModuleType, tmp_path: Path
) -> None:
    found = []
    for checkpointing in (False, True):
        encoder = tiny.Dense(dropout=0.0)
        trainer = {
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "activation_checkpointing": checkpointing,
            "train_sampling_strategy": "group_by_length",
        }
        fit(
            encoder,
            tiny.examples(8),
            InfoNCE(),
            output=tmp_path / str(checkpointing),
            trainer=trainer,
        )
        found.append(tiny.weights_of(encoder))
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])


def test_tensorboard_by_name(tiny: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trainer = {"max_steps": 2, "per_device_train_batch_size": 4, "report_to": "tensorboard"}
    fit(tiny.Dense(), tiny.examples(8), InfoNCE(), output=tmp_path, trainer=trainer)
    assert list(tmp_path.rglob("events.out.tfevents.*"))
    assert lines(tmp_path)
