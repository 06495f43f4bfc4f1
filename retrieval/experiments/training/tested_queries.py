"""Refuses models that were trained on the queries they are evaluated on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.same_text import same_text_key
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.training_data.files.corpus_examples import sees_queries, too_few_to_hold_out

log = logging.getLogger("sluice")

STRAYS = 0.05  # share of the tested queries whose texts may be among the training queries


def refuse_tested_queries(
    trainings: Sequence[TrainingSection], dataset: Dataset, test: Callable[[], Dataset], seed: int
) -> None:
    """Raise ``ConfigError`` if training sees queries of the split that is evaluated.

    ``test`` opens that split, which need not exist where training sees no judged queries.

    Queries are compared by their texts. Refused are any tested query with the text and id of a
    train query, and more than ``STRAYS`` of the tested queries with the text of a train query.
    Fewer, with other ids, are warned of: collections come with a few (NFCorpus 4 of 323, SciFact 2
    of 300).
    """
    sections = [section for section in trainings if sees_queries(section)]
    own = all(section.examples for section in sections)
    if own and find_split("train", dataset.splits) is None:
        return  # files without the queries of dev and test, or pairs made from the corpus
    if own and too_few_to_hold_out(dataset):
        train = dataset.with_split("train")
    else:
        train, _ = training_splits(dataset, seed)
    tested = test().queries
    trained: dict[str, set[str]] = {}  # ids by text
    for query, text in train.queries.items():
        trained.setdefault(same_text_key(text), set()).add(query)
    keys = {query: same_text_key(text) for query, text in tested.items() if text.strip()}
    shared = [query for query, key in keys.items() if key in trained]
    same = [query for query in shared if query in trained[keys[query]]]
    count = f"{len(shared):,} of {len(tested):,} tested queries"
    if same or len(shared) > STRAYS * len(tested):
        raise ConfigError(
            f"dataset: training on the test is refused: {count} (such as "
            f"{(same or shared)[0]!r}) are among the train queries, by text; use separate "
            "splits"
        )
    if shared:
        log.warning(
            "%s: %s (such as %r) have the text of a train query with another id; they are "
            "trained on all the same", train.name, count, shared[0],
        )  # fmt: skip
