"""Files of sparse vectors read whole, to be compared with what was written."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct
from sluice.retrieval.exchange.formats.ciff import CiffFile
from sluice.retrieval.exchange.formats.sparse_files import Column, ImpactFiles, VectorsFolder


class SparseVectors(NamedTuple):
    """Documents and their weights of terms, float32 ``[documents, terms]``."""

    documents: list[Document]
    terms: list[str]
    weights: sp.csr_array[Any]


def read_ciff(path: str | Path) -> SparseVectors:
    """Read a CIFF file."""
    file = CiffFile(Path(path))
    return _gathered(distinct(file.documents), file.vectors)


def read_impact_json(*paths: str | Path) -> SparseVectors:
    """Read files of impact JSON, or a folder of them."""
    files = ImpactFiles(paths)
    return _gathered(distinct(files.documents), files.vectors)


def read_vectors(path: str | Path) -> SparseVectors:
    """Read a folder of vectors, or its ``.npz`` file."""
    folder = VectorsFolder(Path(path))
    return _gathered(distinct(folder.documents), folder.vectors)


def _gathered(
    documents: Iterable[Document], vectors: Callable[[Column], Iterable[sp.csr_array[Any]]]
) -> SparseVectors:
    columns: dict[str, int] = {}
    rows = list(documents)
    chunks = list(vectors(lambda term: columns.setdefault(term, len(columns))))
    parts = [
        sp.csr_array(
            (chunk.data, chunk.indices, chunk.indptr), shape=(chunk.shape[0], len(columns))
        )
        for chunk in chunks
    ]
    weights: Any = sp.csr_array((0, len(columns)), dtype=np.float32)
    if parts:
        weights = sp.csr_array(sp.vstack(parts, format="csr"))
    return SparseVectors(rows, list(columns), weights)
