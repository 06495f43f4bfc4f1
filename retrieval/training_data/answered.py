"""Queries that negatives answer, from judgements, examples and files: what ``clp`` looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sluice.encoders.foundation.input.bounded import same_text_key
from sluice.retrieval.training_data.example_sources import file_examples

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example

ENOUGH = 2  # queries kept of a document: one of them may be the example's own


class AnsweredQueries:
    """The first queries that each document answers, by its id and by its text."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[tuple[str, str]]] = {}
        self._by_text: dict[str, list[tuple[str, str]]] = {}

    def add(self, examples: Iterable[Example]) -> None:
        """Note the queries that the examples' positives answer."""
        for example in examples:
            named = example.query.id, example.query.text
            for document, label in zip(example.documents, example.labels, strict=True):
                if label > 0:
                    _note(self._by_id.setdefault(document.id, []), named)
                    _note(self._by_text.setdefault(same_text_key(document.text), []), named)

    def add_judgements(self, dataset: Dataset) -> None:
        """Note the queries of a split that its relevant documents answer."""
        if dataset.split is None:
            return
        for query, grades in dataset.qrels.items():
            text = dataset.queries.get(query)
            for document, grade in grades.items():
                if text is not None and grade > 0:
                    _note(self._by_id.setdefault(document, []), (query, text))

    def of(self, example: Example, place: int) -> str:
        """Return another query that one of an example's documents answers; empty without one."""
        document = example.documents[place]
        known = self._by_id.get(document.id, [])
        known = [*known, *self._by_text.get(same_text_key(document.text), [])]
        own = same_text_key(example.query.text)
        for query, text in known:
            if query != example.query.id and same_text_key(text) != own:
                return text
        return ""


def _note(queries: list[tuple[str, str]], named: tuple[str, str]) -> None:
    if len(queries) < ENOUGH and named not in queries:
        queries.append(named)


def with_answered(
    examples: Sequence[Example], dataset: Dataset, files: Sequence[str], seed: int, where: str
) -> list[Example]:
    """Return the examples with a query for every negative that is known to answer one.

    Looked for in what the examples bring, then in their positives, the dataset's judgements and the
    ``files`` of pairs, in this order.
    """
    known = AnsweredQueries()
    known.add(examples)
    known.add_judgements(dataset)
    if files:
        known.add(file_examples({"type": "file", "file": list(files)}, dataset, seed, where=where))
    extended = []
    for example in examples:
        own = example.answered or ("",) * len(example.documents)
        answered = tuple(
            text or ("" if label > 0 else known.of(example, place))
            for place, (text, label) in enumerate(zip(own, example.labels, strict=True))
        )
        extended.append(replace(example, answered=answered if any(answered) else ()))
    return extended
