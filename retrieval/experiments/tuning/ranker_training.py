"""``sluice fit ranker``: trains a ranker on an experiment's candidates, or cross-validates it.

Labels are read in one place, ``judged``, after the features are computed: features depend on a
query, its candidates and the corpus alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import Qrels, find_split
from sluice.retrieval.evaluation.comparison import compare
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.checks import list_names
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.experiments.training.tested_queries import without_tested
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.table import BLEND
from sluice.retrieval.retrievers.candidate_lists import check_lists, run_on
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.ltr.ranker import LearnedRanker, check_model, part_fingerprint
from sluice.retrieval.stages.ltr.reranker import (
    CandidateFeatures,
    QueryFolds,
    query_folds,
    selected,
)
from sluice.retrieval.training_data.files.corpus_examples import sees_queries

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import RankerSection
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.experiments.experiment import Experiment
    from sluice.training.rankers.linear_ranker import JudgedLists

log = logging.getLogger("sluice")

CUTOFF = 10  # of the nDCG by which training is stopped
HELD_OUT = 10  # one query in so many stops the training of a dataset without dev


class RankerParts(NamedTuple):
    """What a ranker is trained on: the stages that score, and the one that gives candidates."""

    section: RankerSection
    stages: tuple[Stage, ...]
    candidates: Stage
    features: CandidateFeatures

    @property
    def documents(self) -> Texts | None:
        """The store of the candidates, as in a pipeline."""
        return self.candidates.documents


class TrainedRanker(NamedTuple):
    """A saved ranker and its nDCG@10 on dev, beside that of the order it was given."""

    ranker: LearnedRanker
    path: Path
    queries: int  # that taught it
    dev_queries: int
    dev: float  # nDCG@10
    dev_given: float


def ranker_parts(experiment: Experiment) -> RankerParts:
    """Open what the section ``ranker`` of an experiment names; ``ConfigError`` without one."""
    section = _section(experiment)
    check_model(section.model, "ranker.model")
    names = list_names(experiment.config)
    for name, where in _named(section):
        if name not in names:
            check_lists(name, where, names)
    stages = tuple(_stage(experiment, n, "ranker.stages") for n in section.stages)
    features = CandidateFeatures(stages, language=section.language)
    selected(features.names, section.features)
    candidates = _stage(experiment, section.candidates, "ranker.candidates")
    return RankerParts(section, stages, candidates, features)


def train_ranker(experiment: Experiment) -> TrainedRanker:
    """Train the ranker of an experiment's section ``ranker``, and write its folder.

    It learns from the split's queries and stops by nDCG@10 on the dataset's dev split. Without one,
    or if the experiment is evaluated on it, ``query_folds`` holds out a tenth of the split. Raises
    ``ConfigError`` if the split itself is evaluated on, or more than a few of its queries are.
    """
    from sluice.training.rankers.linear_ranker import ndcg_of

    train, dev = (
        without_tested(part, experiment.dataset, experiment.config.evaluate.split)
        for part in _splits(experiment, _section(experiment).split)
    )
    parts = ranker_parts(experiment)
    _warn_of_stacking(experiment, parts.section)
    taught = _lists_of(parts, train)
    watched = _lists_of(parts, dev)
    chosen = selected(parts.features.names, parts.section.features)
    folder = Path(parts.section.output or experiment.output / "ranker")
    usable = taught.teaching()
    ranker = LearnedRanker.fit(
        taught.taking(chosen.columns),
        chosen.names,
        dev=watched.taking(chosen.columns),
        model=parts.section.model,
        parts={stage.name: part_fingerprint(stage) for stage in parts.stages},
        language=parts.section.language,
        facts={
            "dataset": train.name, "split": parts.section.split, "queries": len(usable),
            "candidates": parts.section.candidates, "depth": parts.section.depth,
            "model": check_model(parts.section.model, "ranker.model"),
        },
    )  # fmt: skip
    dev_value = ndcg_of(ranker.score(watched.features[:, chosen.columns]).astype(float), watched)
    before = ndcg_of(np.zeros(len(watched.grades)), watched)
    ranker.save(folder, parts.features.terms(parts.documents))
    return TrainedRanker(ranker, folder, len(usable), len(watched), _mean(dev_value), _mean(before))


def candidates_of(parts: RankerParts, dataset: Dataset) -> dict[str, Ranking]:
    """Return the first ``depth`` candidates of each query of a dataset; an empty list for none."""
    run = run_on(parts.candidates, dataset, parts.section.depth).top(parts.section.depth)
    if not any(len(ranking) for ranking in run.values()):
        raise DataError(f"ranker.candidates: {parts.section.candidates} finds no documents")
    empty = Ranking([], [])
    return {query: run.get(query, empty) for query in dataset.queries}


def judged(
    features: CandidateFeatures,
    queries: Queries,
    heads: Mapping[str, Ranking],
    qrels: Qrels,
    documents: Texts | None = None,
) -> JudgedLists:
    """Return the features and grades of every candidate, list by list in the order of heads."""
    from sluice.training.rankers.linear_ranker import JudgedLists, ideal_dcg

    show = len(heads) > 100
    with progress("features", len(heads), "queries", show=show) as advance:
        matrix = features.matrix(queries, heads, documents)
        advance(len(heads))
    grades = [
        max(int(qrels.get(query, {}).get(doc, 0)), 0)
        for query, head in heads.items()
        for doc in head.doc_ids
    ]
    return JudgedLists(
        matrix,
        np.array(grades, np.int64),
        np.concatenate([[0], np.cumsum([len(head) for head in heads.values()])]).astype(np.int64),
        np.array([ideal_dcg(list(qrels.get(query, {}).values()), CUTOFF) for query in heads]),
    )


def _lists_of(parts: RankerParts, dataset: Dataset) -> JudgedLists:
    heads = candidates_of(parts, dataset)
    return judged(parts.features, dataset.queries, heads, dataset.qrels, parts.documents)


def _named(section: RankerSection) -> list[tuple[str, str]]:
    stages = [(name, "ranker.stages") for name in section.stages]
    return [*stages, (section.candidates, "ranker.candidates")]


def _section(experiment: Experiment) -> RankerSection:
    section = experiment.config.ranker
    if section is None:
        raise ConfigError(
            f"{experiment.file or 'config'}: ranker: missing (required): a section with stages and "
            "candidates, see configs/ltr.yaml"
        )
    return section


def _stage(experiment: Experiment, name: str, where: str) -> Stage:
    stage = experiment.lists(name, where)
    if isinstance(stage, Run):
        raise ConfigError(f"{where}: {name} is a run; expected a retriever or a pipeline")
    return stage


def _splits(experiment: Experiment, split: str) -> tuple[Dataset, Dataset]:
    """Return the queries to learn from and those to stop by."""
    dataset = experiment.dataset(None)
    tested = find_split(experiment.config.evaluate.split, dataset.splits)
    chosen = find_split(split, dataset.splits)
    if chosen is not None and chosen == tested:
        raise ConfigError(
            f"ranker.split: training on the test is refused: the experiment is evaluated on "
            f"{split}; choose another split, or --folds, which tests on held-out queries"
        )
    dev = find_split("dev", dataset.splits)
    if chosen == find_split("train", dataset.splits) and dev not in (None, tested):
        return training_splits(dataset, experiment.config.seed)
    data = dataset.with_split(split)
    folds = min(HELD_OUT, max(2, len(data.queries)))
    fold = query_folds(data.queries, data.qrels, folds, experiment.config.seed).fold
    return (
        _part_of(data, [query for query in data.queries if fold[query]]),
        _part_of(data, [query for query in data.queries if not fold[query]]),
    )


def _part_of(dataset: Dataset, queries: Sequence[str]) -> Dataset:
    part = dataset.with_split(dataset.split)
    part.queries = {query: dataset.queries[query] for query in queries}
    part.qrels = {query: dataset.qrels[query] for query in queries}
    return part


def _warn_of_stacking(experiment: Experiment, section: RankerSection) -> None:
    """Warn if a stage learned from the same queries as the ranker."""
    config = experiment.config
    if find_split(section.split, ["train"]) is None:
        return
    needs = Dependencies(config)
    for name, _ in dict.fromkeys(_named(section)):
        kind = next(
            (kind for kind in ("pipelines", "retrievers") if name in getattr(config, kind)), ""
        )
        learned = [
            node.removeprefix("train.")
            for node in (needs.closure(f"{kind}.{name}") if kind else ())
            if node.startswith("train.") and sees_queries(config.train[node[6:]])
        ]
        if learned:
            log.warning(
                "ranker: %s learned from the train queries (model %s): its scores of them are "
                "better than those of new queries, and the ranker will trust them too much; "
                "ranker.split: dev avoids it",
                name, learned[0],
            )  # fmt: skip


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


LEAST = 3  # folds: one to learn from, one to stop by, one to test on


@dataclass(frozen=True, slots=True)
class FoldReport:
    """Result of cross-validation: the systems tested against the blend, and the features' shares.

    ``run`` is the blend's: every query is scored by a ranker that did not learn from it.
    """

    table: Table
    importances: Table
    run: Run
    parted: QueryFolds

    def __str__(self) -> str:
        lines = [str(self.table)]
        for each in self.table.comparisons:
            lines.append(
                f"{BLEND} - {each.system}: {-each.difference:+.4f} {each.measure} "
                f"(p = {each.p_corrected:.2g}, {each.losses} better, {each.ties} same, "
                f"{each.wins} worse)"
            )
        if not self.parted.apart:
            lines.append(
                "folds share relevant documents, which a ranker may recognise: they chain "
                f"{self.parted.largest:.0%} of the queries together"
            )
        return "\n".join(lines)


def cross_validate(experiment: Experiment, folds: int = 5) -> FoldReport:
    """Train and test the section ``ranker`` of an experiment on folds of its split's queries.

    As in LETOR (Qin et al., 2010): each of k folds is tested once, the next one is used for
    stopping, the other k - 2 for learning. Features are computed fold by fold, from the fold's
    queries alone, before any judgement is read; statistics of features, such as their mean, come
    from the learning folds. ``query_folds`` decides which queries share a fold. The split may be
    the one that is evaluated, since no ranker is saved. Writes ``OUTPUT/folds.json``.
    """
    if folds < LEAST:
        raise ConfigError(f"--folds: {folds}; expected {LEAST} or more")
    parts = ranker_parts(experiment)
    dataset = experiment.dataset(parts.section.split)
    heads = candidates_of(parts, dataset)
    parted = query_folds(dataset.queries, dataset.qrels, folds, experiment.config.seed)
    members = [[query for query in heads if parted.fold[query] == at] for at in range(folds)]
    if not all(members):
        raise ConfigError(f"--folds: {folds} is too many for {len(heads)} queries; take fewer")
    blocks = [_block(parts, dataset, {query: heads[query] for query in own}) for own in members]
    rankings, worth = _blended(parts, heads, members, blocks)
    runs = {BLEND: Run(rankings, name=BLEND), parts.section.candidates: Run(heads)}
    for stage in parts.stages:
        runs.setdefault(stage.name, run_on(stage, dataset))
    evaluate = experiment.config.evaluate
    table = compare(runs, dataset.qrels, evaluate.measures, baseline=BLEND, test=evaluate.test)
    report = FoldReport(table, worth, runs[BLEND], parted)
    facts = {
        "folds": folds, "apart": parted.apart, "dataset": dataset.name, "split": dataset.split,
    }  # fmt: skip
    importances = worth.to_dict()["systems"]
    path = experiment.output / "folds.json"
    write_json(path, {**facts, **table.to_dict(), "importances": importances})
    return report


def _block(parts: RankerParts, dataset: Dataset, heads: Mapping[str, Ranking]) -> JudgedLists:
    queries = {query: dataset.queries[query] for query in heads}
    qrels = {query: dataset.qrels[query] for query in heads}
    lists = judged(parts.features, queries, heads, qrels, parts.documents)
    return lists.taking(selected(parts.features.names, parts.section.features).columns)


def _blended(
    parts: RankerParts,
    heads: Mapping[str, Ranking],
    members: list[list[str]],
    blocks: list[JudgedLists],
) -> tuple[dict[str, Ranking], Table]:
    """Return each query's candidates, ordered by a ranker that did not learn from it."""
    from sluice.training.rankers.linear_ranker import joined

    names = selected(parts.features.names, parts.section.features).names
    rankings: dict[str, Ranking] = {}
    shares: dict[str, float] = dict.fromkeys(names, 0.0)
    count = len(blocks)
    with progress("folds", count, "folds") as advance:
        for fold, (own, block) in enumerate(zip(members, blocks, strict=True)):
            watched = (fold + 1) % count
            taught = joined([b for at, b in enumerate(blocks) if at not in (fold, watched)])
            model: Any = parts.section.model
            ranker = LearnedRanker.fit(taught, names, dev=blocks[watched], model=model)
            scores = ranker.score(block.features)
            for place, query in enumerate(own):
                some = slice(block.starts[place], block.starts[place + 1])
                rankings[query] = _reordered(heads[query], scores[some])
            for name, row in ranker.importances().rows.items():
                shares[name] += float(row["share"] or 0.0) / count
            advance()
    worth = Table(columns={"share": ".1%"})
    order = sorted(names, key=lambda name: -shares[name])
    worth.rows = {name: {"share": shares[name]} for name in order}
    return {query: rankings[query] for query in heads}, worth


def _reordered(head: Ranking, scores: NDArray[np.float32]) -> Ranking:
    order = np.argsort(-scores, kind="stable")
    return Ranking([head.doc_ids[place] for place in order.tolist()], scores[order])
