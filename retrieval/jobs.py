"""The jobs from Python: run, train, index, mine, tune, fit a ranker; the CLI calls these."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.disk.files import writable
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.registry import kind_of
from sluice.encoders.table import KNOWN
from sluice.familiar import renamed
from sluice.retrieval.config.components import make_launcher
from sluice.retrieval.config.file_keys import corpus_contents
from sluice.retrieval.config.sections import (
    ConfigSource,
    ExperimentConfig,
    TrainConfig,
    TuneConfig,
    config_of,
    load_values,
    named_file,
)
from sluice.retrieval.config.yaml_file import recipe_or_file
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.execution.group import refuse_within
from sluice.retrieval.experiments.evaluation import check_output, evaluate_experiment, prepare
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import check_named
from sluice.retrieval.experiments.suites.training_jobs import launched, training_job
from sluice.retrieval.experiments.training.checks import check_shares, check_training
from sluice.retrieval.experiments.training.job import train_model
from sluice.retrieval.experiments.training.tested_queries import refuse_tested_queries
from sluice.retrieval.retrievers.candidate_lists import (
    RANDOM,
    Sources,
    named_sources,
    open_lists,
)
from sluice.retrieval.training_data.mining import (
    audit_negatives,
    mine_negatives,
    mining_of,
    random_lists,
    write_mined,
)
from sluice.retrieval.training_data.own_pairs import check_without_dataset
from sluice.retrieval.training_data.teachers.spec import check_teachers_exist
from sluice.training.losses import USUAL, USUAL_OF_PAIRS

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.experiments.suites.suite import Suite
    from sluice.retrieval.experiments.tuning.ranker_training import FoldReport, TrainedRanker
    from sluice.retrieval.experiments.tuning.tuner import Tuning
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.retrievers.corpus.encoding import EncodingEstimate
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.runs.run import Run
    from sluice.training import MiningReport
    from sluice.training.negatives.audit import MiningAudit

log = logging.getLogger("sluice")

SHORT = {  # settings of ``trainer`` that ``train(model, pairs)`` takes by shorter names
    "epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size",
    "lr": "learning_rate", "learning_rate": "learning_rate", "max_steps": "max_steps",
}  # fmt: skip
NOTHING = "nothing to evaluate; add retrievers, and pipelines made of them"


def run(
    config: ConfigSource, overrides: Sequence[str] = (), *, rebuild: bool = False
) -> tuple[Table, Experiment]:
    """Run an experiment and return its table; the rest is in its output folder.

    Parts of another dataset, and documents that were added since a build, are replaced only with
    ``rebuild``; without it that is a ``ConfigError``.
    """
    experiment = _experiment(config, overrides, rebuild)
    if not experiment.systems:
        with named_file(experiment.file):
            raise ConfigError(NOTHING)
    return evaluate_experiment(experiment).table, experiment


def suite(
    config: ConfigSource, overrides: Sequence[str] = (), *, rebuild: bool = False
) -> Suite | None:
    """Evaluate a config whose ``dataset`` names several, see ``evaluate_suite``; else None."""
    from sluice.retrieval.experiments.suites.suite import evaluate_suite, is_suite

    file = None if isinstance(config, Mapping) else recipe_or_file(config)
    values = dict(config) if isinstance(config, Mapping) else load_values(config, overrides)
    if not is_suite(values.get("dataset")):
        return None
    return evaluate_suite(values, file=file, rebuild=rebuild)


def tune(
    config: ConfigSource, overrides: Sequence[str] = (), *, rebuild: bool = False
) -> tuple[Table, Tuning]:
    """Find the best pipeline of an experiment's parts within a budget; see ``tune_experiment``.

    ``rebuild`` is as for ``run``.
    """
    from sluice.retrieval.experiments.tuning.experiment import tune_experiment

    settings, file = config_of(_with_rows_written(config), TuneConfig, overrides)
    with named_file(file):
        return tune_experiment(settings, Experiment(settings, file=file, rebuild=rebuild))


def ltr(
    config: ConfigSource, overrides: Sequence[str] = (), *, rebuild: bool = False
) -> TrainedRanker:
    """Train the ranker of an experiment's section ``ranker``; see ``train_ranker``.

    ``rebuild`` is as for ``run``.
    """
    from sluice.retrieval.experiments.tuning.ranker_training import train_ranker

    experiment = _experiment(config, overrides, rebuild)
    experiment.check_output(())  # retrievers are looked at when they are opened, the first thing
    experiment.make_room()
    with named_file(experiment.file):
        return train_ranker(experiment)


def ltr_folds(
    config: ConfigSource,
    overrides: Sequence[str] = (),
    *,
    folds: int = 5,
    rebuild: bool = False,
) -> FoldReport:
    """Cross-validate the section ``ranker`` without saving a ranker; see ``cross_validate``."""
    from sluice.retrieval.experiments.tuning.ranker_training import cross_validate

    experiment = _experiment(config, overrides, rebuild)
    experiment.check_output(())
    experiment.make_room()
    with named_file(experiment.file):
        return cross_validate(experiment, folds)


def index(
    config: ConfigSource,
    overrides: Sequence[str] = (),
    *,
    only: Sequence[str] | None = None,
    rebuild: bool = False,
) -> list[Retriever]:
    """Build the retrievers of an experiment (or those named) and return them.

    ``rebuild`` is as for ``run``.
    """
    experiment = _experiment(config, overrides, rebuild)
    names = _retrievers(experiment, config, only)
    experiment.check_output(names)
    with named_file(experiment.file):
        prepare(experiment, [f"retrievers.{name}" for name in names])
    experiment.write_settings(only)
    return [experiment.retriever(name) for name in names]


def estimate(
    config: ConfigSource, overrides: Sequence[str] = (), *, only: Sequence[str] | None = None
) -> dict[str, EncodingEstimate | None]:
    """Estimate, by retriever, what ``index`` would have to encode; index nothing.

    None is a retriever that needs no encoding, such as BM25. Missing models of the experiment's own
    are trained.
    """
    experiment = _experiment(config, overrides)
    return {name: experiment.estimate(name) for name in _retrievers(experiment, config, only)}


def planned(
    config: ConfigSource,
    overrides: Sequence[str] = (),
    *,
    only: Sequence[str] | None = None,
    suites: bool = False,
) -> list[str]:
    """Return what building the retrievers, or with ``suites`` a suite, will take, a line for each.

    The first open task of each is carried out and measured; what it wrote is kept, and the job
    itself continues from there. Missing models of the experiment's own are trained.
    """
    from sluice.retrieval.execution.executor import Planned, planning

    with planning():
        try:
            if suites:
                suite(config, overrides)  # None where there is one dataset
        except Planned as plan:
            return [str(plan)]
        experiment, lines = _experiment(config, overrides), []
        names = _retrievers(experiment, config, only)
        experiment.check_output(names)
        for name in names:
            if experiment.is_built(name):
                lines.append(f"{name}: built already")
                continue
            try:
                experiment.retriever(name)
            except Planned as plan:
                lines.append(f"{name}: {plan}")
    return lines


def _retrievers(
    experiment: Experiment, config: ConfigSource, only: Sequence[str] | None
) -> list[str]:
    known = experiment.config.retrievers
    names = list(only or known)
    if not names:
        with named_file(experiment.file):
            raise ConfigError("no retrievers to index; add a section retrievers")
    for name in names:
        if name not in known:
            file = f"{experiment.file}: " if experiment.file else ""
            raise ConfigError(
                f"{file}no retriever {name!r}; known: {', '.join(known)}{suggest(name, known)}"
            )
    return names


@renamed(config="model encoder", overrides="pairs examples train_dataset")
def train(config: Any, overrides: Any = (), loss: Any = None, **sections: Any) -> Path:
    """Train one model and return its folder, ``<output>/model``.

    ``train(model, pairs, loss="info_nce", output="runs/trained")`` trains a model, by name or as an
    object, on rows as below; ``sections`` are the other keys of a config (``trainer={...}``). A
    config, or its file, stands alone or with ``overrides``, texts ``key.path=value``.

    In a config from Python ``examples`` may be rows: a pandas or polars frame, an Arrow table, a
    Hugging Face dataset, or a list of (query, positive) and negatives. They are written to
    ``<output>/training/pairs.jsonl``.
    """
    if not isinstance(overrides, list | tuple) or not all(isinstance(o, str) for o in overrides):
        config, overrides = _of_pairs(config, overrides, loss, sections), ()
    elif loss is not None or sections:
        raise ConfigError("train: loss and other keys go with pairs: train(model, pairs, loss=...)")
    settings, file = config_of(_with_rows_written(config), TrainConfig, overrides)
    with named_file(file):
        if settings.launch is not None:
            refuse_within()
        check_train(settings)
        refuse_tested_queries({"": settings}, settings.dataset, None, settings.seed)
        job = training_job(settings, file)
        if settings.launch is None:
            return train_model(job)
        return launched(job, make_launcher(settings.launch))


def _of_pairs(model: Any, pairs: Any, loss: Any, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of ``train(model, pairs)``; a model object is saved beside the output."""
    named = {SHORT[key]: value for key, value in sections.items() if key in SHORT}
    rest = {key: value for key, value in sections.items() if key not in SHORT}
    trainer = {"trainer": {**rest.pop("trainer", {}), **named}} if named else {}
    config = {"output": "runs/trained", **rest, **trainer}
    folder = str(model)
    if not isinstance(model, str | Path):
        folder = f"{config['output']}-start"
        model.save_pretrained(folder)
    kind = kind_of(model_folder(folder))
    usual = USUAL_OF_PAIRS if KNOWN[kind].scores and KNOWN[kind].core else USUAL
    if loss is None or isinstance(loss, str):
        loss = {"type": loss} if loss else dict(usual)
    return {"encoder": {"type": kind, "model": folder}, "examples": pairs, "loss": loss, **config}


