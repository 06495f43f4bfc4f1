"""Finds documents with the same text under different ids, by keys of eight bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

from sluice.encoders.foundation.input.bounded import same_text_key

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
