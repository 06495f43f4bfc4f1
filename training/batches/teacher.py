"""The protocol of a teacher of whole batches: it scores all of their pairs, or gives vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.training.example import Example, Text
from sluice.training.protocol import Side


class BatchTeacher(Protocol):
    """Bi-encoders whose vectors of all training texts are at hand.

    A cross-encoder cannot be one: every query of a batch is scored with every document.
    """

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a score would."""
        ...

    def prepare(self, examples: Sequence[Example]) -> None:
        """Make ready for the texts of these examples, and of those of the first call."""
        ...

    def scores(
        self, queries: Sequence[Text], documents: Sequence[Text]
    ) -> NDArray[np.floating[Any]]:
        """Return ``[B, N]``: every query with every document."""
        ...

    def vectors(self, texts: Sequence[Text], side: Side) -> NDArray[np.floating[Any]]:
        """Return ``[n, dim]``, the vectors of the texts."""
        ...


def vectors_of_texts(
    teacher: BatchTeacher, examples: Sequence[Example]
) -> NDArray[np.floating[Any]]:
    """Return ``[n, dim]``, the vectors of the examples' distinct queries, then documents."""
    queries = {example.query.text: example.query for example in examples}
    documents = {text.text: text for example in examples for text in example.documents}
    both = (teacher.vectors([*queries.values()], "query"),
            teacher.vectors([*documents.values()], "document"))  # fmt: skip
    return np.concatenate(both)
