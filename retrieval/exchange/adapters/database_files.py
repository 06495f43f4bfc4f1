"""What every database's files are made of: a shape, records, queries, and a class that writes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.documents.document import Document

MOST_BYTES = 1 << 24  # of a file: clusters refuse requests of 100 MB, and advise 5 to 15


class Parts:
    """``documents-00001`` and on: each begins, separates and ends its documents as ``frame`` says.

    A document that is larger than a file may be has one of its own. Without documents there is
    one file, and none in it.
    """

    def __init__(
        self, folder: Path, ending: str, frame: tuple[str, str, str], most: int | None = None
    ) -> None:
        self._folder, self._ending = folder, ending
        self._begin, self._between, self._end = (part.encode() for part in frame)
        self._most = MOST_BYTES if most is None else most
        self._files = 0
        self._size = 0
        self._stream: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def add(self, entry: str) -> None:
        """Write one document's lines."""
        data = entry.encode("utf-8")
        if self._stream is not None and self._size + len(data) > self._most:
            self._close()
        if self._stream is None:
            self._write(self._next(), self._begin + data)
        else:
            self._write(self._stream, self._between + data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._files:
            self._write(self._next(), self._begin)
        self._close()

    def _next(self) -> IO[bytes]:
        self._files += 1
        path = self._folder / f"documents-{self._files:05}{self._ending}"
        self._stream = self._open.enter_context(path.open("wb"))
        return self._stream

    def _write(self, stream: IO[bytes], data: bytes) -> None:
        stream.write(data)
        self._size += len(data)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.write(self._end)
        self._open.close()
        self._stream, self._size = None, 0


Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """What all documents of an export have."""

    dim: int = 0  # of their vectors; 0: they have none
    metric: str = "ip"  # of these, or "l2"; cosine is the ip of vectors of length 1
    largest: float | None = None  # weight of a term; None: they have no terms
    idf: bool = False  # whether BM25's is in the weights

    @property
    def terms(self) -> bool:
        """Whether they have weights of terms."""
        return self.largest is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of query: ``dense``, ``sparse``."""
        return ("dense",) * bool(self.dim) + ("sparse",) * self.terms


class Record(NamedTuple):
    """One document as it is written."""

    document: Document
    vector: NDArray[np.float32] | None = None
    terms: Weights | None = None


class Form(ABC):
    """The files of one kind of database.

    ``kind`` is ``dense`` or ``sparse`` below, and a query the value of that kind: a list of
    numbers, or weights by term.
    """

    name: ClassVar[str]
    ending: ClassVar[str] = ".jsonl"  # of the files of documents
    frame: ClassVar[tuple[str, str, str]] = ("", "", "")  # around and between a file's documents
    takes_terms: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.left_out = 0  # weights that the database cannot hold
        self.replaced = 0  # characters that the database cannot hold

    @abstractmethod
    def files(self) -> Mapping[str, str]:
        """Return the texts of the other files by path: settings, and how to load all this."""

    @abstractmethod
    def entry(self, record: Record) -> str:
        """Return a document's lines; ``DataError`` for an id the database cannot hold."""

    @abstractmethod
    def request(self, kind: str, value: Any, k: int | str) -> dict[str, Any]:
        """Return the body of a search for the ``k`` best."""

    def template(self, kind: str) -> str:
        """Return a request's body with ``{{query}}`` and ``{{size}}`` in the places of both."""
        body = json.dumps(self.request(kind, "{{query}}", "{{size}}"), indent=2)
        return body.replace('"{{query}}"', "{{query}}").replace('"{{size}}"', "{{size}}") + "\n"

    def write(self, folder: Path, records: Iterable[Record]) -> int:
        """Write the documents' files; return how many documents there were."""
        count = 0
        with Parts(folder, self.ending, self.frame) as parts:
            for record in records:
                parts.add(self.entry(record))
                count += 1
        return count


def numbers(vector: NDArray[np.float32]) -> str:
    """Return a JSON list of float32 numbers, each in digits that give it back exactly."""
    return "[" + ",".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"


def weights(terms: Iterable[tuple[str, float]]) -> str:
    """Return a JSON object of float32 weights, each in digits that give it back exactly."""
    return "{" + ",".join(f"{text(term)}:{weight:.9g}" for term, weight in terms) + "}"


def object_of(members: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object of members whose values are JSON already."""
    return "{" + ",".join(f"{text(name)}:{value}" for name, value in members) + "}"


def text(value: object) -> str:
    """Return a value as JSON, beyond ASCII as it is."""
    return json.dumps(value, ensure_ascii=False)


def flat_pairs(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key with each of its values, as texts; numbers and booleans as JSON has them."""
    for key, value in metadata.items():
        values: Sequence[Any] = (
            value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        )
        for each in values:
            if each is not None:
                yield key, each if isinstance(each, str) else json.dumps(each)
