"""Evaluates pipelines on several datasets, and tabulates them; BEIR's datasets by name."""

from __future__ import annotations

import gc
import json
import logging
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import write_json, write_text
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.output_names import expanded_output, folder_name
from sluice.retrieval.config.sections import ExperimentConfig, checked, find_own_modules, named_file
from sluice.retrieval.config.trust import named_in
from sluice.retrieval.datasets.nano import collections_of
from sluice.retrieval.evaluation.comparison import SignificanceTest, aligned
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.table import Comparison, Table, mark_significant
from sluice.retrieval.execution.executor import end_planning
from sluice.retrieval.experiments.evaluation import evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.folder import (
    SUITE as DATASETS,
    refuse_other_dataset,
    remove_other_dataset,
)
from sluice.retrieval.experiments.output.mteb_files import write_mteb
from sluice.retrieval.experiments.suites.average import AVERAGE, add_averages

log = logging.getLogger("sluice")

CQADUPSTACK_MEAN = "cqadupstack"
BEIR, SUITE = "beir:", "suite:"  # begin the names of several datasets


@dataclass(slots=True)
class Suite:
    """The results of a suite: tables by measure, and the datasets that failed, with the reason.

    ``named`` is what the config names that is not built in: ``allow`` for the folders made by it.
    """

    output: Path
    report: bool = True
    named: Collection[str] = ()
    tables: dict[str, Table] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return {
            "datasets": list(self.results),
            "failed": self.failed,
            "tables": {measure: table.to_dict() for measure, table in self.tables.items()},
            "results": self.results,
        }

    @property
    def shown(self) -> dict[str, Table]:
        """The tables as people read them: a row for each dataset where these are the more."""
        return {
            measure: table.turned("collection") if len(self.results) > len(table.rows) else table
            for measure, table in self.tables.items()
        }

    def __str__(self) -> str:
        blocks = [f"{measure}\n{table}" for measure, table in self.shown.items()]
        blocks += [f"failed: {name}: {why}" for name, why in self.failed.items()]
        return "\n\n".join(blocks)


def is_suite(dataset: Any) -> bool:
    """Return whether a config's ``dataset`` names several: a list, ``beir:*`` or ``suite:NAME``."""
    return isinstance(dataset, list) or str(dataset).startswith((BEIR, SUITE))


def evaluate_suite(
    values: Mapping[str, Any], *, file: str | Path | None = None, rebuild: bool = False
) -> Suite:
    """Evaluate the pipelines of a config on each of its datasets, one after another.

    Each is an experiment of its own in ``<output>/datasets/NAME``, whose finished parts are reused.
    A dataset that fails is reported and the others are evaluated; when all fail it is a
    ``DataError``. P-values are corrected over systems and datasets together, measure by measure.
    ``rebuild`` is as for ``sluice.run``.
    """
    find_own_modules(values, None if file is None else Path(file))
    experiments = _experiments(values, file, rebuild)
    config = next(iter(experiments.values())).config
    section = config.evaluate
    suite = Suite(_output(values), section.report, named_in(config))
    scores: dict[str, dict[str, Scores]] = {}
    failed = _by_tasks(experiments, values)
    for name in list(experiments):
        log.info("dataset %s", name)
        try:
            experiment = experiments.pop(name)
            if name in failed:
                raise DataError(failed[name])
            scores[name], suite.results[name] = _evaluated(experiment)
        except Exception as error:  # whatever it is, the other datasets can be evaluated
            why = " ".join(f"{error}".split()) or type(error).__name__
            suite.failed[name] = textwrap.shorten(why, 400, placeholder=" ...")
            log.error("%s: %s; continuing with the other datasets", name, suite.failed[name])
            log.debug("%s", name, exc_info=True)
        gc.collect()  # models, indexes and documents of the dataset
    if not scores:
        raise DataError("no dataset could be evaluated; the reasons are above")
    for measure in next(iter(next(iter(scores.values())).values())).mean:
        suite.tables[measure] = _table(
            measure, scores, section.baseline, section.testing, suite.failed
        )
    _write(suite)
    return suite


def _by_tasks(experiments: Mapping[str, Experiment], values: Mapping[str, Any]) -> dict[str, str]:
    """Let the executor's workers evaluate the datasets; return those that failed, and why.

    Their runs are found and reused after. In this process nothing is done before.
    """
    executor = next(iter(experiments.values())).executor
    if not executor.remote:
        end_planning("evaluate")
        return {}
    from sluice.retrieval.experiments.suites.training_jobs import evaluate_by_tasks

    configs = {
        name: {
            **values,
            "dataset": each.config.dataset,
            "evaluate": {**values.get("evaluate", {}), "split": each.config.evaluate.split},
        }
        for name, each in experiments.items()
    }
    return evaluate_by_tasks(experiments, configs, executor)


