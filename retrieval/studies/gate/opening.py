"""Opens one side of a gate: a folder, a run, a recorded file; or runs an experiment for it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.sections import ExperimentConfig, config_of, load_config
from sluice.retrieval.config.trust import named_in
from sluice.retrieval.config.yaml_file import SUFFIXES, recipe_or_file
from sluice.retrieval.datasets.dataset import judgements
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.experiments.evaluation import evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.folder import SETTINGS
from sluice.retrieval.jobs import run as run_experiment
from sluice.retrieval.runs.run import Run
from sluice.retrieval.studies.gate.record import SUFFIX, open_record
from sluice.retrieval.studies.gate.system import Facts, System, open_folder

AGAIN: Final = "gated"  # in a baseline's folder


def system_of(
    source: Any,
    qrels: Any = None,
    system: str | None = None,
    overrides: Sequence[str] = (),
    allow: Collection[str] = (),
    *,
    beside: Any = None,
) -> System:
    """Open one side of a gate; ``system`` chooses among several.

    ``overrides`` are changes of an experiment's settings; ``ConfigError`` where none is run, or
    where its output is ``beside``, the baseline.
    """
    runs = not is_run(source) and recipe_or_file(source).suffix in SUFFIXES
    if overrides and not runs:
        raise ConfigError(
            f"{overrides[0]}: changes the settings of an experiment, and {source} is none that is "
            "run; leave it out"
        )
    if is_run(source):
        run = Run.load(source) if isinstance(source, str | Path) else source
        run = run if isinstance(run, Run) else Run(run)
        where = str(source) if isinstance(source, str | Path) else run.name
        if (truth := given_judgements(qrels)) is None:
            raise ConfigError(f"{where}: a run needs judgements; give them with --qrels")
        return System(where, Facts(), run=run, qrels=truth)
    if (path := Path(source)).is_dir():
        return open_folder(path, system, allow)
    if path.suffix == SUFFIX:
        return open_record(path)
    if runs:
        if isinstance(beside, str | Path):
            refuse_same(config_of(source, ExperimentConfig, overrides)[0], Path(beside))
        return _opened(run_experiment(source, overrides)[1], system)
    raise DataError(
        f"{source}: no such file or folder; expected an output folder, a run, a recorded baseline "
        "or the YAML file of an experiment"
    )


def run_again(
    folder: Path, system: str | None, overrides: Sequence[str], allow: Collection[str]
) -> System:
    """Run the experiment of an output folder once more, nothing reused, and open its results.

    They are in ``folder/gated``, which is written anew, unless an override names an ``output``.
    """
    config = load_config(folder / SETTINGS, ExperimentConfig, overrides)
    if not any(each.startswith("output=") for each in overrides):
        config = config.model_copy(update={"output": str(folder / AGAIN)})
    refuse_same(config, folder)
    experiment = Experiment(config, file=folder / SETTINGS, allow=allow)
    if (folder / AGAIN).exists() and experiment.output == folder / AGAIN:
        shutil.rmtree(folder / AGAIN)
    evaluate_experiment(experiment)
    return _opened(experiment, system, allow)


def refuse_same(config: ExperimentConfig, folder: Path) -> None:
    """Raise ``ConfigError`` where an experiment would reuse the parts of its baseline."""
    if Path(config.output).resolve() == folder.resolve():
        raise ConfigError(
            f"output: {config.output} is the baseline, whose parts would be reused; choose another "
            "with output=FOLDER"
        )


def _opened(
    experiment: Experiment, system: str | None, allow: Collection[str] | None = None
) -> System:
    """Open what an experiment has evaluated, with its own stages, which are loaded already."""
    words = named_in(experiment.config) if allow is None else allow
    side = open_folder(experiment.output, system, words)
    return replace(side, stage=partial(experiment.stage, side.facts.system))


def is_run(source: Any) -> bool:
    """Whether one side is a run, or the file of one."""
    if not isinstance(source, str | Path):
        return True
    return Path(source).is_file() and Path(source).suffix not in (SUFFIX, *SUFFIXES)


def given_judgements(qrels: Any) -> Qrels | None:
    """Return judgements, read where a file or a dataset is named."""
    return judgements(str(qrels)) if isinstance(qrels, str | Path) else qrels
