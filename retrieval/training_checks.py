"""What is checked of a training before any work: its parts, and that they can learn together."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoders.build import check, check_arguments
from encoders.errors import ConfigError
from encoders.registry import ENCODERS, RERANKERS
from retrieval.components import START_KEY, Allow, check_measures, check_retriever
from retrieval.config import RetrieverSection, TrainingSection, checked
from training.losses import LOSSES

LOWEST = {  # of the numbers in `trainer`
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "max_grad_norm": 0,
    "weight_decay": 0,
}
ABOVE_ZERO = ("learning_rate", "num_train_epochs")


def check_training(section: TrainingSection, where: str, allow: Allow = None) -> None:
    """Check a training's encoder, loss, negatives and trainer settings, alone and together."""
    from training.regulariser import Sparsity

    prefix = f"{where}." if where else ""
    encoder = {key: value for key, value in section.encoder.items() if key != START_KEY}
    check(encoder, {**ENCODERS, **RERANKERS}, where=f"{prefix}encoder", allow=allow)
    kind = encoder.get("type")
    if kind == "bm25":
        raise ConfigError(f"{prefix}encoder: bm25 counts words; it is fitted, not trained")
    if START_KEY in section.encoder and kind != "splade":
        raise ConfigError(f"{prefix}encoder.{START_KEY}: only splade encoders take a start")
    if section.sparsity is not None:
        if kind in ("dense", "cross_encoder"):
            raise ConfigError(f"{prefix}sparsity: is for splade; a {kind} encoder has no terms")
        Sparsity.from_config(section.sparsity)
    if section.negatives is not None:
        _check_negatives(section.negatives, f"{prefix}negatives", allow)
    if section.evaluate is not None:
        check_measures(section.evaluate.measures, f"{prefix}evaluate.measures")
    _check_trainer(section, prefix)
    _check_loss(section, prefix, allow)


def mining_of(spec: Mapping[str, Any], where: str) -> Any:
    """Return the ``Mining`` that a section ``negatives`` describes, its depth checked too."""
    from training import Mining

    depth = spec.get("depth", 1)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ConfigError(f"{where}.depth: {depth!r}; expected a whole number, 1 or more")
    own = {key: value for key, value in spec.items() if key not in ("type", "retriever", "depth")}
    check_arguments(Mining, own, where=where, kind="mined")
    return Mining(**own)


def _check_loss(section: TrainingSection, prefix: str, allow: Allow) -> None:
    """Check the loss, that it fits the encoder, and that a positive has something to beat."""
    make, arguments = check(section.loss, LOSSES, where=f"{prefix}loss", allow=allow)
    loss = make(**arguments)
    kind, name = section.encoder["type"], section.loss["type"]
    fitting = getattr(loss, "encoders", (kind,))
    if kind in (*ENCODERS, *RERANKERS) and kind not in fitting:
        raise ConfigError(
            f"{prefix}loss: {name} trains {', '.join(fitting)}; a {kind} encoder takes info_nce"
        )
    if section.negatives is not None:
        return
    if kind == "cross_encoder":
        alone = "a cross_encoder learns from each query's own documents"
    elif getattr(loss, "negatives", "all") == "own":
        alone = f"{name} holds a positive against the query's own documents only"
    elif section.trainer.get("per_device_train_batch_size") == 1:
        alone = "a batch of 1 has no other documents"
    else:
        return
    raise ConfigError(f"{prefix}negatives: needed: {alone}, so nothing would be learnt without")


def _check_negatives(spec: Mapping[str, Any], where: str, allow: Allow) -> None:
    if spec.get("type") != "mined":
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined'")
    lists = spec.get("retriever")
    expected = (
        "a name under retrievers or pipelines, a retriever folder, an inline {encoder, index}, "
        "or a .trec file"
    )
    if "retriever" not in spec:
        raise ConfigError(f"{where}: needs 'retriever': {expected}")
    if isinstance(lists, Mapping):
        try:
            section = checked(lists, RetrieverSection)
        except ConfigError as error:
            raise ConfigError(f"{where}.retriever: {error}") from None
        check_retriever(section, f"{where}.retriever", allow)
    elif not isinstance(lists, str) or not lists:
        raise ConfigError(f"{where}.retriever: {lists!r}; expected {expected}")
    mining_of(spec, where)


def _check_trainer(section: TrainingSection, prefix: str) -> None:
    """Make the trainer's arguments as the training will, and check what it lets pass."""
    from transformers.integrations import get_reporting_integration_callbacks

    from training.arguments import training_arguments

    try:
        with tempfile.TemporaryDirectory() as folder:
            arguments = training_arguments(
                section.trainer,
                output=Path(folder),
                seed=0,
                evaluate_every=section.evaluate.every if section.evaluate else None,
                evaluated=section.evaluate is not None,
                metric=section.evaluate.measures[0] if section.evaluate else None,
            )
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None
    for key, value in section.trainer.items():
        where = f"{prefix}trainer.{key}"
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {value!r}; expected a finite number")
        if value is not None and key in LOWEST and value < LOWEST[key]:
            raise ConfigError(f"{where}: {value!r}; expected {LOWEST[key]} or more")
        if value is not None and key in ABOVE_ZERO and value <= 0:
            raise ConfigError(f"{where}: {value!r}; expected a number above 0")
    try:
        get_reporting_integration_callbacks(arguments.report_to)
    except ValueError as error:
        raise ConfigError(f"{prefix}trainer.report_to: {error}") from None