def _evaluated(experiment: Experiment) -> tuple[dict[str, Scores], dict[str, Any]]:
    evaluation = evaluate_experiment(experiment)
    return evaluation.scores, evaluation.to_dict()


def _output(values: Mapping[str, Any]) -> Path:
    output = values.get("output", ExperimentConfig.model_fields["output"].default)
    if not isinstance(output, str) or not output:
        raise ConfigError(f"output: {output!r}; expected a folder")
    return Path(expanded_output(output, values["dataset"]))


def _experiments(
    values: Mapping[str, Any], file: str | Path | None, rebuild: bool
) -> dict[str, Experiment]:
    """Return one experiment for each dataset; faults of the config are found before any work."""
    datasets = values["dataset"]
    section = values.get("evaluate", {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"evaluate: {section!r}; expected a section of keys and values")
    with named_file(file):
        output = _output(values)
        expanded = [
            each for entry in (datasets if isinstance(datasets, list) else [datasets])
            for each in beir_datasets(entry)
        ]  # fmt: skip
        if not expanded:
            raise ConfigError("dataset: an empty list; expected names, or beir:* for all of BEIR")
        named = datasets if isinstance(datasets, list) else [datasets]
        if not rebuild:
            refuse_other_dataset(output, named)
        experiments: dict[str, Experiment] = {}
        for entry in expanded:
            name = _slug(entry, experiments)
            evaluated = {**section, **entry.pop("evaluate", {})}
            config = {
                **values, **entry, "evaluate": evaluated,
                "output": str(output / DATASETS / name),
            }  # fmt: skip
            experiments[name] = Experiment(
                checked(config, ExperimentConfig), file=file, rebuild=rebuild
            )
            if not experiments[name].systems:
                raise ConfigError("nothing to evaluate; add retrievers, and pipelines made of them")
        if rebuild:
            remove_other_dataset(output, named)
        return experiments


def _slug(entry: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    """Return a dataset's folder: its name without ``beir/`` and what a file name cannot hold."""
    dataset = entry["dataset"]
    if isinstance(dataset, Mapping):
        known = dataset.get("name") or Path(str(dataset.get("corpus") or "")).stem
        if not known:
            raise ConfigError(f"dataset: {json.dumps(dataset)}: expected a name, or a corpus")
        parts = (known, dataset.get("split"))
        name = "-".join(str(part) for part in parts if part)
    else:
        name = str(dataset)
    short = Path(name).name if Path(name).is_absolute() else name.removeprefix("beir/")
    slug = folder_name(short)
    if slug in (AVERAGE, CQADUPSTACK_MEAN):
        raise ConfigError(
            f"dataset: {slug!r} is a column of the table; give the folder another name"
        )
    if slug in taken:
        raise ConfigError(
            f"dataset: {json.dumps(dataset)} is listed twice, or shares the name {slug!r} with "
            "another"
        )
    return slug


def _table(
    measure: str,
    found: Mapping[str, Mapping[str, Scores]],
    baseline: str | None,
    testing: SignificanceTest,
    failed: Mapping[str, str],
) -> Table:
    """Return one measure's table: systems by datasets, and the average of all of them."""
    systems = list(next(iter(found.values())))
    base = systems[0] if baseline is None else baseline
    others = [system for system in systems if system != base]
    family: list[Comparison] = []
    for name, scores in found.items():
        values = {system: aligned(scores[base], scores[system], measure) for system in systems}
        tested = (
            testing.compared(system, base, measure, values[system], values[base])
            for system in others
        )
        family += [replace(each, dataset=name) for each in tested]
    means = {name: {s: e[s].mean[measure] for s in systems} for name, e in found.items()}
    columns = _with_cqadupstack(means)
    table = Table(rows={system: {} for system in systems})
    for name, by_system in columns.items():
        table.add_column(name, dict(by_system), ".4f")
    parts = [name for name in columns if name in CQADUPSTACK]
    datasets = [columns[name] for name in columns if name not in parts]
    table.comparisons = testing.corrected(family)
    if len(datasets) > 1:
        weights = {name: 1 / len(datasets) for name in columns if name not in parts}
        if share := weights.pop(CQADUPSTACK_MEAN, 0.0) / len(CQADUPSTACK):
            weights |= dict.fromkeys(CQADUPSTACK, share)
        every = {
            system: {n: aligned(found[n][base], found[n][system], measure) for n in weights}
            for system in systems
        }
        add_averages(table, every, weights, base, measure, testing)
    mark_significant(table)
    caption = []
    if others:
        over = f"{plural(len(others), 'system')} on {plural(len(found), 'dataset')}"
        caption.append(f"{testing.caption(base, over)}.")
    if len(datasets) > 1:
        caption.append(
            f"The average is over {plural(len(datasets), 'dataset')}; ± is half its interval at "
            f"{1 - testing.alpha:.0%} over their queries, its test a t-test by dataset."
        )
    if parts:
        caption.append(f"It leaves out CQADupStack, of which {len(parts)} of 12 parts are here.")
    if failed:
        caption.append(f"Without {', '.join(failed)}, which failed.")
    table.caption = " ".join(caption)
    return table


def _with_cqadupstack(means: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Replace CQADupStack's twelve parts by their mean, if all of them are there."""
    parts = [name for name in means if name in CQADUPSTACK]
    if len(parts) < len(CQADUPSTACK):
        return dict(means)
    merged: dict[str, Mapping[str, float]] = {}
    for name, values in means.items():
        if name not in CQADUPSTACK:
            merged[name] = values
        elif CQADUPSTACK_MEAN not in merged:
            merged[CQADUPSTACK_MEAN] = {
                system: sum(means[part][system] for part in parts) / len(parts) for system in values
            }
    return merged


def _write(suite: Suite) -> None:
    suite.output.mkdir(parents=True, exist_ok=True)
    write_json(suite.output / "results.json", suite.to_dict())
    for each in suite.results.values():
        write_mteb(suite.output, each)
    lines = [f"# {suite.output.name}", ""]
    for measure, table in suite.shown.items():
        lines += [f"## {measure}", "", table.to_markdown().rstrip(), ""]
    lines += [f"- failed: {name}: {why}" for name, why in suite.failed.items()]
    lines += ["", "Costs and tests of each dataset: its own report.md.", ""]
    lines += [f"- [{name}]({DATASETS}/{name}/report.md)" for name in suite.results]
    write_text(suite.output / "report.md", "\n".join(lines) + "\n")
    write_text(suite.output / "table.csv", _csv(suite.tables))
    tables: Sequence[str] = [f"% {m}\n{table.to_latex()}" for m, table in suite.tables.items()]
    write_text(suite.output / "table.tex", "\n".join(tables))


def _csv(tables: Mapping[str, Table]) -> str:
    """Return all measures in one table, a column for each measure and dataset."""
    combined = Table(rows={system: {} for system in next(iter(tables.values())).rows})
    for measure, table in tables.items():
        for column in table.columns:
            cells = {system: row[column] for system, row in table.rows.items()}
            combined.add_column(f"{column} {measure}", cells)
    return combined.to_csv()


CQADUPSTACK = tuple(
    f"cqadupstack-{part}"
    for part in (
        "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats",
        "tex", "unix", "webmasters", "wordpress",
    )
)  # fmt: skip
IDS = {
    "trec-covid": "beir/trec-covid", "nfcorpus": "beir/nfcorpus", "nq": "beir/nq",
    "hotpotqa": "beir/hotpotqa", "fiqa": "beir/fiqa", "arguana": "beir/arguana",
    "webis-touche2020": "beir/webis-touche2020/v2",
    **{name: f"beir/{name.replace('-', '/', 1)}" for name in CQADUPSTACK},
    "quora": "beir/quora", "dbpedia-entity": "beir/dbpedia-entity", "scidocs": "beir/scidocs",
    "fever": "beir/fever", "climate-fever": "beir/climate-fever", "scifact": "beir/scifact",
}  # fmt: skip
MSMARCO = "msmarco"  # evaluated on dev


def beir_datasets(entry: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the datasets that an entry of a list means, each as keys of a config.

    ``beir:*`` is every public one but MS MARCO, ``beir:NAME`` one of them, ``beir:cqadupstack`` its
    twelve parts; a folder of that name under ``$SLUICE_DATA`` comes before a download. Any other
    name is that dataset. ``suite:NAME`` is every collection of a folder, see ``collections_of``.
    """
    if isinstance(entry, str) and entry.startswith(SUITE):
        return [{"dataset": each} for each in collections_of(entry.removeprefix(SUITE))]
    if not (isinstance(entry, str) and entry.startswith(BEIR)):
        return [{"dataset": dict(entry) if isinstance(entry, Mapping) else entry}]
    wanted = entry.removeprefix(BEIR)
    names = {"*": tuple(IDS), "cqadupstack": CQADUPSTACK}.get(wanted, (wanted,))
    known = [*IDS, MSMARCO, "cqadupstack"]
    datasets = []
    for name in names:
        if name not in IDS and name != MSMARCO:
            raise ConfigError(
                f"dataset: {entry!r}: BEIR has no {name!r}; known: {', '.join(known)}, * for all "
                f"but {MSMARCO}{suggest(name, known)}"
            )
        local = _local(name)
        keys: dict[str, Any] = {"dataset": local or IDS.get(name, f"beir/{name}")}
        if name == MSMARCO:
            keys["evaluate"] = {"split": "dev"}
        datasets.append(keys)
    return datasets


def _local(name: str) -> str | None:
    """Return the name of a folder under ``$SLUICE_DATA`` that holds this dataset."""
    data = os.environ.get("SLUICE_DATA")
    return name if data and (expanded(data) / name / "corpus.jsonl").exists() else None
