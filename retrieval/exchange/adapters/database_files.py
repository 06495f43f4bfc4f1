"""What every database's files are made of: a shape, records, queries, and a class that writes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.documents.document import Document

MOST_BYTES = 1 << 24  # of a file: clusters refuse requests of 100 MB, and advise 5 to 15
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
        """Write ``documents-00001`` and on; return how many documents there were.

        A document that is larger than a file may be has one of its own. Without documents there
        is one file, and none in it.
        """
        begin, between, end = (part.encode() for part in self.frame)
        count = 0
        for number, part in enumerate(self._parts(records, len(begin), len(between)), 1):
            path = folder / f"documents-{number:05}{self.ending}"
            path.write_bytes(begin + between.join(part) + end)
            count += len(part)
        return count

    def _parts(self, records: Iterable[Record], begin: int, between: int) -> Iterator[list[bytes]]:
        part, size = list[bytes](), 0
        for record in records:
            data = self.entry(record).encode("utf-8")
            if part and size + len(data) > MOST_BYTES:
                yield part
                part, size = [], 0
            size += len(data) + (between if part else begin)
            part.append(data)
        yield part


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
