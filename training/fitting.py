"""Training from examples to a better encoder, in one call that resumes by itself."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encoders.errors import ConfigError, DataError
from training.example import Example

if TYPE_CHECKING:
    from training.protocol import BiEncoder, Loss, PairEncoder
    from training.trainer import Evaluate, Refresh

log = logging.getLogger("sluice")


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a training did.

    ``steps`` optimiser steps in all, ``seconds`` of this call, ``best_step`` and ``best_value`` of
    the dev measure (None without evaluation), ``history`` every logged line, ``resumed_step`` the
    step of the checkpoint it went on from (None for a fresh start).
    """

    steps: int
    seconds: float
    best_step: int | None
    best_value: float | None
    history: tuple[Mapping[str, float], ...]
    resumed_step: int | None


def fit(
    encoder: BiEncoder | PairEncoder,
    examples: Iterable[Example],
    loss: Loss,
    *,
    output: str | Path,
    trainer: Mapping[str, Any] | None = None,
    sparsity: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    metric: str | None = None,
    refresh: Refresh | None = None,
    seed: int = 13,
    head_learning_rate: float | None = None,
) -> FitReport:
    """Train the encoder in place; at the end it holds the best weights, or the last without dev.

    ``output`` gets checkpoints and ``metrics.jsonl``. If it holds a complete checkpoint of this
    same training, training goes on from there and ends as it would have undisturbed (bit for bit on
    a CPU at one thread); a finished training is only loaded. ``trainer`` holds
    ``transformers.TrainingArguments`` keys, ``sparsity`` the YAML section of that name.
    ``evaluate(encoder)`` returns finite measures, higher is better; it runs every
    ``evaluate_every`` steps (five times by default) and at the end; ``metric`` names the measure
    that chooses the best (by default the first). ``refresh(epoch)`` returns the examples of each
    epoch after the first, made with the encoder as it is then.

    Raises ``DataError`` without examples, for a loss or a measure that is not finite, or when a
    finished training's best checkpoint is gone; ``ConfigError`` for settings, or when ``output``
    holds checkpoints of another training.
    """
    from training.arguments import result_settings, training_arguments
    from training.checkpoint import bind, examples_hash, last_complete
    from training.regulariser import Regulariser, Sparsity
    from training.trainer import RetrievalTrainer

    chosen = list(examples)
    if not chosen:
        raise DataError("no training examples: the queries have no positives with a text")
    _check_precision(encoder)
    settings = dict(trainer or {})
    folder = Path(output).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    arguments = training_arguments(
        settings,
        output=folder,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluated=evaluate is not None,
        metric=metric,
    )
    facts = {
        "trainer": result_settings(settings),
        "loss": _described(loss),
        "sparsity": sparsity,
        "seed": seed,
        "head_learning_rate": head_learning_rate,
        "examples": examples_hash(chosen),
        "encoder": {name: list(p.shape) for name, p in encoder.module.named_parameters()},
    }
    bind(folder, facts)
    checkpoint = last_complete(folder)
    if checkpoint is None:
        for stale in folder.glob("examples-*.jsonl"):
            stale.unlink()
    job = RetrievalTrainer(
        encoder,
        chosen,
        loss,
        arguments,
        regulariser=None if sparsity is None else Regulariser(Sparsity.from_config(sparsity)),
        evaluate=evaluate,
        refresh=refresh,
        head_learning_rate=head_learning_rate,
    )
    start = time.monotonic()
    if checkpoint is None:
        job.train()
    elif job.load_finished(checkpoint):
        log.info("training: was finished before, and is loaded from %s", folder)
    else:
        log.info("training: goes on from %s", checkpoint)
        job.train(resume_from_checkpoint=str(checkpoint))
    encoder.module.eval()
    return FitReport(
        steps=job.state.global_step,
        seconds=time.monotonic() - start,
        best_step=job.state.best_global_step,
        best_value=job.state.best_metric,
        history=tuple(job.state.log_history),
        resumed_step=None if checkpoint is None else int(checkpoint.name.rpartition("-")[2]),
    )


def _check_precision(encoder: BiEncoder | PairEncoder) -> None:
    import torch

    for name, parameter in encoder.module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ConfigError(
                f"encoder: {name} is {parameter.dtype}, and training needs float32 weights: load "
                "the encoder with dtype: float32 and set trainer.bf16: true for speed"
            )


def _described(loss: Loss) -> dict[str, Any]:
    """The loss's name and its plain settings, for comparing two trainings."""
    named = loss if hasattr(loss, "__qualname__") else type(loss)  # a function, or a class's object
    settings = (
        {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss)}
        if dataclasses.is_dataclass(loss)
        else getattr(loss, "__dict__", {})
    )
    return {
        "type": f"{named.__module__}:{getattr(named, '__qualname__', '')}",
        **{k: v for k, v in settings.items() if isinstance(v, (int, float, str, type(None)))},
    }
