"""Pruning of sparse document vectors after encoding: pure functions over ``csr`` matrices.

By value, by the heaviest of a document, by a share of its largest weight, or by a quantile of each
term's weights over the collection (Lassance et al., 2023, arXiv 2304.12702). What is left can go
to any index; scores are then sums over fewer terms, so they only fall.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sluice.encoders.splade.encoder import SpladeEncoder

CHUNK = 2_048  # texts encoded at a time


def prune_below(vectors: sp.csr_array, weight: float) -> sp.csr_array:
    """Return the vectors without weights under ``weight``."""
    return _kept(vectors, vectors.data >= np.float32(weight))


def prune_top_k(vectors: sp.csr_array, k: int) -> sp.csr_array:
    """Return the ``k`` heaviest terms of each vector; ties: the lower term."""
    if type(k) is not int or k < 1:
        raise ConfigError(f"k: {k!r}; expected 1 or more terms for each document")
    rows = _rows(vectors)
    order = np.lexsort((vectors.indices, -vectors.data, rows))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - vectors.indptr[rows[order]]
    return _kept(vectors, place < k)


def prune_ratio(vectors: sp.csr_array, ratio: float) -> sp.csr_array:
    """Return the vectors without weights under ``ratio`` times the largest of their vector."""
    if not 0 < ratio <= 1:
        raise ConfigError(f"ratio: {ratio!r}; expected a share above 0, at most 1")
    rows = _rows(vectors)
    largest = np.zeros(vectors.shape[0], np.float32)
    np.maximum.at(largest, rows, vectors.data)
    return _kept(vectors, vectors.data >= largest[rows] * np.float32(ratio))


def term_quantiles(
    chunks: Iterable[sp.csr_array] | sp.csr_array, quantile: float
) -> NDArray[np.float32]:
    """Return the quantile of each term's weights over a collection, ``[vocab]``.

    Only documents that hold the term count (linear interpolation, as ``numpy.quantile``); 0 for
    terms that none holds. ``chunks`` are the collection's vectors or a sample of them; memory is
    8 bytes a posting.
    """
    if not 0 <= quantile <= 1:
        raise ConfigError(f"quantile: {quantile!r}; expected a share from 0 to 1")
    parts = [chunks] if isinstance(chunks, sp.csr_array) else list(chunks)
    if not parts:
        raise ConfigError("term_quantiles: no vectors; expected those of a collection")
    terms = np.concatenate([part.indices for part in parts])
    weights = np.concatenate([part.data for part in parts])
    order = np.lexsort((weights, terms))
    weights = weights[order].astype(np.float64)
    counts = np.bincount(terms, minlength=parts[0].shape[1])
    starts = np.cumsum(counts) - counts
    held = counts > 0
    place = quantile * (counts[held] - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, counts[held] - 1)
    left, right = weights[starts[held] + low], weights[starts[held] + high]
    found = np.zeros(len(counts), np.float32)
    found[held] = left + (place - low) * (right - left)
    return found


def prune_terms(vectors: sp.csr_array, least: NDArray[np.float32]) -> sp.csr_array:
    """Return the vectors without weights under what their term needs, ``least`` ``[vocab]``.

    With ``term_quantiles(vectors, q)`` each term loses about the share ``q`` of its postings, its
    lightest ones, and keeps its heaviest.
    """
    if least.shape != (vectors.shape[1],):
        raise ConfigError(
            f"least: {list(least.shape)}, expected one weight a term [{vectors.shape[1]}]"
        )
    return _kept(vectors, vectors.data >= least[vectors.indices])


def pruned_by_quantile(encoder: SpladeEncoder, vectors: sp.csr_array) -> sp.csr_array:
    """Return documents' vectors as an encoder's ``prune_quantile`` leaves them.

    ``ConfigError`` where it has one, and no weights to cut at yet.
    """
    if encoder.prune_quantile is None or not vectors.shape[0]:
        return vectors
    if encoder.term_floors is None:
        raise ConfigError(
            f"prune_quantile: {encoder.prune_quantile} of weights that are not known yet; build a "
            "retriever with this encoder, or call fit_term_floors(encoder, texts) of "
            "sluice.encoders.splade.quantile_pruning first"
        )
    return prune_terms(vectors, encoder.term_floors)


def fit_term_floors(encoder: SpladeEncoder, texts: Iterable[str]) -> None:
    """Read what an encoder's ``prune_quantile`` cuts at off documents' vectors, in place.

    ``texts`` are the collection or a sample of it. The encoder's fingerprint changes. Raises
    ``ConfigError`` for one without a quantile, ``DataError`` without texts.
    """
    whole, stream = encoder.without_quantile(), iter(texts)
    chunks = iter(lambda: list(itertools.islice(stream, CHUNK)), [])
    set_term_floors(encoder, [whole.encode_documents(chunk) for chunk in chunks])


def set_term_floors(encoder: SpladeEncoder, chunks: Iterable[sp.csr_array] | sp.csr_array) -> None:
    """Set what an encoder's ``prune_quantile`` cuts at from vectors it made without it."""
    if encoder.prune_quantile is None:
        raise ConfigError("prune_quantile: the encoder has none, so nothing is to be fitted")
    parts = [chunks] if isinstance(chunks, sp.csr_array) else list(chunks)
    if not sum(part.shape[0] for part in parts):
        raise DataError("prune_quantile: no documents; quantiles are read off their vectors")
    encoder.term_floors = term_quantiles(parts, encoder.prune_quantile)


def _rows(vectors: sp.csr_array) -> NDArray[np.int64]:
    return np.repeat(np.arange(vectors.shape[0]), np.diff(vectors.indptr))


def _kept(vectors: sp.csr_array, mask: NDArray[np.bool_]) -> sp.csr_array:
    ends = np.concatenate([[0], np.cumsum(mask)])[vectors.indptr]
    parts = vectors.data[mask], vectors.indices[mask], ends.astype(vectors.indptr.dtype)
    return sp.csr_array(parts, shape=vectors.shape)
