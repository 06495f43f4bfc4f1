"""The queries that an experiment fits its pipelines on: dev queries, never those of the test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import Qrels, find_split
from sluice.retrieval.experiments.training.tested_queries import untested
from sluice.retrieval.pipelines.fitting.unfitted import FEWEST
from sluice.retrieval.training_data.files.corpus_examples import too_few_to_hold_out

log = logging.getLogger("sluice")


@dataclass(frozen=True, slots=True)
class FittingQueries:
    """The judged queries to fit on, perhaps none; ``dataset`` is opened at their split if any.

    ``level`` is the least grade that is relevant, ``contents`` a hash of all that.
    """

    dataset: Dataset
    qrels: Qrels
    split: str | None
    level: int
    contents: str

    @property
    def shown(self) -> str:
        """How many there are, in words."""
        return plural(len(self.qrels), "dev query") if self.qrels else "no judgements"


def fitting_queries(
    dataset: Callable[[str | None], Dataset], evaluated: str, seed: int
) -> FittingQueries:
    """Return the queries of dev; without dev the tenth of train that training never sees.

    A dataset with neither has none, and neither has one whose dev judges no document relevant.
    Dev queries that occur in the evaluated split are left out. Raises ``ConfigError`` where dev
    is the evaluated split, or more than ``STRAYS`` of its queries are tested ones, and
    ``DataError`` for judgements that cannot be read.
    """
    data = dataset(None)
    source = find_split("dev", data.splits) or find_split("train", data.splits)
    if source is None:
        return _none(data, "neither a dev nor a train split has judgements")
    if source == find_split(evaluated, data.splits):
        raise ConfigError(
            f"pipelines: fitted(...) would be fitted on {source}, on which the experiment is "
            "evaluated; fitting on the test is refused: choose another evaluate.split, or give "
            "the dataset a dev split"
        )
    if source == "train" and too_few_to_hold_out(data):
        return _none(data, "train has too few queries to hold some out of training")
    dev = data.with_split(source) if source != "train" else training_splits(data, seed)[1]
    judged = {
        query: grades
        for query, grades in dev.qrels.items()
        if query in dev.queries and any(grade >= data.level for grade in grades.values())
    }
    qrels = untested(dev, judged, dataset, evaluated)
    if not qrels:
        return _none(data, f"the judgements of {source} name no relevant document")
    if len(qrels) < FEWEST:
        log.warning(
            "%s: %s to fit on; expected %d or more: settings for all collections are taken",
            data.name, plural(len(qrels), "judged query"), FEWEST,
        )  # fmt: skip
    contents = fingerprint_of(
        sorted((query, dev.queries[query]) for query in qrels),
        sorted((query, sorted(grades.items())) for query, grades in qrels.items()),
        data.level,
    )
    split = source if source != "train" else "train, a tenth held out"
    return FittingQueries(dev, qrels, split, data.level, contents)


def _none(data: Dataset, why: str) -> FittingQueries:
    log.warning("%s: nothing to fit on (%s)", data.name, why)
    return FittingQueries(data, {}, None, data.level, fingerprint_of("none"))
