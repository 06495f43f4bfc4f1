"""Checks the outputs a report is written from; their curves, histograms and token pairs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import DataError, SluiceError
from sluice.retrieval.config.sections import ExperimentConfig, load_config, named_file
from sluice.retrieval.config.trust import followed, refuse_remote_dataset, trusted
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.evaluation.measures import Measure, parse_measure
from sluice.retrieval.evaluation.scores import ByMeasure, Scores, evaluate
from sluice.retrieval.experiments.evaluation import contents_of
from sluice.retrieval.experiments.output.folder import SETTINGS
from sluice.retrieval.experiments.output.results import RESULTS, read_results
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run
from sluice.retrieval.studies.report.failures import judged

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
        retrievers = {}
        for head in sorted((self.folder / "retrievers").glob(f"*/{HEAD}")):
            try:
                retrievers[head.parent.name] = Retriever.open(head.parent, allow=self.allow)
            except SluiceError as error:
                self.failed(f"retriever {head.parent.name}", error)
        return retrievers

    def failed(self, part: str, error: Exception) -> None:
        """Log and record that a part of the report is left out, and why."""
        log.warning("report: %s is left out: %s", part, error)
        self.failures.append(f"{part} is left out: {error}")

    def documents(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        """Return documents by id, from the stores or, if there are none, from the corpus."""
        left = dict.fromkeys(doc_ids)
        documents: dict[str, Document] = {}
        for retriever in self.retrievers.values():
            ids = [name for name in left if name not in documents]
            if ids:
                documents.update(_stored(retriever, ids))
        missing = {name for name in left if name not in documents}
        if missing and not self.retrievers:
            documents.update({each.id: each for each in self.dataset.corpus if each.id in missing})
        return documents


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
        return [_open_set(str(results["dataset"]), folder, results, allow)]
    parts = {str(name): folder / "datasets" / str(name) for name in names}
    return [_open_set(name, part, read_results(part, allow), allow) for name, part in parts.items()]


def _open_set(
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
    dataset = load_dataset(followed(config.dataset, allow), str(results["split"]))
    evaluated = EvaluatedSet(name, folder, results, config, dataset, runs, allow)
    known = results.get("contents")
    if isinstance(known, dict) and known != contents_of(dataset):
        change = "queries or judgements have changed since the evaluation; evaluate again"
        log.warning("report: %s: %s", name, change)
        evaluated.failures.append(f"{name}: {change}")
    return evaluated


DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
SCORED = 100  # ranks whose scores are in the histogram
BINS = 30
MEASURED = 20_000  # documents whose length is measured


def recall_curves(evaluated: EvaluatedSet) -> dict[str, Any]:
    """Return each system's mean recall at ``DEPTHS``, as deep as its run."""
    scores = evaluated.scores(f"R@{depth}" for depth in DEPTHS)
    curves = {}
    for name, run in evaluated.runs.items():
        deepest = max((len(ranking) for ranking in run.values()), default=0)
        within = [depth for depth in DEPTHS if depth <= deepest] or [DEPTHS[0]]
        curves[name] = [round(scores[name].mean[f"R@{depth}"], 4) for depth in within]
    return {"depths": DEPTHS, "systems": curves}


def score_histograms(evaluated: EvaluatedSet) -> dict[str, Any]:
    """Return by system a histogram of the scores of the first 100 hits, by judgement.

    The classes are relevant, judged not relevant, and unjudged; each has its count, mean and shares
    per bin. All share the same bins, which span the scores but for 0.2% at either end; these fall
    into the outermost bins.
    """
    histograms = {}
    for name, run in evaluated.runs.items():
        grades, scores = [], []
        for query in evaluated.queries:
            if query in run:
                grades.append(judged(run, evaluated.dataset.qrels, query).grades[:SCORED])
                scores.append(run[query].scores[:SCORED])
        if scores:
            histograms[name] = _by_class(np.concatenate(grades), np.concatenate(scores))
    return histograms


def _by_class(grades: NDArray[np.int64], scores: NDArray[np.float32]) -> dict[str, Any]:
    low, high = (float(edge) for edge in np.percentile(scores, [0.2, 99.8]))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    classes = []
    for inside in (grades > 0, grades == 0, grades < 0):
        part = scores[inside]
        counts = np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0]
        share = counts / max(1, len(part))
        classes.append(
            {
                "count": len(part),
                "mean": figures([part.mean()])[0] if len(part) else None,
                "share": figures(share),
            }
        )
    return {"edges": figures(edges), "classes": classes}


