"""Reads vectors from JSON lines, as programs that call embedding services write them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.jsonl import missing_field, read_lines, read_objects
from sluice.retrieval.exchange.dense.arrays import ID_COLUMNS

VECTOR_FIELDS = ("embedding", "vector", "emb")
EXPECTED = '{"id": ..., "embedding": [...]}'


class LineSource:
    """One object a line, or the lines of an OpenAI batch's output; see ``read_dense_vectors``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = sum(1 for _ in read_lines(path))
        self.has_texts, self.dim = False, 0
        for number, value in read_objects(path, EXPECTED):
            self.has_texts = bool(value.keys() & {"title", "text"})
            self.dim = len(_vector(f"{path}:{number}", value))
            break

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document): its ``title``, ``text`` and ``metadata``, where it has them."""
        metadata = MetadataReader()
        for number, value in read_objects(self._path, EXPECTED):
            place = f"{self._path}:{number}"
            title, text = value.get("title") or "", value.get("text") or ""
            if not isinstance(title, str) or not isinstance(text, str):
                raise DataError(f"{place}: 'title' or 'text' is not a text")
            own = value.get("metadata")
            kept = metadata.kept(own if isinstance(own, dict) else {})
            yield place, Document(_name(place, value), title, text, kept)
        metadata.warn(self._path)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the vectors; ``DataError`` for another width than the first one's."""
        block: list[NDArray[Any]] = []
        for number, value in read_objects(self._path, EXPECTED):
            place = f"{self._path}:{number}"
            vector = _vector(place, value)
            if len(vector) != self.dim:
                raise DataError(
                    f"{place}: {len(vector)} values, but {self.dim} in the first line; vectors "
                    "have one width"
                )
            block.append(vector)
            if len(block) == size:
                yield np.stack(block)
                block = []
        if block:
            yield np.stack(block)


def _name(place: str, value: dict[str, Any]) -> str:
    for field in ("custom_id", *ID_COLUMNS) if "response" in value else ID_COLUMNS:
        if field in value:
            return id_text(f"{place}: {field!r}", value[field])
    raise DataError(f"{place}: {missing_field('id', value)}; expected {EXPECTED}")


def _vector(place: str, value: dict[str, Any]) -> NDArray[np.float32]:
    if "response" in value:
        return _numbers(place, _answered(place, value))
    for field in VECTOR_FIELDS:
        if field in value:
            return _numbers(place, value[field])
    raise DataError(f"{place}: {missing_field('embedding', value)}; expected {EXPECTED}")


def _answered(place: str, value: dict[str, Any]) -> Any:
    """Return the embedding of a line of an OpenAI batch's output."""
    try:
        data = value["response"]["body"]["data"]
        entry = data[0]["embedding"]
    except (KeyError, TypeError, IndexError):
        answer = value.get("error") or value["response"]
        raise DataError(
            f"{place}: a request without an embedding ({answer!r:.120}); request it again"
        ) from None
    if len(data) != 1:
        raise DataError(
            f"{place}: {len(data)} embeddings for one custom_id; send one text per request"
        )
    return entry


def _numbers(place: str, values: Any) -> NDArray[np.float32]:
    """Return a vector given as a list of numbers, or as base64 of little-endian float32."""
    try:
        vector = _decoded(values) if isinstance(values, str) else np.array(values)
    except (binascii.Error, TypeError, ValueError, OverflowError):
        vector = np.array(0)
    if vector.ndim != 1 or not len(vector) or vector.dtype.kind not in "fiu":
        raise DataError(f"{place}: the vector is {values!r:.60}; expected a list of numbers")
    with np.errstate(over="ignore"):  # reported as a value that is not finite
        return vector.astype(np.float32)


def _decoded(text: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")
