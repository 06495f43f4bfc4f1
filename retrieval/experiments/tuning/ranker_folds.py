"""Cross-validation of a ranker by query: the blend against each of its parts, with tests."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.files import write_json
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.evaluation.comparison import compare
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.tuning.ranker_training import (
    RankerParts,
    candidates_of,
    judged,
    ranker_parts,
)
from sluice.retrieval.retrievers.dataset_runs import run_on
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.ltr.features import selected
from sluice.retrieval.stages.ltr.query_folds import QueryFolds, query_folds
from sluice.retrieval.stages.ltr.ranker import LearnedRanker

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.retrieval.experiments.experiment import Experiment
    from sluice.training.rankers.lambda_gradients import JudgedLists

log = logging.getLogger("sluice")

BLEND = "ltr"
LEAST = 3  # folds: one to learn from, one to stop by, one to test on


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What cross-validation found: the systems with tests against the blend, the features' worth.

    ``run`` is the blend's, every query scored by the ranker of a fold that did not see it.
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
                "folds share relevant documents, by which a ranker may know them again: they "
                f"chain {self.parted.largest:.0%} of the queries together"
            )
        return "\n".join(lines)


def cross_validate(experiment: Experiment, folds: int = 5) -> FoldReport:
    """Train and test the section ``ranker`` of an experiment on folds of its split's queries.

    As LETOR has it (Qin et al., 2010): of k folds each is tested once, the next one stops that
    training, the other k - 2 teach. Features are computed fold by fold, from the fold's queries
    alone, before any judgement is looked at, and whatever is learned of features, such as their
    mean, is learned from the folds that teach. ``query_folds`` says which queries share one. The
    split may be the one that is evaluated, since nothing is kept. Writes ``OUTPUT/folds.json``.
    """
    if folds < LEAST:
        raise ConfigError(f"--folds: {folds}; expected {LEAST} or more")
    parts = ranker_parts(experiment)
    dataset = experiment.dataset(parts.section.split)
    heads = candidates_of(parts, dataset)
    parted = query_folds(dataset.queries, dataset.qrels, folds, experiment.config.seed)
    members = [[query for query in heads if parted.fold[query] == at] for at in range(folds)]
    if not all(members):
        raise ConfigError(f"--folds: one of {folds} has no query of {len(heads)}; take fewer")
    blocks = [_block(parts, dataset, {query: heads[query] for query in own}) for own in members]
    found, worth = _blended(parts, heads, members, blocks)
    runs = {BLEND: Run(found, name=BLEND), parts.section.candidates: Run(heads)}
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
    """Return every query's candidates in the order of a ranker that did not see it."""
    from sluice.training.rankers.lambda_gradients import joined

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
