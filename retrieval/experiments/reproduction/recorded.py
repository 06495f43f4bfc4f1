"""Runs an evaluation again from the config in its results, and compares the figures."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.provenance import provenance, versions
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.beir import is_beir_folder
from sluice.retrieval.datasets.dataset import DATA_FOLDER, load_dataset
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.evaluation import Evaluation, contents_of, evaluate_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.folder import SUITE as DATASETS
from sluice.retrieval.experiments.output.results import RESULTS, read_results
from sluice.retrieval.experiments.reproduction.listed import PublishedRun
from sluice.retrieval.pipelines.expression import texts_in

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


log = logging.getLogger("sluice")

FOLDER = "reproduced"
FINISHED = "reproduction.json"  # in the output, written last: a killed reproduction continues
TOLERANCE = 5e-5  # the same four decimals, up to rounding


@dataclass(slots=True)
class Reproduction:
    """Recorded and repeated figures: ``table`` has a row for each system and measure.

    ``changed`` lists the differences around them: packages, code, machine, trained models.
    """

    output: Path
    table: Table = field(default_factory=Table)
    changed: list[str] = field(default_factory=list)
    same: bool = True


def reproduce(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    tolerance: float = TOLERANCE,
    allow: Collection[str] = (),
) -> Reproduction:
    """Train, index and evaluate the experiment of ``folder`` again, in ``output``, and compare.

    ``folder`` is the output of ``sluice run`` or ``evaluate``, of one dataset or a suite;
    ``output`` is ``folder/reproduced`` unless given. Figures are the same when they differ by at
    most ``tolerance``. ``allow`` lists what the recorded config may do beside reading: name classes
    of your own, reach servers, see ``sluice.encoders.foundation.trust``. Raises ``DataError`` that
    names everything that is missing, before any work.
    """
    folder = Path(folder)
    target = Path(output) if output is not None else folder / FOLDER
    if target.resolve() == folder.resolve():
        raise ConfigError(f"--output {output}: is the folder to reproduce; choose another")
    if (target / FINISHED).exists():
        raise ConfigError(
            f"{target}: holds a reproduction already; delete it, or choose another with --output"
        )
    result = Reproduction(target)
    result.table.columns = {"recorded": ".4f", "now": ".4f", "difference": "+.4f"}
    refuse_links(folder, allow)
    experiments = list(_experiments(folder, target, allow))
    for prefix, recorded, experiment in experiments:
        log.info("reproduce %s", experiment.output)
        _compare(result, prefix, recorded, evaluate_experiment(experiment), tolerance)
    result.table.caption = (
        "All figures are the same" if result.same else "Marked figures are not the same"
    ) + f", to within {tolerance:g}."
    write_json(target / FINISHED, {**result.table.to_dict(), "changed": result.changed})
    return result


def _experiments(
    folder: Path, target: Path, allow: Collection[str]
) -> Iterator[tuple[str, Mapping[str, Any], Experiment]]:
    """Yield each dataset's prefix, recorded results, and the experiment that repeats them."""
    results = read_results(folder, allow)
    names = results.get(DATASETS)
    parts = [("", folder, results)] if names is None else [
        (f"{name}: ", folder / DATASETS / name, read_results(folder / DATASETS / name, allow))
        for name in names
    ]  # fmt: skip
    for prefix, place, recorded in parts:
        config = _located(_config(place, recorded), recorded)
        moved = target if names is None else target / DATASETS / place.name
        again = Experiment(
            config.model_copy(update={"output": str(moved)}), file=place / RESULTS, allow=allow
        )
        missing = list(_missing(again, recorded))
        if missing:
            raise DataError(f"{place}: cannot be reproduced: {'; '.join(missing)}")
        yield prefix, recorded, again


def _config(folder: Path, recorded: Mapping[str, Any]) -> ExperimentConfig:
    config = (recorded.get("origin") or {}).get("config")
    if not isinstance(config, Mapping):
        raise DataError(f"{folder / RESULTS}: cannot be reproduced: it holds no origin.config")
    try:
        return checked(config, ExperimentConfig)
    except ConfigError as error:
        raise DataError(
            f"{folder / RESULTS}: origin.config is not valid ({error}); another version wrote it"
        ) from error


