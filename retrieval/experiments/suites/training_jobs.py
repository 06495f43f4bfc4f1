"""Makes the jobs of training runs, and evaluates the datasets of a suite, in whatever process."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of, write_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, ModelError
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
from sluice.retrieval.execution.executor import (
    SETTLING,
    Executor,
    Facts,
    Plan,
    Task,
    arrived,
    run_plan,
)
from sluice.retrieval.execution.group import Group
from sluice.retrieval.experiments.evaluation import evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.experiments.training.job import (
    TrainingJob,
    made_before,
    order_of,
    parts_of,
    train_model,
)
from sluice.retrieval.experiments.training.parts import Part, TrainingSet, made_examples
from sluice.retrieval.experiments.training.tested_queries import tested_datasets

log = logging.getLogger("sluice")

CONFIG = "task.json"  # of a dataset's folder: what its worker evaluates


def evaluate_by_tasks(
    experiments: Mapping[str, Experiment],
    configs: Mapping[str, Mapping[str, Any]],
    executor: Executor,
) -> dict[str, str]:
    """Evaluate the datasets, each in one task; return why those failed that did, by name.

    ``configs`` are the keys and values of each, as they were read. What was evaluated before is
    reused, within the task.
    """
    tasks = [_task(name, experiments[name], configs[name]) for name in experiments]
    timed = any(each.config.evaluate.latency_queries for each in experiments.values())
    if timed and len(tasks) > 1:
        log.warning(
            "evaluate: latencies are measured while other datasets are evaluated beside; for "
            "figures to compare, set evaluate.latency_queries: 0 here, and measure them with "
            "executor: local"
        )
    facts = run_plan(Plan("evaluate", tasks, "datasets"), executor)
    return {name: each["failed"] for name, each in facts.items() if "failed" in each}


def _task(name: str, experiment: Experiment, values: Mapping[str, Any]) -> Task:
    folder = experiment.output.absolute()
    file = folder / CONFIG
    own = None if experiment.file is None else str(Path(experiment.file).absolute())
    try:
        text = json.loads(json.dumps({k: v for k, v in values.items() if k != "executor"}))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"executor: the config cannot be handed to other processes ({error}); expected texts, "
            "numbers and lists, as in YAML, or executor: local"
        ) from None

    def prepare() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, {**text, "output": str(folder)})

    def here(advance: Advance) -> Facts:
        raise AssertionError("a suite is evaluated without tasks in this process")

    args = {"config": str(file), "file": own, "rebuild": experiment.rebuild}
    return Task(
        "evaluate", name, args, folder, here,
        prepare=prepare, finish=lambda: file.unlink(missing_ok=True), kept=False,
        alone=True,
    )  # fmt: skip


def evaluate_task(*, config: str, file: str | None, rebuild: bool) -> Facts:
    """Evaluate the experiment of a file; a fault of its own is a fact, the others continue."""
    values = json.loads(Path(config).read_text(encoding="utf-8"))
    try:
        find_own_modules(values, None if file is None else Path(file))
        experiment = Experiment(checked(values, ExperimentConfig), file=file, rebuild=rebuild)
        evaluate_experiment(experiment)
    except Exception as error:  # whatever it is, the other datasets can be evaluated
        log.debug("%s", config, exc_info=True)
        return {"failed": f"{error}" or type(error).__name__}
    return {}


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
