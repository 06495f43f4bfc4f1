"""Makes ``transformers.TrainingArguments`` from the YAML section ``trainer``."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from sluice.encoders.backends.backend import say_used
from sluice.encoders.foundation.build import fits, misfit
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.encoders.foundation.progress import progress_target
from sluice.encoders.transformer.arithmetic import is_faster_in_halves
from sluice.training.loop.large_batches import Lamb

# Keys that other parts of the configuration decide, and which.
DECIDED = {
    "output_dir": "output",
    "seed": "seed",
    "metric_for_best_model": "evaluate.measures (the first)",
    "resume_from_checkpoint": "output (training resumes by itself)",
    "remove_unused_columns": "nothing: examples have no columns",
    "auto_find_batch_size": "per_device_train_batch_size: batches are packed before training",
    "label_smoothing_factor": "loss",
}
# Keys that do not change what is learnt: training may resume with other values.
FREE = (
    "logging_", "log_", "report_to", "disable_tqdm", "save_", "dataloader_", "eval_", "run_name",
    "load_best_model_at_end", "use_cpu", "project",
)  # fmt: skip
# Former names of keys, for versions of transformers that know no others.
FORMER = {
    f"activation_checkpointing{end}": f"gradient_checkpointing{end}" for end in ("", "_kwargs")
}
LEAST: dict[str, int] = {  # of numbers that the library does not look at
    "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "save_total_limit": 1,
    "gradient_accumulation_steps": 1, "eval_accumulation_steps": 1, "dataloader_num_workers": 0,
    "max_grad_norm": 0, "weight_decay": 0,
}  # fmt: skip
LAMB = "lamb"  # ours: the library has none
DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 32,
    "learning_rate": 2e-5,
    "warmup_steps": 0.1,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 0.2,
    "save_total_limit": 2,
    "report_to": "none",
}


def training_arguments(
    trainer: Mapping[str, Any],
    *,
    output: Path,
    seed: int,
    evaluate_every: int | None,
    evaluated: bool,
    metric: str | None,
) -> TrainingArguments:
    """Return checked arguments: our defaults, overridden by ``trainer``.

    ``evaluated`` says that there is a dev evaluation: it runs every ``evaluate_every`` steps (by
    default five times), checkpoints are saved at the same steps, and the best is loaded at the end.
    Raises ``ConfigError`` for an unknown key, a wrong type or a contradiction.
    """
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    trainer = {key if key in known else FORMER.get(key, key): trainer[key] for key in trainer}
    check_trainer(trainer)
    on_terminal = sys.stderr.isatty()
    settings: dict[str, Any] = {
        **DEFAULTS,
        "use_cpu": not torch.cuda.is_available(),
        "disable_tqdm": not on_terminal or progress_target() is False,
        **{key: value for key, value in trainer.items() if (key, value) != ("optim", LAMB)},
        "output_dir": str(output),
        "seed": seed,
        "remove_unused_columns": False,
    }
    if settings.get("bf16") is True and settings["use_cpu"] and not is_faster_in_halves():
        say_used("trainer.bf16: true: slower here than float32", torch.float32)
        settings["bf16"] = False
    if evaluated:
        every = trainer.get("eval_steps", evaluate_every or 0.2)
        settings["eval_strategy"] = trainer.get("eval_strategy", "steps")
        settings["eval_steps"] = every
        settings["save_steps"] = trainer.get("save_steps", every)
        settings["metric_for_best_model"] = metric or "first"
        settings["greater_is_better"] = True
        saves = str(settings["save_strategy"]) != "no"
        settings["load_best_model_at_end"] = trainer.get("load_best_model_at_end", saves)
        settings["eval_on_start"] = trainer.get("eval_on_start", True)
    elif str(trainer.get("eval_strategy", "no")) != "no" or "eval_steps" in trainer:
        raise ConfigError(
            "trainer.eval_strategy: the training has no dev evaluation; set evaluate.every"
        )
    if "tensorboard" in str(settings["report_to"]) and not importlib.util.find_spec("tensorboard"):
        raise MissingPackageError("tensorboard", "tensorboard", "report_to: tensorboard")
    try:
        return TrainingArguments(**settings)
    except Exception as error:  # whatever its many checks and libraries raise at a value
        raise ConfigError(f"trainer: {error}; check the values of its keys") from error


def own_optimizer(
    trainer: Mapping[str, Any], arguments: TrainingArguments
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]] | None:
    """Return the optimiser with its settings where it is not one of the library's."""
    if trainer.get("optim") != LAMB:
        return None
    betas = arguments.adam_beta1, arguments.adam_beta2
    eps = trainer.get("adam_epsilon", Lamb.EPS)
    return Lamb, {"lr": arguments.learning_rate, "betas": betas, "eps": eps}


def result_settings(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change what is learnt, for comparing two runs."""
    return {key: value for key, value in sorted(trainer.items()) if not key.startswith(FREE)}


def check_trainer(trainer: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a key `trainer` cannot have, or a value of the wrong type."""
    known = {field.name: field.type for field in dataclasses.fields(TrainingArguments)}
    names = [LAMB, *(each.value for each in OptimizerNames)]
    if trainer.get("optim", LAMB) not in names:
        raise ConfigError(
            f"trainer.optim: {trainer['optim']!r}, expected {LAMB}, adamw_torch, sgd or another of "
            f"transformers{suggest(str(trainer['optim']), names)}"
        )
    if trainer.get("optim") == LAMB and trainer.get("optim_args") is not None:
        raise ConfigError(
            "trainer.optim_args: lamb takes none; set adam_beta1, adam_beta2, adam_epsilon and "
            "weight_decay"
        )
    for key, value in trainer.items():
        if key in DECIDED:
            raise ConfigError(f"trainer.{key}: is decided by {DECIDED[key]}; leave it out here")
        if key == "train_sampling_strategy" and value not in ("random", "group_by_length"):
            raise ConfigError(f"trainer.{key}: {value!r}, expected random or group_by_length")
        if key not in known:
            raise ConfigError(
                f"trainer.{key}: transformers.TrainingArguments has no such key"
                f"{suggest(key, known)}"
            )
        hint = known[key]
        optional = type(None) in get_args(hint)
        if not fits(value, hint) or (value is None and not optional):
            raise ConfigError(f"trainer.{key}: {misfit(value, hint)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"trainer.{key}: {value}; expected a finite number")
        if isinstance(value, (int, float)) and value < LEAST.get(key, value):
            raise ConfigError(f"trainer.{key}: {value}; expected {LEAST[key]} or more")
