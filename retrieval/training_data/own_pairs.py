"""What a training run learns from and is evaluated on: a dataset, or pairs of texts alone."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import SHARE, MemorySource, Qrels, find_split
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.example_sources import (
    example_source,
    file_examples,
    source_of,
)
from sluice.retrieval.training_data.files.corpus_examples import splits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.pipelines.stage import Stage
    from sluice.retrieval.runs.run import Run
    from sluice.training import Example

log = logging.getLogger("sluice")

OF_CORPUS = [name for name in EXAMPLES if name not in ("clicks", "file")]
REMEDY = "name the dataset that has it (dataset: NAME, or dataset: {corpus: FILE})"


class TrainingData(NamedTuple):
    """The splits to train and to evaluate on, and the examples that were read to make them.

    ``held_out``: the dev queries are pairs of the examples, which are not trained on. Of pairs of
    the user's own they are searched for among the documents of the pairs; of pairs made from a
    corpus in the corpus, and ``left_out`` are their documents, none of whose pairs is trained on.
    """

    train: Dataset
    dev: Dataset
    examples: Sequence[Example] = ()
    held_out: bool = False
    left_out: frozenset[str] = frozenset()


def judged_by_examples(section: TrainingSection, dataset: Dataset) -> bool:
    """Return whether dev queries are held out of the examples, not of a dataset's judgements.

    That is what ``evaluate.by`` says; left out, it is so where the dataset has no split to take dev
    queries from.
    """
    if section.evaluate is None or section.examples is None:
        return False
    if section.examples.get("type") == "texts":
        return False  # without queries
    if section.evaluate.by is not None:
        return section.evaluate.by == "examples"
    return not any(find_split(name, dataset.splits) for name in ("train", "dev"))


def training_data(
    section: TrainingSection,
    dataset: Dataset | None,
    seed: int,
    where: str = "",
    open_lists: Callable[[Any, str], Stage | Run] | None = None,
    folder: Path | None = None,
) -> TrainingData:
    """Return what a section is trained on.

    Without a dataset the pairs' own documents are the corpus. For dev evaluation a tenth is held
    out where ``judged_by_examples`` or without a dataset: of the pairs' queries, by seed
    and text, or of the documents that pairs are made from, by seed and id. Raises ``DataError``
    for fewer than two. ``open_lists`` opens what the examples are searched with; ``folder`` is
    where they keep what took long to make.
    """
    spec = source_of(section)
    place = f"{where}examples"
    if dataset is not None:
        if not judged_by_examples(section, dataset):
            return TrainingData(*splits_of(section, dataset, seed))
        corpus = dataset.with_split(None)
        examples = file_examples(
            spec or {}, corpus, seed, where=place, open_lists=open_lists, folder=folder
        )
        if (spec or {}).get("type") in OF_CORPUS:
            once = not example_source(spec).changes
            return _documents_held_out(examples, corpus, seed, where, section, once=once)
        _, dev = _held_out(examples, dataset.name, seed, where)
        return TrainingData(corpus, dev, _without(examples, dev), held_out=True)
    source = example_source(spec)
    name = ", ".join(path.name for path in source.paths) or "pairs"
    empty = Dataset(MemorySource(name, (), {}), None)
    if source.buffer is not None:
        return TrainingData(empty, empty)
    examples = file_examples(spec or {}, empty, seed, where=place)
    if section.evaluate is None:
        pairs = _collection(examples, name)
        return TrainingData(pairs, pairs, examples)
    train, dev = _held_out(examples, name, seed, where)
    return TrainingData(train, dev, _without(examples, dev), held_out=True)


def check_without_dataset(section: TrainingSection, prefix: str = "") -> None:
    """Raise ``ConfigError`` if something in a section of a config without dataset needs one."""
    missing = f"{prefix}dataset: missing"
    spec = source_of(section)
    if spec is None:
        raise ConfigError(
            f"{missing}: it has the queries and judgements to train on; name one (dataset: NAME), "
            "or give pairs of your own (examples: pairs.csv)"
        )
    kind = str(spec.get("type", "file"))
    if kind in OF_CORPUS:
        raise ConfigError(f"{missing}: examples of type {kind} are made from a corpus; {REMEDY}")
    if section.negatives is not None:
        raise ConfigError(
            f"{missing}: negatives are documents of a corpus; {REMEDY}, or leave negatives out and "
            "put them into the file of examples, as a column"
        )
    if section.evaluate is not None and section.evaluate.by == "judgements":
        raise ConfigError(
            f"{missing}: evaluate.by: judgements: they are a dataset's; {REMEDY}, or leave by out, "
            "and a tenth of the examples is held out"
        )
    for row in example_source(spec).first_rows():
        texts = [row.query.text, *(one.document.text for one in row.documents)]
        if None in texts:
            raise ConfigError(
                f"{missing}: {row.place} has ids whose texts are a corpus's; {REMEDY}"
            )


def _documents_held_out(
    examples: Sequence[Example],
    corpus: Dataset,
    seed: int,
    where: str,
    section: TrainingSection,
    *,
    once: bool,
) -> TrainingData:
    """Hold out the pairs of a tenth of the documents, to be searched for in the whole corpus.

    ``once``: the examples are those of every epoch.
    """
    documents = sorted(
        {example.documents[example.positive].id for example in examples},
        key=lambda name: hashlib.blake2b(f"{seed}\0{name}".encode()).digest(),
    )
    if len(documents) < 2:
        raise DataError(
            f"{where}evaluate: pairs of {plural(len(documents), 'document')}; holding some out for "
            "dev takes two documents at least: leave evaluate out"
        )
    left_out = frozenset(documents[: max(1, round(len(documents) / SHARE))])
    held = [each for each in examples if not each.relevant.isdisjoint(left_out)]
    if len(held) == len(examples):
        raise DataError(
            f"{where}evaluate: each of the {plural(len(examples), 'pair')} has to do with one of "
            f"the documents that are held out for dev (such as {min(left_out)!r}), and none is "
            "left to train on: leave evaluate out, or take examples of another type"
        )
    dev = Dataset.from_memory(
        (),
        {each.query.id: each.query.text for each in held},
        {each.query.id: dict.fromkeys(sorted(each.relevant), 1) for each in held},
        name=corpus.name,
        split="dev",
    )
    dev.corpus = corpus.corpus
    level, role = _role(section)
    log.log(
        level,
        "%sevaluate: %s has no judged dev queries: %s from %s that are not trained on (a tenth, by "
        "seed) %s", where, corpus.name, plural(len(held), "pair"),
        plural(len(left_out), "document"), role,
    )  # fmt: skip
    rest = [each for each in examples if each.relevant.isdisjoint(left_out)] if once else []
    return TrainingData(corpus, dev, rest, held_out=True, left_out=left_out)


def _role(section: TrainingSection) -> tuple[int, str]:
    """Return what dev queries made from the corpus decide, in words, and how loudly to say it."""
    if section.evaluate is not None and section.evaluate.by == "examples":
        return logging.INFO, "choose the model"
    worse = "a model can get better at them and worse at real queries"
    if section.sparsity is not None:
        return logging.WARNING, (
            "show what is learnt, and the last weights are kept, since the start has another "
            f"number of terms: {worse} (by: examples lets them choose)"
        )
    return logging.WARNING, (
        f"show what is learnt, and the start is kept or the smallest of shares: {worse} (by: "
        "examples lets them choose)"
    )


def _held_out(
    examples: Sequence[Example], name: str, seed: int, where: str
) -> tuple[Dataset, Dataset]:
    train, dev = training_splits(_collection(examples, name), seed)
    log.info(
        "%sevaluate: %s of %s are held out of training as dev queries (a tenth, by seed), over the "
        "%s of the pairs", where, f"{len(dev.queries):,}",
        plural(len(dev.queries) + len(train.queries), "query"),
        plural(len(train.corpus), "document"),
    )  # fmt: skip
    return train, dev


def _without(examples: Sequence[Example], dev: Dataset) -> list[Example]:
    return [example for example in examples if example.query.id not in dev.queries]


def _collection(examples: Sequence[Example], name: str) -> Dataset:
    """Return the examples' queries, positives and all their documents as a train split."""
    documents: dict[str, Document] = {}
    queries: dict[str, str] = {}
    qrels: Qrels = {}
    for example in examples:
        queries[example.query.id] = example.query.text
        grades = qrels.setdefault(example.query.id, {})
        for document, label in zip(example.documents, example.labels, strict=True):
            documents.setdefault(document.id, Document(document.id, "", document.text))
            if label > 0:
                grades[document.id] = 1
    return Dataset.from_memory(documents.values(), queries, qrels, name=name, split="train")
