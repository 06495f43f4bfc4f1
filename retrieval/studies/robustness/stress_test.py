"""Runs systems on perturbed queries and documents and measures what changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.evaluation.measures import Measure, depth_for, parse_measure, settled
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import FindsDocuments, asked
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.several_runs import rank_biased_overlap
from sluice.retrieval.studies.robustness.perturbation import (
    CLEAN,
    DOCUMENT_PERTURBATIONS,
    QUERY_PERTURBATIONS,
    TOP,
    Around,
    Filtering,
    Outcome,
    Robustness,
    Shift,
    StuffingFilter,
    Values,
    first_sentence,
    outcome_table,
    perturbed_document,
    perturbed_query,
)
from sluice.retrieval.studies.robustness.replaced_document import AlteredPipeline

log = logging.getLogger("sluice")

COMPARED = 100  # depth of the rankings whose overlap is measured
SENTENCES = 500  # of the corpus, from which an unrelated one is drawn
PERTURBATIONS = (
    *(f"query:{name}" for name in QUERY_PERTURBATIONS),
    *(f"document:{name}" for name in DOCUMENT_PERTURBATIONS),
)


def robustness(
    systems: Mapping[str, Stage],
    dataset: Dataset,
    measures: Iterable[str | Measure] = ("nDCG@10",),
    *,
    perturbations: Sequence[str] = PERTURBATIONS,
    queries: Annotated[int, Ge(0), "Queries in the sample; 0 takes all."] = 50,
    targets: Annotated[int, Ge(1), "Documents perturbed for each query."] = 3,
    depth: Annotated[int, "Last rank from which these documents are drawn."] = 100,
    seed: Annotated[int, "Random seed for queries, documents and typos."] = 0,
    alpha: float = 0.05,
) -> Robustness:
    """Perturb queries and documents, one at a time, and measure the effect on each system.

    ``queries`` of the dataset are drawn (0 takes all). *Query* perturbations rerun the pipeline on
    the perturbed texts. *Document* perturbations take, for each query, up to ``targets`` documents
    drawn from ranks 11 to ``depth`` of the system's own clean ranking that are not judged relevant,
    and run the pipeline with one of them perturbed at a time: every retriever encodes and scores
    the document again, and rerankers read its new text, while all other documents and the
    collection's statistics stay as they are (see ``replaced_document``). This is exact for one
    changed document and tells nothing about many that change together. A measure's value is the
    query's mean over its documents.

    Every change is tested against the clean run by a paired two-sided t-test over queries,
    corrected by Holm over the system's perturbations. The shift of a document is its clean rank
    minus its new one. A system whose documents cannot be replaced has query perturbations only; the
    caption gives the reason. ``ConfigError`` for an unknown perturbation and a ``depth`` of 10 or
    less.
    """
    _check(perturbations, depth, targets, queries)
    grades = [grade for judged in dataset.qrels.values() for grade in judged.values()]
    parsed = [settled(parse_measure(each), np.array(grades, np.int64)) for each in measures]
    chosen = _drawn(dataset, queries, seed)
    unrelated = _unrelated(dataset, chosen, perturbations, seed)
    result = Robustness({}, {}, {}, Table())
    for name, stage in systems.items():
        log.info("robust %s: %s queries", name, f"{len(chosen):,}")
        runner = _Runner(name, stage, dataset, chosen, parsed, seed, unrelated)
        result.outcomes[name] = runner.query_outcomes(perturbations)
        documents = [each for each in perturbations if each.startswith("document:")]
        named = [each.removeprefix("document:") for each in documents]
        if not named:
            continue
        try:
            pipeline = AlteredPipeline(stage)
            result.outcomes[name] |= runner.document_outcomes(pipeline, named, targets, depth)
        except ConfigError as error:
            result.skipped[name] = str(error)
            continue
        if (filtering := runner.filtering(depth)) is not None:
            result.filtering[name] = filtering
    result.table = outcome_table(result, parsed, alpha)
    return result


class _Runner:
    """One system's clean run and its runs under perturbations."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        dataset: Dataset,
        chosen: Sequence[str],
        measures: list[Measure],
        seed: int,
        unrelated: Mapping[str, str],
    ) -> None:
        self.name, self.stage, self.dataset = name, stage, dataset
        self.measures, self.seed, self.unrelated = measures, seed, unrelated
        self.limit = depth_for(measures)
        self.every_query = asked(dataset, stage)
        self.queries = self._texts({query: self.every_query[query] for query in chosen})
        self.clean = stage.run(self.queries, None, self.limit).top(self.limit)
        self.stuffed: list[tuple[str, str]] = []

    def _texts(self, texts: dict[str, str]) -> Queries:
        return type(self.every_query)(texts) if isinstance(self.every_query, dict) else texts

    def values(self, run: Mapping[str, Ranking]) -> dict[str, Values]:
        """Return the measures of the queries of ``run``, in its order."""
        qrels = {query: self.dataset.qrels[query] for query in run}
        scores = evaluate(Run(run), qrels, self.measures, level=self.dataset.level)
        return {
            measure: np.array([values[query] for query in run])
            for measure, values in scores.per_query.items()
        }

    def overlap(self, query: str, ranking: Ranking) -> float:
        """Return the rank-biased overlap of a ranking with the query's clean one."""
        clean = self.clean[query].doc_ids[:COMPARED]
        return rank_biased_overlap(clean, ranking.doc_ids[:COMPARED])

    def query_outcomes(self, perturbations: Sequence[str]) -> dict[str, Outcome]:
        """Return the clean outcome and those of the perturbations of queries."""
        chosen = list(self.queries)
        outcomes = {CLEAN: Outcome(chosen, self.values(self.clean), [1.0] * len(chosen))}
        for full in (each for each in perturbations if each.startswith("query:")):
            name = full.removeprefix("query:")
            texts = {q: perturbed_query(text, name, self.seed) for q, text in self.queries.items()}
            run = self.stage.run(self._texts(texts), None, self.limit).top(self.limit)
            overlaps = [self.overlap(query, run[query]) for query in chosen]
            values = self.values({query: run[query] for query in chosen})
            outcomes[full] = Outcome(chosen, values, overlaps)
        return outcomes

    def document_outcomes(
        self, pipeline: AlteredPipeline, names: Sequence[str], targets: int, depth: int
    ) -> dict[str, Outcome]:
        """Return the outcomes of perturbing documents of the clean rankings, one at a time."""
        drawn = {query: self._targets(query, targets, depth) for query in self.queries}
        documents = self._documents([doc for docs in drawn.values() for doc in docs])
        outcomes: dict[str, Outcome] = {}
        for name in names:
            log.info("robust %s: documents %s", self.name, name)
            jobs = [
                (query, perturbed_document(
                    documents[doc], name, Around(self.queries[query], self.unrelated[query])
                ))
                for query, docs in drawn.items() for doc in docs
            ]  # fmt: skip
            if name == "stuffed":
                self.stuffed = [(self.queries[query], new.full_text) for query, new in jobs]
            pipeline.prepare(self.queries, jobs)
            outcomes[f"document:{name}"] = self._outcome(pipeline, jobs, targets)
        return outcomes

    def _outcome(
        self, pipeline: AlteredPipeline, jobs: Sequence[tuple[str, Document]], targets: int
    ) -> Outcome:
        shifts: list[Shift] = []
        slots: list[dict[str, Ranking]] = [{} for _ in range(targets)]
        overlaps: dict[str, list[float]] = {}
        for query, new in jobs:
            single = self._texts({query: self.queries[query]})
            ranking = pipeline.run(single, new, self.limit)[query]
            before = _rank(self.clean[query], new.id)
            shifts.append(Shift(query, new.id, before, _rank(ranking, new.id)))
            overlaps.setdefault(query, []).append(self.overlap(query, ranking))
            slots[len(overlaps[query]) - 1][query] = ranking
        queries = list(overlaps)
        sums = {str(measure): np.zeros(len(queries)) for measure in self.measures}
        places = {query: place for place, query in enumerate(queries)}
        for slot in filter(None, slots):
            at = np.array([places[query] for query in slot])
            for measure, values in self.values(slot).items():
                sums[measure][at] += values
        counts = np.array([len(overlaps[query]) for query in queries])
        means = {measure: values / counts for measure, values in sums.items()}
        averages = [float(np.mean(each)) for each in overlaps.values()]
        return Outcome(queries, means, averages, shifts)

    def _targets(self, query: str, count: int, depth: int) -> list[str]:
        grades = self.dataset.qrels[query]
        below = self.clean[query].doc_ids[TOP:depth]
        candidates = [doc for doc in below if grades.get(doc, 0) < 1]
        random = Random(f"{self.seed}/targets/{query}")
        return random.sample(candidates, min(count, len(candidates)))

    def _documents(self, names: Sequence[str]) -> dict[str, Document]:
        store: Any = self.stage.documents
        if not isinstance(store, FindsDocuments):
            raise ConfigError(f"{self.name}: no document store, and so no documents to perturb")
        documents: dict[str, Document] = {}
        for name in dict.fromkeys(names):
            document = store.find(name)
            if document is None:
                raise DataError(
                    f"{self.name}: retrieved document {name!r}, which is not in its store"
                )
            documents[name] = document
        return documents

    def filtering(self, depth: int) -> Filtering | None:
        """Fit the stuffing filter on half of the queries and measure what it flags on the others.

        None if nothing was stuffed, or if a half is empty.
        """
        store = self.stage.documents
        pairs: list[list[tuple[str, str]]] = [[], []]
        for place, query in enumerate(self.queries):
            ids = list(self.clean[query].doc_ids[:depth])
            texts = store.texts(ids) if store is not None else []
            pairs[place % 2] += [(self.queries[query], text) for text in texts]
        if not (self.stuffed and all(pairs)):
            return None
        fitted = StuffingFilter.fitted(pairs[0])
        clean = [fitted.flags(*pair) for pair in pairs[1]]
        stuffed = [fitted.flags(*pair) for pair in self.stuffed]
        return Filtering(fitted.threshold, float(np.mean(clean)), float(np.mean(stuffed)))