def check_train(settings: TrainConfig) -> None:
    """Raise ``ConfigError`` for a fault of a training run that can be known before any work."""
    check_output(Path(settings.output))
    if settings.launch is not None:
        make_launcher(settings.launch)
    dataset = settings.dataset
    if dataset is not None and settings.datasets is not None:
        raise ConfigError(
            "datasets: stands beside dataset, and training takes one of the two; put all of them "
            "under datasets"
        )
    check_training(settings, "", with_dataset=bool(dataset or settings.datasets))
    if dataset is None and settings.datasets is None:
        check_without_dataset(settings)
    check_named(settings)
    check_teachers_exist(settings.teacher, "teacher")
    check_teachers_exist((settings.negatives or {}).get("judge"), "negatives.judge")
    if isinstance(dataset, dict) and dataset.get("split", "train") != "train":
        raise ConfigError(
            f"dataset.split: {dataset['split']!r}: training on the test is refused: "
            "leave split out, and the train split is used"
        )


def mine(
    source: str | Sequence[str],
    dataset: str,
    output: Path,
    spec: Mapping[str, Any],
    *,
    split: str = "train",
    seed: int = 13,
    allow: Collection[str] = (),
    executor: Executor = LOCAL,
) -> MiningReport:
    """Mine negatives into JSON lines, with report and provenance files; return the report.

    ``source`` is a retriever folder, a run file or ``random``, or several, each mined on its own.
    ``allow`` lists what the folders may do beside reading. ``executor`` searches slices of the
    queries and asks the judge; the same call after a kill continues from what is complete.
    """
    check_shares({**spec, "retriever": _paths(source)}, mining_of(spec, "negatives"), "mine")
    writable(output)  # a folder is refused before any work
    data = load_dataset(dataset, split)
    mined = mine_negatives(
        _sources(source, allow, data, spec, seed), data, spec, seed=seed,
        work=output.with_name(f"{output.name}.parts"), executor=executor,
        key="" if spec.get("judge") is None else corpus_contents(dataset),
    )  # fmt: skip
    write_mined(output, data, mined)
    return mined.report


