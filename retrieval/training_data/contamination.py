"""Finds tested queries and their relevant documents in training texts, by word n-grams."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sluice.encoders.foundation.bounded_input import same_text_key

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example

log = logging.getLogger("sluice")

LONG: Final = 13  # words of an n-gram (Brown et al. 2020, GPT-3, appendix C)
SHORT: Final = 8  # a query of fewer words says too little to be looked for inside other texts
SHOWN: Final = 3  # examples of a report

_WORD: Final = re.compile(r"\w+")
Words = tuple[str, ...]


class Found(NamedTuple):
    """A tested query, and the training text that holds it or a part of it."""

    query: str
    text: str
    in_text: str


@dataclass(frozen=True, slots=True)
class Contamination:
    """How many tested queries training texts hold, and how many of their relevant documents.

    ``queries`` are tested, ``in_queries`` of these are in training queries and ``in_documents`` in
    positive documents. ``documents`` are relevant to tested queries, ``trained`` of these are
    positives of training with the same text. ``examples`` are the first tested queries found in
    training queries or, where there are none, in documents.
    """

    queries: int = 0
    in_queries: int = 0
    in_documents: int = 0
    documents: int = 0
    trained: int = 0
    examples: tuple[Found, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.queries:>7,}  tested queries",
            f"{self.in_queries:>7,}  of them in training queries",
            f"{self.in_documents:>7,}  of them in positive documents",
            f"{self.documents:>7,}  documents relevant to them",
            f"{self.trained:>7,}  of these are positives of training",
            *(f"{each.query}: {each.text}\n  in: {_short(each.in_text)}" for each in self.examples),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {**asdict(self), "examples": [list(each) for each in self.examples]}


class QueryNgrams:
    """The n-grams of tested queries, to be looked for in texts.

    A query is in a text that has 13 of its words in a row; one of 8 to 12 words if all are in a
    row. A shorter one is only the same as a text. Words are compared without case and marks.
    Looking through a text takes time in proportion to its length, whatever the number of queries.
    """

    def __init__(self, queries: Mapping[str, str]) -> None:
        self._whole: dict[Words, list[str]] = {}
        self._begun: dict[Words, list[tuple[Words, str]]] = {}  # by the first SHORT words
        for name, text in queries.items():
            words = words_of(text)
            if not words:
                continue
            self._whole.setdefault(words, []).append(name)
            if len(words) >= SHORT:
                for gram in {words} if len(words) < LONG else set(_grams(words, LONG)):
                    self._begun.setdefault(gram[:SHORT], []).append((gram, name))

    def same_as(self, text: str) -> list[str]:
        """Return the queries that have the words of a text and no others."""
        return self._whole.get(words_of(text), [])

    def found_in(self, text: str) -> set[str]:
        """Return the queries that are in a text, see the class."""
        words = words_of(text)
        return {
            name
            for place, gram in enumerate(_grams(words, SHORT))
            if gram in self._begun
            for whole, name in self._begun[gram]
            if words[place : place + len(whole)] == whole
        }


def words_of(text: str) -> Words:
    """Return the words of a text, without case and marks."""
    return tuple(_WORD.findall(same_text_key(text)))


def _grams(words: Words, length: int) -> Iterable[Words]:
    return zip(*(itertools.islice(words, start, None) for start in range(length)), strict=False)


def contamination_of(examples: Iterable[Example], tested: Sequence[Dataset]) -> Contamination:
    """Return what training examples hold of tested queries and their relevant documents.

    Every text of the examples is looked through once, and each tested corpus is read once for the
    texts of relevant documents.
    """
    if not tested:
        return Contamination()
    texts = {(n, query): text for n, d in enumerate(tested) for query, text in d.queries.items()}
    names = {f"{n}:{query}": (n, query) for n, query in texts}
    known = QueryNgrams({name: texts[key] for name, key in names.items()})
    in_queries: dict[str, str] = {}
    in_documents: dict[str, str] = {}
    seen: set[int] = set()  # hashes: the examples may not fit in memory
    answered: set[int] = set()
    for example in examples:
        positives = zip(example.documents, example.labels, strict=True)
        for found, texts_of in (
            (in_queries, [example.query.text, *example.negative_queries]),
            (in_documents, [document.text for document, label in positives if label > 0]),
        ):
            for text in texts_of:
                if found is in_documents:
                    answered.add(hash(same_text_key(text)))
                key = hash((found is in_documents, text))
                if key not in seen:
                    seen.add(key)
                    for name in {*known.same_as(text), *known.found_in(text)}:
                        found.setdefault(name, text)
    relevant, trained = _relevant(tested, answered)
    shown = list((in_queries or in_documents).items())[:SHOWN]
    return Contamination(
        len(texts), len(in_queries), len(in_documents), relevant, trained,
        tuple(Found(names[name][1], texts[names[name]], text) for name, text in shown),
    )  # fmt: skip


def warn_of(report: Contamination, where: str) -> None:
    """Warn of tested queries in training queries, with the first of them."""
    if report.in_queries:
        first = report.examples[0]
        log.warning(
            "%s: training queries hold %s of %s tested queries: %s (%r) is in %r; results on them "
            "say less than they seem to", where, f"{report.in_queries:,}", f"{report.queries:,}",
            first.query, first.text, _short(first.in_text),
        )  # fmt: skip


def training_examples(source: str) -> list[Example]:
    """Return the examples of a training file, or of a dataset's train split."""
    from sluice.retrieval.datasets.dataset import Dataset, load_dataset
    from sluice.retrieval.datasets.source import MemorySource
    from sluice.retrieval.training_data.files.examples import FileExamples
    from sluice.training import pair_examples

    path = Path(source)
    if path.is_file():
        return FileExamples(source).examples(Dataset(MemorySource(path.name, (), {}), None), 0)
    train = load_dataset(source, "train")
    relevant = {name for grades in train.qrels.values() for name, g in grades.items() if g > 0}
    texts = {each.id: each.full_text for each in train.corpus if each.id in relevant}
    qrels = {
        query: {name: grade for name, grade in grades.items() if name in texts}
        for query, grades in train.qrels.items()
        if query in train.queries
    }
    return list(pair_examples(train.queries, qrels, texts))


def _relevant(tested: Sequence[Dataset], keys: Collection[int]) -> tuple[int, int]:
    """Count the documents relevant to tested queries, and those whose text has one of ``keys``."""
    total = trained = 0
    for dataset in tested:
        relevant = {
            name for grades in dataset.qrels.values() for name, grade in grades.items() if grade > 0
        }
        total += len(relevant)
        for document in dataset.corpus:
            if document.id in relevant:
                relevant.discard(document.id)
                trained += hash(same_text_key(document.full_text)) in keys
            if not relevant:
                break
    return total, trained


def _short(text: str, length: int = 120) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
