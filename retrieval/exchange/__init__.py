"""Indexes and vectors in and out, in other tools' formats.

May import: `retrieval.retrievers` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.exchange.vector_files import (
        DenseVectors as DenseVectors,
        read_dense_vectors as read_dense_vectors,
        write_dense_vectors as write_dense_vectors,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
