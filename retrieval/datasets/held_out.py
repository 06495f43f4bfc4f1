"""Makes a dev split for collections that have none: a tenth of train, held out of training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import same_text_key
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.datasets.source import Places, Qrels, Source
from sluice.retrieval.documents.document import Document

SHARE = 10  # one query in so many becomes dev


class HeldOutSource:
    """Another source whose ``train`` is split into ``train`` and ``dev``.

    A query's side depends on the seed and its text alone, so equal texts are never on both sides
    and the order of the files does not matter. Judged queries without text stay in train.
    """

    def __init__(self, source: Source, seed: int) -> None:
        self._source = source
        self._seed = seed
        self.name = source.name

    def splits(self) -> list[str]:
        """Return the other source's splits and ``dev``."""
        return [*self._source.splits(), "dev"]

    def places(self, split: str) -> Places:
        """Return the other source's places; those of ``dev`` are those of ``train``."""
        return self._source.places(_original(split))

    def documents(self) -> Iterator[Document]:
        """Stream the corpus."""
        return self._source.documents()

    def document_count(self) -> int | None:
        """Return the other source's count."""
        return self._source.document_count()

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream the queries of the split's original."""
        return self._source.queries(_original(split))

    def qrels(self, split: str) -> Qrels:
        """Return the split's judgements; those of ``train`` lack the held-out queries."""
        qrels = self._source.qrels(_original(split))
        if split not in ("train", "dev"):
            return qrels
        return {
            name: judged
            for name, judged in qrels.items()
            if (name in self._held_out) == (split == "dev")
        }

    @cached_property
    def _held_out(self) -> frozenset[str]:
        qrels = self._source.qrels("train")
        by_key: dict[bytes, list[str]] = {}
        for name, text in self._source.queries("train"):
            if name in qrels:
                by_key.setdefault(self._key(text), []).append(name)
        if len(by_key) < 2:
            raise DataError(
                f"{self.places('train').qrels}: {plural(len(by_key), 'distinct judged query')}; "
                "holding out a dev split takes at least 2: provide a dev split or more queries"
            )
        keys = sorted(by_key)
        count = max(1, round(len(keys) / SHARE))
        return frozenset(name for key in keys[:count] for name in by_key[key])

    def _key(self, text: str) -> bytes:
        seeded = f"{self._seed}\0{same_text_key(text)}"
        return hashlib.blake2b(seeded.encode(), digest_size=16).digest()


def _original(split: str) -> str:
    return "train" if split == "dev" else split
