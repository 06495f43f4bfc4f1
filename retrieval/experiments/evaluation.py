"""Evaluates an experiment, says what to do next, and finds what would stop it before any work."""

from __future__ import annotations

import functools
import itertools
import json
import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of, write_json, write_text
from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.provenance import command_line, provenance
from sluice.encoders.model_files.locate import model_folder
from sluice.retrieval.config.names import Place
from sluice.retrieval.config.trust import named_in, refuse_unknown_model
from sluice.retrieval.datasets.beir import BeirFolder
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.evaluation.comparison import compare_scores, differences
from sluice.retrieval.evaluation.measures import depth_for, parse_measure
from sluice.retrieval.evaluation.scores import Judged, Qrels, Scores, evaluate
from sluice.retrieval.evaluation.table import Table, add_costs, escaped_markdown
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.folder import SETTINGS, made_parts, parts_table
from sluice.retrieval.experiments.output.mteb_files import write_mteb
from sluice.retrieval.experiments.reuse import PARTS, WITH_MODELS, models_in, section_names
from sluice.retrieval.experiments.system import SystemResult, sessions_note, system_result
from sluice.retrieval.experiments.unseen import unseen_judgements, unseen_note
from sluice.retrieval.retrievers.measurements import GatherRecall


def prepare(experiment: Experiment, nodes: Iterable[str] | None = None) -> None:
    """Raise a ``SluiceError`` if the output is a file or a model that is needed is not found.

    Dev queries that pipelines must not be fitted on are refused too.

    ``nodes`` are what will be made, such as ``retrievers.bm25``; by default all systems, of which
    one that has been evaluated needs no reranker. Models of what is there are not looked for; one
    that is only on the hub is downloaded now.
    """
    check_output(experiment.output)
    config = experiment.config
    wanted: set[str] = set()
    for node in nodes if nodes is not None else ():
        wanted.update(_lacking(experiment, node))
    if nodes is None or any(node.startswith("pipelines.") for node in wanted):
        experiment.fits.check()
    for name in experiment.systems if nodes is None else ():
        kind = "pipelines" if name in config.pipelines else "retrievers"
        evaluated = (experiment.output / "runs" / f"{name}.json").exists()
        below = _lacking(experiment, f"{kind}.{name}")
        wanted.update(n for n in below if not (evaluated and n.startswith("rerankers.")))
    for node in sorted(wanted):
        for each in _encoders(experiment, node):
            _find(f"{node}.{each.where}", each, experiment)


def check_output(output: Path) -> None:
    """Raise ``ConfigError`` if an output folder's place, or one above it, is a file or no path."""
    if "\0" in str(output):
        raise ConfigError(f"output: {str(output)!r:.200} has a character that no path may have")
    for place in (output, *output.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"output: {place} is a file; choose a folder with output=FOLDER")
            return


def _lacking(experiment: Experiment, node: str) -> Iterator[str]:
    """Yield a node and all that it is made from, but for what is there and what that is made of."""
    kind, _, name = node.partition(".")
    made = {"retrievers": experiment.is_built, "train": experiment.is_trained}
    if kind not in made or not made[kind](name):
        yield node
        for needed in experiment.needs.needs(node):
            yield from _lacking(experiment, needed)


def _encoders(experiment: Experiment, node: str) -> Iterator[Place]:
    """Yield the models of encoders, rerankers and teachers that a node is made of."""
    kind, _, name = node.partition(".")
    if kind == "pipelines":
        return
    section = getattr(experiment.config, kind)[name]
    for each in section_names(section):
        encodes = kind == "rerankers" or each.where.startswith("encoder.")
        if encodes and each.key == "model" and each.spec.get("type") in WITH_MODELS:
            yield each
    for each in models_in(section) if kind == "train" else ():
        if not each.where.startswith("encoder."):
            yield each


def _find(place: str, each: Place, experiment: Experiment) -> None:
    """Find the model of a component, and the device it asks for."""
    device = each.spec.get("device", "auto")
    parts = [getattr(experiment.config, kind) for kind in PARTS.get(each.role, ())]
    if each.role is not None and not any(each.value in part for part in parts):
        refuse_unknown_model(each.value, place, experiment.allow)
        try:
            model_folder(each.value)
        except SluiceError as error:
            raise ModelError(f"{place}: {error}") from error
    if isinstance(device, str) and device not in ("auto", "cpu"):
        from sluice.encoders.backends.backend import pick_device

        try:
            pick_device(device)
        except ConfigError as error:
            raise ConfigError(f"{place.removesuffix('.model')}.{error}") from error


LONGEST = 60  # characters of a query that is taken as the example
TRIED = 200  # queries among which a short one is looked for


class Step(NamedTuple):
    """A command and what it is for."""

    purpose: str
    command: str


