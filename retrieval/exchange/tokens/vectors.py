"""Reads and writes token vectors with their ids as streams: npz and parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct

CHUNK = 512  # texts that are read or written at a time
ROOM = "sluice.retrieval.exchange.tokens"
# Form -> what opens a file of the form, and what writes one.
FORMS: dict[str, tuple[str, str]] = {
    "npz": (f"{ROOM}.npz:ArchiveSource", f"{ROOM}.npz:write_file"),
    "parquet": (f"{ROOM}.parquet:NestedSource", f"{ROOM}.parquet:write_file"),
}


class TokenSource(Protocol):
    """What a form's module gives: how many texts, the documents, and their vectors in blocks."""

    rows: int
    dim: int  # 0 where an empty file does not say
    has_texts: bool

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place in the file, document) in order, from the start at each call."""
        ...

    def blocks(self, size: int) -> Iterator[TokenVectors]:
        """Yield the vectors of at most ``size`` texts together, in order."""
        ...


class TokenFile:
    """Token vectors in a file; ``len`` is how many texts, ``dim`` how wide a vector is.

    ``documents`` and ``chunks`` stream, as often as they are called.
    """

    def __init__(self, path: Path, form: str, source: TokenSource) -> None:
        self.path, self.form = path, form
        self._source = source
        self.dim, self.has_texts = source.dim, source.has_texts

    def __len__(self) -> int:
        return self._source.rows

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order, without texts where the file has none.

        ``DataError`` for an id that occurs twice, and for more or fewer ids than texts.
        """
        count = 0
        for document in distinct(self._source.documents):
            count += 1
            yield document
        if count != len(self):
            raise DataError(
                f"{self.path}: the vectors of {len(self):,} texts for {count:,} ids; expected one "
                "id for each"
            )

    def ids(self) -> Iterator[str]:
        """Yield the ids in order."""
        return (document.id for document in self.documents())

    def chunks(self) -> Iterator[TokenVectors]:
        """Yield the vectors in order, of a few hundred texts at a time.

        ``DataError`` for values that are not finite in float32.
        """
        done = 0
        for block in self._source.blocks(CHUNK):
            yield finite(block, str(self.path), done)
            done += len(block)
        if done != len(self):
            raise DataError(f"{self.path}: it has {done:,} texts, but declares {len(self):,}")


def read_token_vectors(path: str | Path, form: str) -> TokenFile:
    """Open token vectors with ids; ``DataError`` for a file that holds none.

    * ``npz``: arrays ``values`` (floats ``[tokens, dim]``, all texts end to end), ``bounds`` (whole
      numbers ``[n + 1]``: text i has the rows from ``bounds[i]`` to the next) and ``ids`` (texts or
      whole numbers ``[n]``). Arrays of objects are refused, because reading them would run code.
    * ``parquet``: a file or a folder of files with a column ``id`` and a column of lists of vectors
      ``embedding``, ``vector`` or ``emb``; ``title`` and ``text`` are kept, other columns as
      metadata.
    """
    file = Path(path)
    return TokenFile(file, form, resolve(FORMS[_known(form)][0])(file))


def write_token_vectors(
    path: str | Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[TokenVectors],
    form: str,
    *,
    dim: int = 0,
) -> int:
    """Write vectors (``TokenVectors``, one after the other) and their ids; return how many texts.

    ``parquet`` keeps titles and texts if ``entries`` are documents. Values are float32. An existing
    file is replaced once the new one is complete. ``dim`` is the width of a file without vectors.
    """
    writer = resolve(FORMS[_known(form)][1])
    written: int = writer(Path(path), entries, _checked(chunks, dim), dim)
    return written


def holds_token_vectors(path: Path, form: str) -> bool:
    """Return whether a file of this form holds several vectors a text: npz, or nested parquet."""
    if form != "parquet":
        return form in FORMS
    from sluice.retrieval.exchange.dense.parquet import is_nested_file

    return is_nested_file(path)


def finite(vectors: TokenVectors, where: str, first: int) -> TokenVectors:
    """Return vectors whose values are finite; ``DataError`` names the first text of others."""
    if np.isfinite(vectors.values.sum()):
        return vectors
    wrong = np.flatnonzero(~np.isfinite(vectors.values).all(axis=1))
    if not len(wrong):  # only their sum is beyond float32
        return vectors
    text = int(np.searchsorted(vectors.bounds, wrong[0], side="right")) - 1
    raise DataError(
        f"{where}: text {first + text:,} (from 0) has a vector with values that are infinite or no "
        "numbers in float32; expected finite ones"
    )


def _checked(chunks: Iterable[TokenVectors], dim: int) -> Iterator[TokenVectors]:
    done = 0
    for chunk in chunks:
        if chunk.dim != dim:
            raise DataError(
                f"vectors: {chunk.dim} dimensions from text {done:,} on, expected {dim}"
            )
        yield finite(chunk, "vectors", done)
        done += len(chunk)


def _known(form: str) -> str:
    if form not in FORMS:
        raise ConfigError(
            f"format: {form!r}; token vectors are read and written as {', '.join(FORMS)}"
            f"{suggest(form, FORMS)}"
        )
    return form
