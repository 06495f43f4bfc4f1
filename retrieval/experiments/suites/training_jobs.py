"""Makes the job of a training run: of its config, or of what another process is given."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.progress import Advance
from sluice.encoders.vectors.worker import reopened
from sluice.retrieval.config.components import make_launcher
from sluice.retrieval.config.file_keys import Keys
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    TrainConfig,
    checked,
    find_own_modules,
)
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.execution.executor import Facts, Task
from sluice.retrieval.execution.group import Group
from sluice.retrieval.execution.plan import SETTLING, arrived
from sluice.retrieval.experiments.dependencies import Dependencies
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.training.job import (
    TrainingJob,
    made_before,
    order_of,
    parts_of,
    train_model,
)
from sluice.retrieval.experiments.training.parts import Part, TrainingSet, made_examples
from sluice.retrieval.experiments.training.tested_queries import tested_datasets


def training_job(settings: TrainConfig, file: str | Path | None = None) -> TrainingJob:
    """Return the job of one training run by itself."""
    output, dataset = Path(settings.output), settings.dataset
    work = output / "training"
    # An experiment without names: lists are inline, folders or runs. It is asked for no dataset
    # where the training has none.
    alone = Experiment(
        ExperimentConfig(
            dataset=dataset or {},
            output=settings.output,
            seed=settings.seed,
            executor=settings.executor,
        )
    )
    one = TrainingSet(
        lambda: None if dataset is None else load_dataset(dataset, None), alone.lists,
        executor=alone.executor,
    )  # fmt: skip
    return TrainingJob(
        settings,
        alone.collections(settings.datasets, work) if settings.datasets else [one],
        model_path=output / "model",
        work_path=work,
        seed=settings.seed,
        where="",
        judge=alone.judge,
        model=lambda name: name,
        keys=_keys(settings, alone),
        tested=lambda: tested_datasets(settings, dataset, None),
        order=functools.partial(order_of, settings, file),
    )


def _keys(settings: TrainConfig, alone: Experiment) -> Keys:
    """Return what decides the model: with several processes their number too, as it is batches'."""
    keys = Dependencies(alone.config).keys_of(settings)
    workers = 1 if settings.launch is None else make_launcher(settings.launch).workers
    return keys if workers == 1 else Keys(*(fingerprint_of(each, workers) for each in keys))


def ordered_job(config: str, file: str | None, name: str) -> TrainingJob:
    """Return the job of an ``order_of``, in the process that has it."""
    values, place = json.loads(config), None if file is None else Path(file)
    find_own_modules(values, place)
    if not name:
        return training_job(checked(values, TrainConfig), file)
    return Experiment(checked(values, ExperimentConfig), file=file).training_job(name)


def launched(job: TrainingJob, group: Group) -> Path:
    """Train a model in a group of processes, and return its folder."""
    if not made_before(job.model_path, job.keys.key):

        def here(advance: Advance) -> Facts:
            raise AssertionError("a group trains in processes of its own")

        task = Task("train", "training", job.order(), job.model_path, here)
        group.carry_out(task, job.work_path)
        there = arrived(job.model_path / MANIFEST, SETTLING)
        if not there or not made_before(job.model_path, job.keys.key):
            raise ModelError(
                f"{job.model_path}: is not here, though its training has ended; every worker must "
                "see the same folders (a file system that all machines share)"
            )
    return train_model(job)  # which finds it


def train_task(*, config: str, file: str | None, name: str) -> Facts:
    """Train the model of an order, as one of the processes that do it together."""
    return {"model": str(train_model(ordered_job(config, file, name)))}


def mine_task(
    *,
    config: str,
    file: str | None,
    name: str,
    step: int,
    encoder: str,
    own: str,
    options: dict[str, Any],
    fingerprint: str,
    output: str,
) -> Facts:
    """Make the examples for training from ``step`` on, mined with a copy of the encoder.

    Raises ``ModelError`` where the copy does not have the ``fingerprint`` of the encoder.
    """
    from sluice.training.loop.checkpoint import save_examples

    opened = reopened(encoder, own, options)
    if str(opened.fingerprint) != fingerprint:
        raise ModelError(
            "negatives.refresh: the encoder saved and reopened has another fingerprint, so other "
            "negatives would be mined than it finds itself; write a number of steps: then "
            "training mines itself"
        )
    examples = made_examples(_parts(config, file, name), opened, step)
    save_examples(Path(output), examples)
    return {"examples": len(examples)}


@functools.lru_cache(maxsize=1)
def _parts(config: str, file: str | None, name: str) -> Sequence[Part]:
    return parts_of(ordered_job(config, file, name))