def next_steps(experiment: Experiment, table: Table) -> list[Step]:
    """Return commands to try next, with the experiment's best system and one of its queries."""
    output, config = str(experiment.output), experiment.config
    best, query = best_system(table), _query(experiment)
    folder, settings = shlex.quote(output), shlex.quote(f"{output}/{SETTINGS}")
    words = [json.dumps(word, ensure_ascii=False) for word in (output, best, query)]
    allow = sorted(named_in(config, only_open=True))
    given = f", allow={json.dumps(allow, ensure_ascii=False)}" if allow else ""
    found = "load_pipeline({}, {}{}).search({}, k=3)".format(*words[:2], given, words[2])
    python = f"from sluice import load_pipeline; print({found})"
    asked = f"{folder} {shlex.quote(query)} --pipeline {best}"
    flags = "".join(f" --allow {shlex.quote(word)}" for word in allow)
    steps = [
        Step("search", f"sluice search {asked}{flags}"),
        Step("see why", f"sluice explain {asked} -k 3{flags}"),
        Step("from Python", f"python -c {shlex.quote(python)}"),
    ]
    others = [name for name in table.rows if name != best]
    dataset = _judged(config.dataset)
    if others and dataset is not None and config.evaluate.split == "test":
        base = config.evaluate.baseline or next(iter(table.rows))
        base = base if base != best else others[0]
        runs = " ".join(shlex.quote(f"{output}/runs/{n}.trec.gz") for n in (base, best))
        qrels = shlex.quote(dataset)
        steps.append(Step("compare two", f"sluice compare {runs} --qrels {qrels} -m AP,P@5"))
    measures = "evaluate.measures=" + shlex.quote("AP,R@1000")
    steps.append(Step("more measures", f"sluice evaluate {settings} {measures}"))
    return steps


def best_system(table: Table) -> str:
    """Return the name of the system with the highest first measure, the first of equal ones."""
    measure = next(iter(table.columns))
    return max(table.rows, key=lambda name: _number(table.rows[name].get(measure)))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("-inf")


def _query(experiment: Experiment) -> str:
    """Return a short query of the evaluated split."""
    queries = experiment.dataset(experiment.config.evaluate.split).queries
    texts = [" ".join(text.split()) for text in itertools.islice(queries.values(), TRIED)]
    short = [text for text in texts if 0 < len(text) <= LONGEST]
    return next(iter([*short, *filter(None, texts)]), "your question")


def _judged(dataset: object) -> str | None:
    """Return the name by which `sluice compare --qrels` finds the judgements; None without one."""
    if isinstance(dataset, dict):
        named = dataset.get("qrels", dataset.get("name"))
        return named if isinstance(named, str) else None
    return dataset if isinstance(dataset, str) else None


class Evaluation:
    """The result of ``evaluate_experiment``: the table, and the scores and costs it shows."""

    def __init__(self, experiment: Experiment, dataset: Dataset) -> None:
        self.experiment = experiment
        self.dataset = dataset
        self.scores: dict[str, Scores] = {}
        self.unseen: dict[str, Scores] = {}  # over the queries of ``unseen_judgements``
        self.systems: dict[str, SystemResult] = {}
        self.table = Table()
        self.seconds = 0.0

    @property
    def measures(self) -> list[str]:
        """The measures as they are spelled in the results."""
        return list(next(iter(self.scores.values())).mean)

    @functools.cached_property
    def unseen_table(self) -> Table:
        """Return the systems over the queries whose relevant documents training did not have."""
        config = self.experiment.config.evaluate
        return compare_scores(self.unseen, baseline=config.baseline, testing=config.testing)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        systems = [
            {
                **system.to_dict(),
                "measures": dict(self.scores[name].mean),
                "queries": self.scores[name].queries,
                "missing_queries": self.scores[name].missing,
            }
            for name, system in self.systems.items()
        ]
        config = self.experiment.config
        return {
            "dataset": self.dataset.name,
            "split": self.dataset.split,
            "contents": contents_of(self.dataset),
            "place": place_of(self.dataset),
            "systems": systems,
            "parts": made_parts(self.experiment.output, self.experiment.nodes()),
            "comparisons": self.table.to_dict()["comparisons"],
            **({"unseen": self.unseen_table.to_dict()} if self.unseen else {}),
            "origin": {
                **provenance(config.model_dump(), seconds=self.seconds),
                "command": command_line(),
            },
        }


def place_of(dataset: Dataset) -> str | None:
    """Return the absolute path of the folder a dataset is read from; None without one."""
    source = dataset.source
    if isinstance(source, BeirFolder) and source.path.is_dir():
        return str(source.path.absolute())
    return None


def contents_of(dataset: Dataset) -> dict[str, str]:
    """Return hashes of a split's queries and judgements, to recognise them by."""
    return {
        "queries": fingerprint_of(sorted(dataset.queries.items())),
        "qrels": qrels_hash(dataset.qrels),
    }


