"""What finds false negatives: judges, and texts that are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import DataError

TextSource = Mapping[str, str] | Callable[[list[str]], Mapping[str, str]]
"""Texts by document id, or a function that returns those of the ids it is given."""


def text_key(text: str) -> int:
    """Return 64 bits of a text's ``same_text_key``, as a number."""
    digest = hashlib.blake2b(same_text_key(text).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def texts_of(source: TextSource, documents: list[str]) -> Mapping[str, str]:
    """Return the texts of the documents that have one."""
    return source(documents) if callable(source) else source


EMPTY = text_key("")


class TextKeys:
    """Keys of documents' texts, each text read once, however many queries it is a candidate of."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._keys: dict[str, int | None] = {}

    def read(self, documents: Iterable[str]) -> None:
        """Read the texts of the documents that are not known yet, all at once."""
        new = [doc for doc in dict.fromkeys(documents) if doc not in self._keys]
        if new:
            texts = texts_of(self._source, new)
            for doc in new:
                text = texts.get(doc)
                self._keys[doc] = None if text is None else text_key(text)

    def __getitem__(self, document: str) -> int | None:
        """Return the key of a document's text, None if it has no text."""
        if document not in self._keys:
            self.read([document])
        return self._keys[document]


class JudgedPair(NamedTuple):
    """A query and a document, each by id and text."""

    query_id: str
    query: str
    document_id: str
    document: str


class Judge(Protocol):
    """A cross-encoder, an ensemble, a run of scores, a table of labels: higher is more relevant.

    ``name`` is what reports call it. With ``needs_texts`` False the pairs' texts may be empty.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def needs_texts(self) -> bool:
        """Whether it reads the texts; otherwise ids are enough."""
        ...

    def scores(self, pairs: Sequence[JudgedPair]) -> Sequence[float] | NDArray[np.floating]:
        """Return one number for each pair, NaN for a pair that it cannot judge."""
        ...


def judged(judge: Judge, pairs: Sequence[JudgedPair]) -> NDArray[np.float64]:
    """Return a judge's scores ``[n]``, checked: one for each pair, NaN where it has none.

    Raises ``DataError`` for another number of scores, or an infinite one.
    """
    scores = np.asarray(judge.scores(pairs) if pairs else [], np.float64)
    if scores.shape != (len(pairs),):
        raise DataError(
            f"judge {judge.name}: scores of shape {scores.shape} for {len(pairs)} pairs; expected "
            "one for each"
        )
    infinite = np.flatnonzero(np.isinf(scores))
    if len(infinite):
        pair = pairs[int(infinite[0])]
        raise DataError(
            f"judge {judge.name}: score {scores[infinite[0]]} for query {pair.query_id!r} and "
            f"document {pair.document_id!r}; expected finite numbers, or NaN for no judgement"
        )
    return scores
