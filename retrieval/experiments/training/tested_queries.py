"""Refuses training, or choosing a model, on the queries that it is evaluated with."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.file_keys import collection_key
from sluice.retrieval.config.sections import DevSection, TrainingSection
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.datasets.source import Qrels, find_split
from sluice.retrieval.evaluation.measures import at_level, parse_measure
from sluice.retrieval.training_data.files.corpus_examples import sees_queries, splits_of
from sluice.retrieval.training_data.own_pairs import judged_by_examples

log = logging.getLogger("sluice")

STRAYS = 0.05  # share of the tested queries whose texts may be among the training queries
Named = str | Mapping[str, Any]  # a dataset, as a config names it
Open = Callable[[], Dataset]


class Tested(NamedTuple):
    """The queries that a model is evaluated with, and the dataset they are of."""

    key: Mapping[str, Any]
    dataset: Dataset


def trained_on(section: TrainingSection, own: Named | None) -> list[Named]:
    """Return the datasets that a section is trained on: its own list, or the config's dataset."""
    named: list[Named] = list(section.datasets or [])
    return named or ([] if own is None else [own])


def tested_by(section: TrainingSection, own: Named | None, test: Open | None) -> list[Tested]:
    """Return the tested queries of every dataset that a section has to do with.

    ``test`` opens the evaluated split of the experiment's dataset ``own``; of other datasets, and
    without it, that is the split ``test`` where there is one that can be read.
    """
    tested = []
    if own is not None and test is not None:
        tested += _readable(own, test)
    for each in trained_on(section, own):
        data = load_dataset(each, None)
        new = collection_key(each) not in [known.key for known in tested]
        if new and find_split("test", data.splits):
            tested += _readable(each, functools.partial(data.with_split, "test"))
    return tested


def _readable(named: Named, test: Open) -> list[Tested]:
    """Return the tested queries of a dataset; none, with a line in the log, if they are not there.

    Training needs none, and evaluating says what is wrong.
    """
    try:
        dataset = test()
        _ = dataset.queries
    except SluiceError as error:
        log.info("tested queries are not compared with those of training: %s", error)
        return []
    return [Tested(collection_key(named), dataset)]


def refuse_tested_queries(
    sections: Mapping[str, TrainingSection], own: Named | None, test: Open | None, seed: int
) -> None:
    """Raise ``ConfigError`` if tested queries are trained on, or choose the model.

    ``sections`` are training runs by the prefix of their keys, ``own`` is the config's dataset and
    ``test`` opens its evaluated split, which need not exist where training sees no judged queries.

    Queries are compared by their texts. Refused are any tested query with the text and id of a
    train or dev query, and more than ``STRAYS`` of the tested queries with the text of one. Fewer,
    with other ids, are warned of: collections come with a few (NFCorpus 4 of 323, SciFact 2 of
    300). Of two datasets, one query with the text of a tested one of the other is refused.

    Dev queries without a relevant document are a ``DataError``, a single one a warning.
    """
    for prefix, section in sections.items():
        if not sees_queries(section):
            continue
        seen = [
            (collection_key(each), *queries)
            for each in trained_on(section, own)
            for queries in _queries(section, load_dataset(each, None), seed, prefix)
        ]
        if not seen:
            continue  # files without the queries of dev and test, or pairs made from the corpus
        opened = None if test is None else functools.cache(test)
        for tested in tested_by(section, own, opened):
            for key, part, split in seen:
                _compare(part, split, tested.dataset, prefix, same=key == tested.key)


def _queries(
    section: TrainingSection, dataset: Dataset, seed: int, prefix: str
) -> Iterator[tuple[str, Dataset]]:
    """Yield what training learns from and what chooses the model, where these have queries."""
    if judged_by_examples(section, dataset):
        return
    train, dev = splits_of(section, dataset, seed)
    if train.split is not None:
        yield "train", train
    if section.evaluate is not None and dev.split is not None:
        _check_dev(dev, section.evaluate, f"{prefix}evaluate")
        yield "dev", dev