def qrels_hash(qrels: Qrels) -> str:
    """Return a hash of judgements."""
    judged = {query: sorted(grades.items()) for query, grades in qrels.items()}
    return fingerprint_of(sorted(judged.items()))


def evaluate_experiment(experiment: Experiment) -> Evaluation:
    """Run and score every pipeline of an experiment, reusing saved runs.

    Writes ``experiment.yaml``, runs, ``results.json``, ``report.md``, ``table.csv`` and
    ``table.tex``. Latency is that of single queries, encoding included; index bytes are those of
    every index a pipeline searches.
    """
    config = experiment.config.evaluate
    start = time.monotonic()
    experiment.check_output()
    dataset = experiment.dataset(config.split)
    prepare(experiment)
    experiment.refuse_tested()
    experiment.write_settings()  # before the work: finished parts can be searched meanwhile
    measures = [parse_measure(text) for text in config.measures]
    depth = depth_for(measures)
    result = Evaluation(experiment, dataset)
    unseen = unseen_judgements(experiment.config, set(experiment.nodes()), dataset)
    for name in experiment.systems:
        result.systems[name], run = system_result(experiment, name, dataset, depth)
        result.scores[name] = evaluate(run, dataset, measures)
        if unseen:
            only = Judged(dataset.queries, unseen)
            result.unseen[name] = evaluate(run, only, measures, level=dataset.level)
        if experiment.config.variants is not None:
            experiment.let_go()  # each has a copy of the model
    result.table = compare_scores(result.scores, baseline=config.baseline, testing=config.testing)
    if experiment.config.variants is not None:
        _add_differences(result.table)
    add_costs(result.table, {name: each.to_dict() for name, each in result.systems.items()})
    notes = [result.table.caption, sessions_note(result.systems.values())]
    if result.unseen:
        every = next(iter(result.scores.values())).queries
        notes.append(unseen_note(result.unseen, every))
    result.table.caption = " ".join(filter(None, notes))
    result.seconds = time.monotonic() - start
    output = experiment.output
    results = result.to_dict()
    write_json(output / "results.json", results)
    write_mteb(output, results)
    write_text(output / "table.csv", result.table.to_csv())
    write_text(output / "table.tex", result.table.to_latex())
    write_text(output / "report.md", _report(result, results["parts"]))
    return result


def _add_differences(table: Table) -> None:
    """Add the intervals of the first measure's differences to the baseline, and their p-values."""
    tests = [each for each in table.comparisons if each.measure == next(iter(table.columns))]
    shown = differences(tests)
    for name, column in (("difference", "interval"), ("p corrected", "p corrected")):
        values = {c.system: row[column] for c, row in zip(tests, shown.rows.values(), strict=True)}
        table.add_column(name, values, shown.columns[column])


def _fitted(result: Evaluation) -> list[str]:
    """Return a list of what was chosen for pipelines that leave something open."""
    chosen = [
        f"- {escaped_markdown(name)}: {escaped_markdown(fit['why'])}."
        for name, system in result.systems.items()
        for fit in system.fitted
    ]
    return ["", "## What was fitted", "", *chosen] if chosen else []


def _gathered(result: Evaluation) -> list[str]:
    """Return a list of what the pipelines find of the best documents by an exact search."""
    found = [
        f"- {escaped_markdown(name)}: {escaped_markdown(str(GatherRecall.noted(each)))}."
        for name, system in result.systems.items()
        for each in system.gathers
    ]
    return ["", "## What is gathered of the exact best", "", *found] if found else []


def _unseen(table: Table) -> list[str]:
    return ["## Where training had no relevant document of the query", "", table.to_markdown()]


def _report(result: Evaluation, parts: list[dict[str, Any]]) -> str:
    experiment, dataset, table = result.experiment, result.dataset, result.table
    pipelines = experiment.config.pipelines
    lines = [
        f"# {escaped_markdown(experiment.output.name)}",
        "",
        f"Dataset {escaped_markdown(dataset.name)}, split {dataset.split}: "
        f"{plural(len(dataset.queries), 'query')}.",
        "",
        table.to_markdown().rstrip(),
        "",
        *([differences(table.comparisons).to_markdown(), ""] if table.comparisons else []),
        *(_unseen(result.unseen_table) if result.unseen else []),
        *(["| system | pipeline |", "|---|---|"] if pipelines else []),
        *(f"| {name} | `{text.replace('|', chr(92) + '|')}` |" for name, text in pipelines.items()),
        *_fitted(result),
        *_gathered(result),
        *(["", *parts_table(parts)] if parts else []),
        "",
        "## What to try next",
        "",
        *(f"- {step.purpose}: `{step.command}`" for step in next_steps(experiment, table)),
    ]
    return "\n".join(lines) + "\n"
