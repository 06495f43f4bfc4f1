"""Tells apart the tested queries whose relevant documents no training query had."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sluice.retrieval.config.file_keys import collection_key
from sluice.retrieval.config.sections import ExperimentConfig
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import Qrels, find_split
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.experiments.training.tested_queries import trained_on
from sluice.retrieval.training_data.example_sources import source_of


def unseen_judgements(config: ExperimentConfig, nodes: Collection[str], dataset: Dataset) -> Qrels:
    """Return the judgements of the queries none of whose relevant documents training saw as such.

    A model may remember which documents were relevant, whatever the query: what it gains on queries
    with such documents says nothing of new ones. Empty where none of the config's ``nodes`` was
    trained on the dataset's own judgements, and where these queries are all or none.
    """
    used = [section for name, section in config.train.items() if f"train.{name}" in nodes]
    own = collection_key(config.dataset)
    trained = any(
        source_of(section) is None
        and own in map(collection_key, trained_on(section, config.dataset))
        for section in used
    )
    tested = find_split(str(dataset.split), dataset.splits)
    if not trained or find_split("train", dataset.splits) in (None, tested):
        return {}
    train = training_splits(dataset, config.seed)[0]
    seen = {d for grades in train.qrels.values() for d, g in grades.items() if g >= train.level}
    judged = {query: grades for query, grades in dataset.qrels.items() if grades}
    unseen = {
        query: grades
        for query, grades in judged.items()
        if not any(grade >= dataset.level and name in seen for name, grade in grades.items())
    }
    return unseen if len(unseen) < len(judged) else {}


def unseen_note(scores: Mapping[str, Scores], every: int) -> str:
    """Return a sentence on the first measure over the unseen queries, of ``every`` one."""
    first = next(iter(scores.values()))
    measure = next(iter(first.mean))
    values = ", ".join(f"{name} {own.mean[measure]:.4f}" for name, own in scores.items())
    return (
        f"Training saw a relevant document of {every - first.queries:,} queries as such; {measure} "
        f"over the other {first.queries:,}: {values}."
    )
