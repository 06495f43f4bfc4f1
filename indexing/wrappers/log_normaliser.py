"""Computes a log-normaliser per document: log mean exp(beta x similarity) over a bank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.index import Index
from sluice.indexing.live_rows import Rows
from sluice.indexing.storage.exact_scores import checked_metric

ENTRIES = 1 << 22  # similarities in a block: 16 MiB


def log_normalisers(
    index: Index, bank: Any, beta: float, *, own_rows: Rows | None = None, entries: int = ENTRIES
) -> NDArray[np.float64]:
    """Return log(mean over the bank of exp(beta x s(bank vector, document))) ``[index.rows]``.

    Its exponential divides exp(beta x s) in the inverted softmax. ``bank`` has vectors ``[n,
    width]`` of the index's own kind, dense or sparse; s is the index's metric. With ``own_rows``
    ``[n]`` the bank's vectors are documents, and each is left out of its own normaliser. Rows of
    deleted documents are computed like others. The index is read in blocks of ``entries``
    similarities; cost n x rows products. ``ConfigError`` for an index of passages, one that cannot
    give its vectors back, and a bank that is empty (below two of one's own).
    """
    if index.by_passages:
        raise ConfigError(
            "index: a document with several passages has no single vector to normalise; use a "
            "retriever without passages"
        )
    size = int(bank.shape[0])
    least = 1 if own_rows is None else 2
    if size < least:
        raise ConfigError(
            f"bank: {size} {'vector' if size == 1 else 'vectors'}, expected at least {least}"
        )
    similar = _Similarity(bank, index.metric)
    normalisers = np.empty(index.rows)
    step = max(1, entries // size)
    for start in range(0, index.rows, step):
        rows = np.arange(start, min(start + step, index.rows))
        scaled = similar.to(index.documents(rows)) * np.float32(beta)  # [bank, block]
        counts: Any = size
        if own_rows is not None:
            mine = np.flatnonzero((own_rows >= start) & (own_rows <= rows[-1]))
            scaled[mine, own_rows[mine] - start] = -np.inf
            counts = size - np.bincount(own_rows[mine] - start, minlength=len(rows))
        highest = scaled.max(axis=0)
        np.exp(scaled - highest, out=scaled)
        normalisers[rows] = highest + np.log(scaled.sum(axis=0, dtype=np.float64) / counts)
    return normalisers


class _Similarity:
    """The similarities of a bank with blocks of documents, by metric; sparse is inner product."""

    def __init__(self, bank: Any, metric: str | None) -> None:
        self.metric = "ip" if metric is None else checked_metric(metric)
        self.sparse = bool(sparse.issparse(bank))
        self.bank: Any = self._scaled(bank)

    def to(self, documents: Any) -> NDArray[np.float32]:
        """Return similarities ``[bank, documents]``, float32."""
        if self.sparse:
            wide: Any = sparse.csr_array(documents)
            width = max(self.bank.shape[1], wide.shape[1])
            wide.resize((wide.shape[0], width))
            self.bank.resize((self.bank.shape[0], width))
            product: NDArray[np.float32] = (self.bank @ wide.T).toarray().astype(np.float32)
            return product
        scores: NDArray[np.float32] = self.bank @ self._scaled(documents).T
        if self.metric == "l2":
            scores = 2 * scores - (documents**2).sum(axis=1)
            scores -= (self.bank**2).sum(axis=1)[:, None]
        return scores

    def _scaled(self, vectors: Any) -> Any:
        if self.sparse:
            return vectors.astype(np.float32).tocsr()
        dense = np.asarray(vectors, np.float32)
        if self.metric != "cosine":
            return dense
        lengths = np.linalg.norm(dense, axis=1, keepdims=True)
        return dense / np.where(lengths > 0, lengths, 1)