def _located(config: ExperimentConfig, recorded: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config with the dataset's recorded folder, if that is there.

    Otherwise its name has to mean a local folder too: a ``DataError`` names the recorded one.
    """
    place = recorded.get("place")
    dataset = config.dataset
    settings = dict(dataset) if isinstance(dataset, Mapping) else {"name": dataset}
    name = settings.get("name")
    if not (isinstance(place, str) and isinstance(name, str)):
        return config
    if Path(place).is_dir():
        return config.model_copy(update={"dataset": {**settings, "name": place}})
    data = os.environ.get(DATA_FOLDER)
    folders = [expanded(name), *([expanded(data) / name] if data else [])]
    if not any(folder.is_dir() for folder in folders):
        raise DataError(
            f"dataset {name!r}: recorded from {place}, which is not reachable now; put the folder "
            f"back, or set ${DATA_FOLDER} to a folder that holds it"
        )
    return config


def _missing(experiment: Experiment, recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the evaluation was made from that is missing or has changed."""
    config = experiment.config
    try:
        dataset = experiment.dataset(config.evaluate.split)
        now = contents_of(dataset)
        for part, known in (recorded.get("contents") or {}).items():
            if now.get(part) != known:
                yield f"the {part} of {dataset.name} ({dataset.split}) have changed"
    except SluiceError as error:
        yield f"dataset: {error}"
    for system in recorded.get("systems", []):
        for name, changes in (system.get("changes") or {}).items():
            yield f"{system['name']}: documents of {name} were changed after its build ({changes})"
    for where, text in _paths(config):
        if not expanded(text).exists():
            yield f"{where}: {text} not found (seen from {Path.cwd()})"


def _paths(config: ExperimentConfig) -> Iterator[tuple[str, str]]:
    """Yield the places of a config that name a file or folder, and what they name."""
    for kind in ("train", "retrievers", "rerankers"):
        for name, section in getattr(config, kind).items():
            plain = section if isinstance(section, Mapping) else section.model_dump()
            for key, value in _texts(plain, f"{kind}.{name}"):
                if key.endswith((".model", ".path", ".file", ".retriever", ".teacher", ".scores")):
                    known = {*config.train, *config.retrievers, *config.pipelines}
                    if value not in known and _is_path(value):
                        yield key, value
    for name, expression in config.pipelines.items():
        for text in texts_in(expression, where=f"pipelines.{name}"):
            if _is_path(text):
                yield f"pipelines.{name}", text


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, where)
    elif isinstance(value, str):
        yield where, value


def _is_path(text: str) -> bool:
    """Return whether a text can only be a path: a hub's ``owner/name`` has one slash, no dot."""
    return bool(re.match(r"(/|~|\.{1,2}/)", text)) or text.count("/") > 1


def _compare(
    result: Reproduction,
    prefix: str,
    recorded: Mapping[str, Any],
    evaluation: Evaluation,
    tolerance: float,
) -> None:
    now = evaluation.to_dict()
    systems = {system["name"]: system for system in now["systems"]}
    for before in recorded.get("systems", []):
        name = before["name"]
        after = systems.get(name, {"measures": {}, "fingerprints": {}})
        for measure, value in before["measures"].items():
            again = after["measures"].get(measure)
            row = f"{prefix}{name}, {measure}"
            difference = None if again is None else again - value
            result.table.rows[row] = {"recorded": value, "now": again, "difference": difference}
            if difference is None or not abs(difference) <= tolerance:
                result.same = False
                result.table.marks[row, "difference"] = "*"
        for retriever, known in before.get("fingerprints", {}).items():
            if after["fingerprints"].get(retriever) != known:
                result.changed.append(f"{prefix}the encoder of {retriever} has changed")
    origin = recorded["systems"][0].get("origin") or recorded.get("origin", {})
    fresh = provenance({})
    changes = [
        f"{package} {version} -> {fresh['packages'].get(package, 'not installed')}"
        for package, version in (origin.get("packages") or {}).items()
        if fresh["packages"].get(package) != version
    ]
    for what in ("git_commit", "machine"):
        if origin.get(what) != fresh[what]:
            changes.append(f"{what.replace('_', ' ')}: {origin.get(what)} -> {fresh[what]}")
    result.changed += [change for change in changes if change not in result.changed]
