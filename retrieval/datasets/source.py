"""The protocol of dataset sources, the corpus as a stream, the source in memory, and dev splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import Document
from sluice.retrieval.runs.trec_files import Qrels as Qrels

DEV_NAMES = ("dev", "validation", "valid", "val")  # one split, as different collections call it


class Places(NamedTuple):
    """Where the parts of a dataset are, as messages name them."""

    corpus: str
    queries: str
    qrels: str


class Source(Protocol):
    """What a kind of dataset (a folder, a hub, a library) provides, reading only what is needed."""

    @property
    def name(self) -> str:
        """The short name that reports use."""

    def splits(self) -> list[str]:
        """Return the names of the splits that have judgements."""

    def places(self, split: str) -> Places:
        """Return where the parts are."""

    def documents(self) -> Iterator[Document]:
        """Stream the corpus from its beginning."""

    def document_count(self) -> int | None:
        """Return the corpus size if that is cheap to know."""

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Stream (id, text) of at least the split's queries."""

    def qrels(self, split: str) -> Qrels:
        """Return the split's judgements, not empty."""


class Corpus:
    """The documents as a stream that can be read again; never all in memory.

    ``len`` works where the size is known: at once for most sources, after one full pass for all
    (before, it raises ``TypeError``; ``size`` is None then).
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._passed: int | None = None

    def __iter__(self) -> Iterator[Document]:
        count = 0
        for count, document in enumerate(self._source.documents(), 1):  # noqa: B007
            yield document
        self._passed = count

    @property
    def size(self) -> int | None:
        """The number of documents, or None where that takes a pass."""
        return self._source.document_count() if self._passed is None else self._passed

    def __len__(self) -> int:
        size = self.size
        if size is None:
            raise TypeError(f"the corpus of {self._source.name} has no known length before a pass")
        return size

    def __bool__(self) -> bool:
        return True  # a corpus without documents is an error when it is read


def find_split(name: str, splits: Iterable[str]) -> str | None:
    """Return the split called ``name``; ``dev`` and ``validation`` are the same."""
    known = list(splits)
    alike = DEV_NAMES if name in DEV_NAMES else ()
    return next((each for each in [name, *alike] if each in known), None)


Split = tuple[Mapping[str, str], Mapping[str, Mapping[str, int]]]


class MemorySource:
    """Documents, and for each split its queries and qrels."""

    def __init__(
        self, name: str, documents: Iterable[Document], splits: Mapping[str, Split]
    ) -> None:
        self.name = name
        self._documents = list(documents)
        self._splits = dict(splits)

    def splits(self) -> list[str]:
        """Return the names of the splits."""
        return list(self._splits)

    def places(self, split: str) -> Places:
        """Name the parts, which have no files."""
        return Places(
            f"{self.name}: corpus", f"{self.name}: queries", f"{self.name}: qrels of {split}"
        )

    def documents(self) -> Iterator[Document]:
        """Yield the documents."""
        return iter(self._documents)

    def document_count(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    def queries(self, split: str) -> Iterable[tuple[str, str]]:
        """Return the split's queries."""
        return self._splits[split][0].items()

    def qrels(self, split: str) -> Qrels:
        """Return a copy of the split's judgements."""
        return {name: dict(judged) for name, judged in self._splits[split][1].items()}


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
