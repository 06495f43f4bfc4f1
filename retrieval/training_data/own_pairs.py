"""What a training run learns from and is evaluated on: a dataset, or pairs of texts alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import MemorySource, Qrels, find_split
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.example_sources import (
    changes,
    example_files,
    file_examples,
    first_rows,
    source_of,
)
from sluice.retrieval.training_data.files.corpus_examples import splits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.retrieval.config.sections import TrainingSection
    from sluice.training import Example

log = logging.getLogger("sluice")

OF_CORPUS = [name for name in EXAMPLES if name != "file"]
REMEDY = "name the dataset that has it (dataset: NAME, or dataset: {corpus: FILE})"


class TrainingData(NamedTuple):
    """The splits to train and to evaluate on, and the examples that were read to make them.

    ``held_out``: the dev queries are pairs of the examples, which are not trained on, over the
    documents of the pairs.
    """

    train: Dataset
    dev: Dataset
    examples: Sequence[Example] = ()
    held_out: bool = False


def training_data(
    section: TrainingSection, dataset: Dataset | None, seed: int, where: str = ""
) -> TrainingData:
    """Return what a section is trained on.

    Without a dataset the pairs' own documents are the corpus. For dev evaluation a tenth of the
    pairs' queries is held out, by seed and text, where there is no dataset or it has no split to
    take dev queries from. Raises ``DataError`` for fewer than two distinct queries.
    """
    spec = source_of(section)
    place = f"{where}examples"
    if dataset is not None:
        splits = [find_split(name, dataset.splits) for name in ("train", "dev")]
        given = spec is not None and section.examples is not None and not changes(spec)
        if any(splits) or section.evaluate is None or not given:
            return TrainingData(*splits_of(section, dataset, seed))
        corpus = dataset.with_split(None)
        examples = file_examples(spec or {}, corpus, seed, where=place)
        _, dev = _held_out(examples, dataset.name, seed, where)
        return TrainingData(corpus, dev, _without(examples, dev), held_out=True)
    name = ", ".join(path.name for path in example_files(spec)) or "pairs"
    empty = Dataset(MemorySource(name, (), {}), None)
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
    for row in first_rows(spec):
        texts = [row.query.text, *(one.document.text for one in row.documents)]
        if None in texts:
            raise ConfigError(
                f"{missing}: {row.place} has ids whose texts are a corpus's; {REMEDY}"
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
