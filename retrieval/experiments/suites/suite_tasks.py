"""Evaluates the datasets of a suite as tasks: one for each, in whatever process."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.progress import Advance
from sluice.retrieval.config.sections import ExperimentConfig, checked, find_own_modules
from sluice.retrieval.execution.executor import Executor, Facts, Task
from sluice.retrieval.execution.plan import Plan, run_plan
from sluice.retrieval.experiments.evaluation import evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment

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
