"""A training example: a query with labelled documents."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sluice.encoders.foundation.errors import DataError

Labels = Literal["binary", "grades", "unit"]


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
    each document the text of a query that it answers (empty where none is known). Examples of
    different ``source`` (the dataset they are from) share no batch. ``negative_queries`` are texts
    of queries that its positives do not answer: negatives on the side of the query.

    Raises ``DataError`` without a positive, or labels, scores or answered queries differ in
    number from the documents.
    """

    query: Text
    documents: tuple[Text, ...]
    labels: tuple[float, ...] = ()
    relevant: frozenset[str] = frozenset()
    scores: tuple[float, ...] = ()
    weight: float = 1.0
    answered: tuple[str, ...] = ()
    source: str = ""
    negative_queries: tuple[str, ...] = ()

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
    *,
    each: int = 1,
    labels: Labels = "binary",
    answered: Mapping[str, str] | None = None,
    seed: int = 13,
) -> Iterator[Example]:
    """Yield one example for each (query, positive) pair, with the query's negatives beside it.

    With ``each`` above 1 an example holds up to that many positives of its query, dealt out at
    random by ``seed`` and query id, every positive once. Positives are labelled 1 (``binary``), by
    their ``grades``, or by the grade as a share of the largest there is (``unit``). ``answered``
    gives by document id the id of another query that it answers.

    Queries, positives and texts go by id. A document that ``positives`` names with a grade of 0 or
    below is not a positive. Raises ``DataError`` for a query or document without text.
    """
    top = max((g for grades in positives.values() for g in grades.values()), default=1.0)
    scale = {"binary": None, "grades": 1.0, "unit": 1.0 / top if top > 0 else 1.0}[labels]
    for query_id, grades in positives.items():
        order = [doc_id for doc_id, grade in grades.items() if grade > 0]  # the qrels' own
        if not order:
            continue
        relevant = frozenset(order)
        query = Text(query_id, _text(queries, query_id, "query"))
        hard = tuple(
            Text(doc_id, _text(texts, doc_id, "document"))
            for doc_id in (negatives or {}).get(query_id, ())
        )
        if each > 1:
            random.Random(f"{seed}:{query_id}").shuffle(order)
        for start in range(0, len(order), each):
            chosen = order[start : start + each]
            own = tuple(Text(doc_id, _text(texts, doc_id, "document")) for doc_id in chosen)
            graded = [1.0 if scale is None else grades[doc_id] * scale for doc_id in chosen]
            documents = (*own, *hard)
            yield Example(
                query,
                documents,
                (*graded, *(0.0 for _ in hard)),
                relevant,
                answered=_answered(documents, query_id, answered, queries),
            )


def _answered(
    documents: Sequence[Text],
    query_id: str,
    answered: Mapping[str, str] | None,
    queries: Mapping[str, str],
) -> tuple[str, ...]:
    if answered is None:
        return ()
    others = [answered.get(document.id, query_id) for document in documents]
    return tuple("" if other == query_id else queries.get(other, "") for other in others)


def _text(texts: Mapping[str, str], key: str, kind: str) -> str:
    try:
        return texts[key]
    except KeyError:
        raise DataError(
            f"{kind} {key!r}: named in the training data, but its text is missing"
        ) from None
