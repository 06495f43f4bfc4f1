"""Turns what people have into documents: one function for every kind of source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.fields import Asked
from sluice.retrieval.documents.readers.frames import documents_in_frame
from sluice.retrieval.documents.readers.memory import EXPECTED, documents_by_id, documents_in


def as_documents(
    source: Any,
    *,
    id: str | None = None,
    text: str | Sequence[str] | None = None,
    title: str | None = None,
    metadata: str | Sequence[str] | None = None,
) -> Documents:
    """Return the documents of a source, to be streamed as often as needed.

    A source is a list of texts (their ids are 0 to n - 1), of (id, text) pairs, of mappings or of
    ``Document``; a mapping of ids to texts; a frame of pandas or polars, an Arrow table, or a
    dataset of the ``datasets`` library. An iterator is read once.

    ``id``, ``text``, ``title`` and ``metadata`` name columns, ``text`` and ``metadata`` also lists
    of them; without, columns are chosen by their usual names, and ``described`` says which.
    ``id="row"`` numbers the rows, ``metadata=[]`` leaves all metadata out.

    Raises ``DataError`` where no column or more than one could be the text, and when documents are
    read, for a row that is none and for an id that occurs twice.
    """
    asked = Asked.of(id, text, title, metadata)
    if isinstance(source, Documents):
        if asked.anything:
            raise ConfigError("documents: their columns are chosen already; pass the source itself")
        return source
    if isinstance(source, str | Path):
        raise DataError(f"{source}: no such file or folder; pass a text as a list: [text]")
    if isinstance(source, Document | bytes):
        raise DataError(f"{source!r:.80}: one item; expected several: pass a list")
    frame = documents_in_frame(source, asked)
    if frame is not None:
        return frame
    if isinstance(source, Mapping):
        return documents_by_id(source, asked)
    if isinstance(source, Iterable):
        return documents_in(source, asked)
    raise DataError(f"{source!r:.80}: cannot be read; {EXPECTED}, in a list, a file or a frame")