def _check(perturbations: Sequence[str], depth: int, targets: int, queries: int) -> None:
    for name in perturbations:
        if name not in PERTURBATIONS:
            raise ConfigError(
                f"perturbation: unknown {name!r}; known: {', '.join(PERTURBATIONS)}"
                f"{suggest(name, PERTURBATIONS)}"
            )
    whole_number(targets, "targets", 1)
    whole_number(queries, "queries", 0)
    if whole_number(depth, "depth", 1) <= TOP:
        raise ConfigError(
            f"depth: {depth}; expected more than {TOP}, such as 100, because documents are "
            f"perturbed from rank {TOP + 1} on"
        )


def _drawn(dataset: Dataset, count: int, seed: int) -> list[str]:
    """Return a sample of the judged queries with a text, in the dataset's order."""
    known = [q for q, text in dataset.queries.items() if text.strip() and dataset.qrels.get(q)]
    if not known:
        raise ConfigError(f"{dataset.name}: no judged queries to perturb")
    if not count or count >= len(known):
        return known
    sample = set(Random(f"{seed}/queries").sample(known, count))
    return [query for query in known if query in sample]


def _unrelated(
    dataset: Dataset, queries: Sequence[str], perturbations: Sequence[str], seed: int
) -> dict[str, str]:
    """Return for each query the first sentence of a random document without a judgement for it."""
    if not any(name.startswith("document:sentence") for name in perturbations):
        return dict.fromkeys(queries, "")
    random = Random(f"{seed}/sentences")
    drawn: list[Document] = []
    for place, document in enumerate(dataset.corpus):  # reservoir sampling
        if len(drawn) < SENTENCES:
            drawn.append(document)
        elif (at := random.randrange(place + 1)) < SENTENCES:
            drawn[at] = document
    texts = {}
    for query in queries:
        judged = dataset.qrels[query]
        apart = [first_sentence(doc.text) for doc in drawn if doc.id not in judged]
        texts[query] = Random(f"{seed}/sentence/{query}").choice(list(filter(None, apart)) or [""])
    return texts


def _rank(ranking: Ranking, doc_id: str) -> int:
    ids = list(ranking.doc_ids)
    return ids.index(doc_id) + 1 if doc_id in ids else len(ids) + 1
