"""Opens and checks the output folders that a report is written from."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import DataError, SluiceError
from sluice.retrieval.config.sections import ExperimentConfig, load_config, named_file
from sluice.retrieval.config.trust import refuse_remote_dataset, trusted
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import ByMeasure, Scores, evaluate
from sluice.retrieval.experiments.evaluation import contents_of
from sluice.retrieval.experiments.output.folder import SETTINGS
from sluice.retrieval.experiments.output.results import RESULTS, read_results
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document

log = logging.getLogger("sluice")


@dataclass
class EvaluatedSet:
    """One dataset's part of an evaluation: ``results.json``, its runs, queries and judgements.

    ``name`` is the dataset's name, or that of its folder in a suite. ``allow`` lists what the
    folder may do beside reading. ``failures`` collects what could not be opened, which the page
    lists.
    """

    name: str
    folder: Path
    results: Mapping[str, Any]
    config: ExperimentConfig
    dataset: Dataset
    runs: dict[str, Run]
    allow: Collection[str] = ()

    def __post_init__(self) -> None:
        self.failures: list[str] = []

    @cached_property
    def systems(self) -> list[dict[str, Any]]:
        """The systems' entries in ``results.json``, in its order."""
        return list(self.results["systems"])

    @property
    def baseline(self) -> str:
        """The system that the others are compared with."""
        baseline = self.config.evaluate.baseline
        names = list(self.runs)
        return baseline if baseline in names else names[0]

    @cached_property
    def queries(self) -> list[str]:
        """The ids of the queries with judgements, in the order of the qrels."""
        return [query for query, grades in self.dataset.qrels.items() if grades]

    def scores(self, measures: Iterable[str | Measure]) -> dict[str, Scores]:
        """Score every run by the measures."""
        parsed = [parse_measure(measure) for measure in measures]
        scores = {name: evaluate(run, self.dataset, parsed) for name, run in self.runs.items()}
        names = [str(measure) for measure in dict.fromkeys(parsed)]
        return {name: _renamed(each, names) for name, each in scores.items()}

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        """The retrievers that can be opened, by name; their models load on first use."""
        found = {}
        for head in sorted((self.folder / "retrievers").glob(f"*/{HEAD}")):
            try:
                found[head.parent.name] = Retriever.open(head.parent, allow=self.allow)
            except SluiceError as error:
                self.failed(f"retriever {head.parent.name}", error)
        return found

    def failed(self, part: str, error: Exception) -> None:
        """Log and record that a part of the report is left out, and why."""
        log.warning("report: %s is left out: %s", part, error)
        self.failures.append(f"{part} is left out: {error}")

    def documents(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        """Return documents by id, from the stores or, if there are none, from the corpus."""
        left = dict.fromkeys(doc_ids)
        found: dict[str, Document] = {}
        for retriever in self.retrievers.values():
            ids = [name for name in left if name not in found]
            if ids:
                found.update(_stored(retriever, ids))
        missing = {name for name in left if name not in found}
        if missing and not self.retrievers:
            found.update({each.id: each for each in self.dataset.corpus if each.id in missing})
        return found


def _renamed(scores: Scores, names: list[str]) -> Scores:
    """Name values by the requested measures; a dataset's level changes the names."""
    pairs = list(zip(names, scores.mean, strict=True))
    return replace(
        scores,
        mean=ByMeasure({name: scores.mean[own] for name, own in pairs}),
        per_query=ByMeasure({name: scores.per_query[own] for name, own in pairs}),
    )


def _stored(retriever: Retriever, ids: list[str]) -> dict[str, Document]:
    rows = retriever.store.rows(ids)
    stored = [(name, int(row)) for name, row in zip(ids, rows, strict=True) if row >= 0]
    documents = retriever.store.documents([row for _, row in stored]) if stored else []
    return {name: each for (name, _), each in zip(stored, documents, strict=True)}


def open_sets(folder: Path, allow: Collection[str] = ()) -> list[EvaluatedSet]:
    """Open an output folder of ``sluice evaluate``: one dataset, or several under ``datasets/``.

    Raises ``DataError`` if results or a run are missing.
    """
    results = read_results(folder, allow)
    names = results.get("datasets")
    if names is None:
        return [_opened(str(results["dataset"]), folder, results, allow)]
    parts = {str(name): folder / "datasets" / str(name) for name in names}
    return [_opened(name, part, read_results(part, allow), allow) for name, part in parts.items()]


def _opened(
    name: str, folder: Path, results: dict[str, Any], allow: Collection[str]
) -> EvaluatedSet:
    settings = folder / SETTINGS
    with named_file(settings):
        config = load_config(settings, ExperimentConfig)
        config = trusted(config, allow, folder, only_open=True)
        refuse_remote_dataset(config.dataset, "dataset", allow)
    runs = {}
    for system in results["systems"]:
        path = folder / "runs" / f"{system['name']}.trec.gz"
        if not path.is_file():
            raise DataError(
                f"{path}: no such run, but {RESULTS} names the system; evaluate again to write it"
            )
        runs[str(system["name"])] = Run.load(path)
    dataset = load_dataset(config.dataset, str(results["split"]))
    evaluated = EvaluatedSet(name, folder, results, config, dataset, runs, allow)
    known = results.get("contents")
    if isinstance(known, dict) and known != contents_of(dataset):
        change = "queries or judgements have changed since the evaluation; evaluate again"
        log.warning("report: %s: %s", name, change)
        evaluated.failures.append(f"{name}: {change}")
    return evaluated
