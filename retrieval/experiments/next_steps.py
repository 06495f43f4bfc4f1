"""What to do after an evaluation: commands that run as they are printed."""

from __future__ import annotations

import itertools
import json
import shlex
from typing import NamedTuple

from sluice.retrieval.config.trust import named_in
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.folder import SETTINGS

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
