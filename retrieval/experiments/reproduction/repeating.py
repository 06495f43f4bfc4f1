"""Runs a published run here, compares the figures, and writes the line of its log."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.input.bounded import expanded
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.provenance import provenance, versions
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.beir import is_beir_folder
from sluice.retrieval.datasets.dataset import DATA_FOLDER, load_dataset
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.evaluation import evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reproduction.listed import PublishedRun

OUTPUT = Path("runs/published")  # a folder in it for each run


@dataclass(frozen=True, slots=True)
class Repetition:
    """Published figures beside those of here; ``log`` is the line to paste."""

    run: PublishedRun
    table: Table
    log: str
    held: bool
    output: Path


def repeat(
    run: PublishedRun,
    *,
    dataset: str | None = None,
    output: str | Path | None = None,
    tolerance: float | None = None,
) -> Repetition:
    """Index, search and evaluate as the run says, and compare with what its source publishes.

    ``dataset`` is where the collection lies: a folder or a name as in ``sluice evaluate``, by
    default the folder of its name, here or below ``$SLUICE_DATA``. ``output`` defaults to
    ``runs/published/NAME``, where a killed repetition continues. A figure holds if it differs by at
    most ``tolerance``, by default the run's own. Raises ``DataError`` for a collection that is not
    there, before any work.
    """
    within = run.within if tolerance is None else tolerance
    if not is_number(within) or within < 0:
        raise ConfigError(f"--tolerance {within}: expected a number of 0 or more, as 0.005")
    folder = OUTPUT / run.name if output is None else Path(output)
    place = _place(run) if dataset is None else dataset
    load_dataset(place, "test")
    values = {**run.config, "dataset": place, "output": str(folder)}
    evaluation = evaluate_experiment(Experiment(checked(values, ExperimentConfig)))
    scores = evaluation.scores[run.system]
    found = {measure: float(scores.mean[measure]) for measure in run.figures}
    table = _table(run, found, within)
    held = all(row["result"] == "holds" for row in table.rows.values())
    return Repetition(run, table, _log(run, found, within, held=held), held, folder)


def listing(runs: Iterable[PublishedRun]) -> Table:
    """Return a table of the runs: their figures as published, and whether they held here."""
    listed = list(runs)
    measures = dict.fromkeys(measure for run in listed for measure in run.figures)
    table = Table(columns={**dict.fromkeys(measures, ".4f"), "within": "g", "repeated": ""})
    for run in listed:
        table.rows[run.name] = {
            **{measure: run.figures.get(measure) for measure in measures},
            "within": run.within, "repeated": "held" if run.repeated else "not run",
        }  # fmt: skip
    sources = dict.fromkeys(f"{run.system}: {run.of}. Published: {run.source}." for run in listed)
    table.caption = "\n".join([*sources, "repeated: whether this project has run it, and it held."])
    return table


def _place(run: PublishedRun) -> str:
    """Return the collection's folder; an ir_datasets id of its name may be another collection."""
    data = os.environ.get(DATA_FOLDER)
    folders = [Path(run.dataset), *([expanded(data) / run.dataset] if data else [])]
    found = next((folder for folder in folders if is_beir_folder(folder)), None)
    if found is None:
        under = f"under ${DATA_FOLDER} ({data or 'not set'})"
        raise DataError(
            f"{run.name}: no folder {run.dataset} in BEIR layout in {Path.cwd()} or {under}; name "
            "it with --dataset FOLDER; with a network, --dataset beir/NAME downloads one of BEIR"
        )
    return str(found)


def _table(run: PublishedRun, found: dict[str, float], within: float) -> Table:
    numbers = {"published": ".4f", "here": ".4f", "difference": "+.4f", "within": "g"}
    table = Table(columns={**numbers, "result": ""})
    for measure, published in run.figures.items():
        difference = found[measure] - published
        table.rows[measure] = {
            "published": published, "here": found[measure], "difference": difference,
            "within": within, "result": "holds" if abs(difference) <= within else "off",
        }  # fmt: skip
    table.caption = f"{run.name}: {run.of}. Published: {run.source}. Allowed because {run.why}."
    return table


def _log(run: PublishedRun, found: dict[str, float], within: float, *, held: bool) -> str:
    facts: dict[str, Any] = provenance({})
    figures = ", ".join(
        f"{measure} {found[measure]:.4f} ({published:.4f} published)"
        for measure, published in run.figures.items()
    )
    commit = f", commit {facts['git_commit'][:8]}" if facts["git_commit"] else ""
    return (
        f"- {facts['written'][:10]}, `{run.name}`: {figures}, "
        f"{'holds' if held else 'off'} within {within:g}; Sluice {versions().get('sluice-ir', '')}"
        f"{commit}, Python {facts['machine']['python']}, {facts['machine']['platform']}"
    )
