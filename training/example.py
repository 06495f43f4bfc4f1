"""What training learns from: a query with labelled documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from encoders.errors import DataError


class Text(NamedTuple):
    """A text and the id it goes by in its collection."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """One query and its documents: positives (label above 0) and hard negatives (label 0).

    Without ``labels`` the first document is the positive and the others are negatives. ``relevant``
    holds the ids of *all* documents known to be relevant to the query, in the batch or not: they
    are never counted as negatives, whichever example brought them. ``scores`` are a teacher's, one
    a document (NaN where it has none), ``weight`` is the example's own, and ``answered`` holds for
    each document the text of a query that it answers (empty where none is known).

    Raises ``DataError`` when there is no positive, or labels, scores or answered queries differ in
    number from the documents.
    """

    query: Text
    documents: tuple[Text, ...]
    labels: tuple[float, ...] = ()
    relevant: frozenset[str] = frozenset()
    scores: tuple[float, ...] = ()
    weight: float = 1.0
    answered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.documents:
            raise DataError(f"query {self.query.id!r}: an example needs a positive document")
        if not self.labels:
            object.__setattr__(self, "labels", (1.0,) + (0.0,) * (len(self.documents) - 1))
        if len(self.labels) != len(self.documents):
            raise DataError(
                f"query {self.query.id!r}: {len(self.documents)} documents but "
                f"{len(self.labels)} labels"
            )
        for name, values in (("scores", self.scores), ("answered", self.answered)):
            if values and len(values) != len(self.documents):
                raise DataError(
                    f"query {self.query.id!r}: {len(self.documents)} documents but "
                    f"{len(values)} {name}"
                )
        if not any(label > 0 for label in self.labels):
            raise DataError(
                f"query {self.query.id!r}: no document has a label above 0; drop the query or "
                "give it a positive"
            )

    @property
    def positive(self) -> int:
        """Position of the first positive document."""
        return next(place for place, label in enumerate(self.labels) if label > 0)


def pair_examples(
    queries: Mapping[str, str],
    positives: Mapping[str, Mapping[str, float]],
    texts: Mapping[str, str],
    negatives: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Example]:
    """Yield one example for each (query, positive) pair, with the query's negatives beside it.

    Queries, positives and texts go by id. A document that ``positives`` names with a grade of 0 or
    below is not a positive. Raises ``DataError`` for a query or document without text.
    """
    for query_id, grades in positives.items():
        relevant = frozenset(doc_id for doc_id, grade in grades.items() if grade > 0)
        if not relevant:
            continue
        query = Text(query_id, _text(queries, query_id, "query"))
        hard = tuple(
            Text(doc_id, _text(texts, doc_id, "document"))
            for doc_id in (negatives or {}).get(query_id, ())
        )
        for doc_id in grades:  # the qrels' own order, not the set's
            if doc_id in relevant:
                positive = Text(doc_id, _text(texts, doc_id, "document"))
                yield Example(query, (positive, *hard), relevant=relevant)


def _text(texts: Mapping[str, str], key: str, kind: str) -> str:
    try:
        return texts[key]
    except KeyError:
        raise DataError(
            f"{kind} {key!r}: the training data names it but no text was given for it"
        ) from None