def audit(
    source: str | Sequence[str],
    dataset: str,
    spec: Mapping[str, Any],
    *,
    share: float = 0.2,
    split: str = "train",
    seed: int = 13,
    allow: Collection[str] = (),
) -> MiningAudit:
    """Hide a share of the known positives and count which modes of mining reject them."""
    check_shares({**spec, "retriever": _paths(source)}, mining_of(spec, "negatives"), "mine")
    data = load_dataset(dataset, split)
    lists = _sources(source, allow, data, spec, seed)
    return audit_negatives(lists, data, spec, share=share, seed=seed)


def _paths(source: str | Sequence[str]) -> list[str]:
    return [source] if isinstance(source, str) else list(source)


def _sources(
    source: str | Sequence[str],
    allow: Collection[str],
    data: Dataset,
    spec: Mapping[str, Any],
    seed: int,
) -> Stage | Run:
    def opened(path: str) -> Stage | Run:
        if path == RANDOM and not Path(path).exists():
            return random_lists(data, mining_of(spec, "negatives"), seed)
        return open_lists(path, "mine", allow=allow)

    paths = _paths(source)
    if len(paths) == 1:
        return opened(paths[0])
    named_sources({"retriever": paths}, "mine")
    return Sources([(path, opened(path)) for path in paths])


def _with_rows_written(config: ConfigSource) -> ConfigSource:
    """Return a config whose training examples are files; rows in memory are written there."""
    if not isinstance(config, Mapping) or not isinstance(config.get("output", ""), (str, Path)):
        return config
    from sluice.retrieval.training_data.example_sources import with_rows_written

    folder = Path(config.get("output") or ExperimentConfig.model_fields["output"].default)
    values = with_rows_written(config, folder / "training", "examples")
    if isinstance(values.get("train"), Mapping):
        values["train"] = {
            name: with_rows_written(section, folder / "training" / name, f"train.{name}.examples")
            if isinstance(section, Mapping)
            else section
            for name, section in values["train"].items()
        }
    return values


def _experiment(
    config: ConfigSource, overrides: Sequence[str], rebuild: bool = False
) -> Experiment:
    settings, file = config_of(_with_rows_written(config), ExperimentConfig, overrides)
    return Experiment(settings, file=file, rebuild=rebuild)