def _check_dev(dev: Dataset, section: DevSection, where: str) -> None:
    """Check that dev queries can tell a better model from a worse one, by the first measure."""
    (measure,) = at_level([parse_measure(section.measures[0])], dev.level)
    least = measure.level
    judged = [q for q in dev.queries if any(grade >= least for grade in dev.qrels[q].values())]
    if not judged:
        graded = f" (of grade {least} or more, for {measure})" if least > 1 else ""
        raise DataError(
            f"{where}: {dev.name}: none of its {plural(len(dev.queries), 'dev query')} has a "
            f"relevant document{graded} in {dev.source.places('dev').qrels}, so every model scores "
            "0; judge some, or leave evaluate out"
        )
    if len(judged) == 1:
        log.warning(
            "%s: %s: a single dev query (%s) chooses the model, which is little more than chance; "
            "add queries, or leave evaluate out", where, dev.name, judged[0],
        )  # fmt: skip


def _compare(part: str, split: Dataset, test: Dataset, prefix: str, *, same: bool) -> None:
    """Refuse or report the tested queries that are among those of a train or dev split."""
    known: dict[str, set[str]] = {}  # ids by text
    for query, text in split.queries.items():
        known.setdefault(same_text_key(text), set()).add(query)
    tested = test.queries
    keys = {query: same_text_key(text) for query, text in tested.items() if text.strip()}
    shared = [query for query, key in keys.items() if key in known]
    if not shared:
        return
    count = f"{len(shared):,} of {len(tested):,} tested queries"
    if not same:
        raise ConfigError(
            f"{prefix}datasets: {count} of {test.name} (such as {shared[0]!r}) are among the "
            f"{part} queries of {split.name}, by text: training on the test is refused; leave one "
            "of the two out, or remove these queries"
        )
    identical = [query for query in shared if query in known[keys[query]]]
    if identical or len(shared) > STRAYS * len(tested):
        verb = "training on" if part == "train" else "choosing a model by"
        raise ConfigError(
            f"dataset: {verb} the test is refused: {count} (such as {(identical or shared)[0]!r}) "
            f"are among the {part} queries, by text; use separate splits"
        )
    done = "they are trained on" if part == "train" else "they choose the model"
    log.warning(
        "%s: %s (such as %r) have the text of a %s query with another id; %s all the same",
        split.name, count, shared[0], part, done,
    )  # fmt: skip


def tested_datasets(
    section: TrainingSection, own: Named | None, test: Open | None
) -> Sequence[Dataset]:
    """Return what ``tested_by`` does, without the keys."""
    return [each.dataset for each in tested_by(section, own, test)]


def untested(
    data: Dataset, judged: Qrels, dataset: Callable[[str | None], Dataset], evaluated: str
) -> Qrels:
    """Return the judgements without those of tested queries; ``data`` has the texts.

    A query is a tested one by its text, or by its id where that has the same judgements in the
    ``evaluated`` split. Raises ``ConfigError`` if more than ``STRAYS`` of the queries are.
    """
    try:
        test = dataset(evaluated)
        keys, same = set(map(same_text_key, test.queries.values())), test.qrels
    except DataError:  # that split does not exist
        return judged
    shared = [
        query
        for query, grades in judged.items()
        if same_text_key(data.queries[query]) in keys or same.get(query) == grades
    ]
    if len(shared) > STRAYS * len(judged):
        raise ConfigError(
            f"dataset: fitting on the test is refused: {len(shared):,} of {len(judged):,} "
            f"{data.split} queries (such as {shared[0]!r}) are queries of {evaluated}, by text "
            "or judgements; use separate splits"
        )
    if shared:
        log.info(
            "%s: %s of %s left out of fitting, being in %s",
            data.name, plural(len(shared), "query"), data.split, evaluated,
        )  # fmt: skip
    return {query: grades for query, grades in judged.items() if query not in shared}


def without_tested(
    data: Dataset, dataset: Callable[[str | None], Dataset], evaluated: str
) -> Dataset:
    """Return a split without the queries that ``untested`` leaves out; it raises what that does."""
    judged = {query: data.qrels[query] for query in data.queries}
    tested = judged.keys() - untested(data, judged, dataset, evaluated).keys()
    if not tested:
        return data
    part = data.with_split(data.split)
    part.queries = {query: text for query, text in data.queries.items() if query not in tested}
    part.qrels = {query: grades for query, grades in data.qrels.items() if query not in tested}
    return part