def document_lengths(evaluated: EvaluatedSet) -> dict[str, Any] | None:
    """Return histograms of document lengths: of the corpus, and of the relevant documents.

    At most 20,000 documents of the corpus are read, evenly spread if there is a store. Lengths are
    in words separated by white space, or in characters for scripts without it.
    """
    qrels = evaluated.dataset.qrels
    relevant = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
    texts, total = _sampled(evaluated)
    if not texts:
        return None
    documents = evaluated.documents(sorted(relevant)[:MEASURED])
    relevant_texts = [document.full_text for document in documents.values()]
    words = sum(len(text.split()) for text in texts)
    in_words = sum(map(len, texts)) < 15 * max(1, words)
    groups = [
        np.array([len(text.split()) if in_words else len(text) for text in group])
        for group in (texts, relevant_texts)
    ]
    unit = "words" if in_words else "characters"
    return {"unit": unit, "read": len(texts), "total": total, **histogram(groups)}


def _sampled(evaluated: EvaluatedSet) -> tuple[list[str], int]:
    stores = [retriever.store for retriever in evaluated.retrievers.values()]
    store = max(stores, key=len, default=None)
    if store is not None:
        live = np.setdiff1d(np.arange(store.rows_total), store.deleted)
        rows = live[:: max(1, -(-len(live) // MEASURED))]
        return [each.full_text for each in store.documents(rows)], len(live)
    texts = []
    count = 0
    for count, document in enumerate(evaluated.dataset.corpus, 1):
        if count <= MEASURED:
            texts.append(document.full_text)
    return texts, count


def histogram(groups: Sequence[ArrayLike], bins: int = BINS) -> dict[str, Any]:
    """Return shares per bin of several groups of lengths, with their counts, medians and means.

    All groups share integer bin edges up to the 99th percentile of the first group; larger values
    fall into the last bin, and ``beyond`` is the largest.
    """
    arrays = [np.asarray(group, dtype=np.int64) for group in groups]
    top = int(np.percentile(arrays[0], 99)) + 1 if len(arrays[0]) else 1
    step = max(1, -(-top // bins))
    edges = np.arange(0, step * -(-top // step) + 1, step)
    return {
        "edges": edges.tolist(),
        "beyond": int(max(array.max(initial=0) for array in arrays)),
        "groups": [
            {
                "count": len(array),
                "median": float(np.median(array)) if len(array) else None,
                "mean": figures([array.mean()])[0] if len(array) else None,
                "share": figures(
                    np.histogram(np.minimum(array, edges[-1] - 1), edges)[0] / max(1, len(array))
                ),
            }
            for array in arrays
        ],
    }


def figures(values: ArrayLike | Iterable[float], digits: int = 4) -> list[float]:
    """Round numbers to ``digits`` significant digits, to keep the page small."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=np.float64)]


PAIRS = 32  # of a document: the first tokens of the query
LONGEST = 40  # characters of a token that are shown: a pooled vector names several

DocIds = Mapping[str, Sequence[str]]  # query id -> documents whose scores are explained


def token_pairs(evaluated: EvaluatedSet, doc_ids_by_query: DocIds) -> dict[str, dict[str, Any]]:
    """Return by query and retriever which tokens of the documents each of the query's met.

    ``{query id: {retriever: {"tokens", "count", "documents": {id: [[token, similarity], ...]},
    "others", "rest": {id: similarity}}}}``: ``tokens`` are the first of the query's text, in their
    order, ``count`` how many it has; each document's pairs are one for each of these. ``others``
    are masks and marks, of which ``rest`` has the sum.
    """
    explained: dict[str, dict[str, Any]] = {query: {} for query in doc_ids_by_query}
    for name, retriever in evaluated.retrievers.items():
        try:
            if not holds_tokens(retriever.index):
                continue
            for query, doc_ids in doc_ids_by_query.items():
                text = evaluated.dataset.queries.get(query, "")
                explained[query] |= _pairs(name, retriever, text, doc_ids)
        except (SluiceError, ImportError, OSError) as error:
            evaluated.failed(f"tokens of {name}", error)
    return explained


def _pairs(name: str, retriever: Retriever, text: str, doc_ids: Sequence[str]) -> dict[str, Any]:
    matches = retriever.state.token_reader.matches(text, doc_ids)
    if not matches:
        return {}
    own = {doc: [each for each in tokens if each.in_query] for doc, tokens in matches.items()}
    rest = {doc: [each for each in tokens if not each.in_query] for doc, tokens in matches.items()}
    first = next(iter(own))
    sums = figures([sum(each.similarity for each in tokens) for tokens in rest.values()], 3)
    return {
        name: {
            "tokens": [_cut(match.query_token) for match in own[first][:PAIRS]],
            "count": len(own[first]),
            "documents": {doc: _row(tokens[:PAIRS]) for doc, tokens in own.items()},
            "others": len(rest[first]),
            "rest": dict(zip(rest, sums, strict=True)),
        }
    }


def _row(matches: Sequence[TokenMatch]) -> list[list[Any]]:
    shown = figures([match.similarity for match in matches], 3)
    return [[_cut(m.document_token), value] for m, value in zip(matches, shown, strict=True)]


def _cut(token: str) -> str:
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
