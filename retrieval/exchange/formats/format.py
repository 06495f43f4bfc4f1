"""What is known of a format: its vectors, what opens its files, what writes them, and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Kind: TypeAlias = Literal["dense", "tokens", "sparse"]  # of vectors, as indexes hold them
Entries: TypeAlias = Iterable[str] | Iterable[Document]
Column: TypeAlias = Callable[[str], int]  # a term to its column; a new term gets the next one


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files for one kind of vectors.

    ``source`` opens a path; of ``several`` files, a list of them. It has ``documents()``, pairs of
    a place and a document. Of dense and token vectors it has ``rows``, ``dim`` (0 where an empty
    file does not say), ``has_texts`` and ``blocks(size)``, of sparse ones ``vectors(column)``.
    ``write`` takes a path, ids or documents, vectors in parts and their width, or of sparse ones
    documents, terms and weights in parts; None: the format is only read.

    ``endings`` are those of its files' names, ``inside`` is what a folder of the format holds.
    ``texts``: titles and texts are written too. ``described``: ``write`` takes a description.
    Weights in whole numbers are multiplied by ``scale``, or so that ``largest`` is the largest.
    """

    name: str
    kind: Kind
    source: Callable[[Any], Any]
    write: Callable[..., Any] | None = None
    endings: tuple[str, ...] = ()
    inside: str = ""
    texts: bool = False
    several: bool = False
    described: bool = False
    scale: float | None = None
    largest: int | None = None

    @property
    def whole(self) -> bool:
        """Whether its weights are whole numbers."""
        return self.scale is not None or self.largest is not None


def check_chunks(
    vectors: csr_array[Any] | Iterable[csr_array[Any]], terms: Sequence[str], *, whole: bool
) -> Iterator[csr_array[Any]]:
    """Yield the matrices checked: finite, not negative, sorted, and as wide as ``terms`` at most.

    With ``whole`` the weights must be whole numbers that 32 bits hold.
    """
    import scipy.sparse as sp

    from sluice.indexing.checks import checked_sparse

    matrices: Iterable[Any] = [vectors] if sp.issparse(vectors) else vectors
    for chunk in matrices:
        kind = getattr(getattr(chunk, "dtype", None), "kind", "")
        matrix = checked_sparse(
            chunk.astype(np.float32) if kind in ("i", "u") else chunk, "vectors"
        )
        if matrix.shape[1] > len(terms):
            raise DataError(f"vectors: {matrix.shape[1]:,} columns, but {len(terms):,} terms")
        if whole and (matrix.data != np.rint(matrix.data)).any():
            raise DataError(
                "vectors: some weights are not integers; this format holds integers: "
                "multiply and round them first"
            )
        if whole and matrix.data.max(initial=0) >= 2.0**31:
            raise DataError("vectors: weights of 2^31 or more; this format has 31 bits: scale them")
        yield matrix


def refuse_repeated(terms: Sequence[str]) -> None:
    """Raise ``DataError`` if a term occurs twice."""
    if len(set(terms)) == len(terms):
        return
    seen: set[str] = set()
    for column, term in enumerate(terms):
        if term in seen:
            raise DataError(f"terms: {term!r} again in column {column}; terms are unique")
        seen.add(term)


def refuse_count(documents: int, rows: int) -> None:
    """Raise ``DataError`` unless there are as many documents as vectors."""
    if documents != rows:
        raise DataError(f"vectors: {rows:,} rows for {documents:,} documents; give one each")
