"""Fits to a corpus what a SPLADE encoder does not learn: idf query weights, quantiles for pruning.

(Geng et al., 2025, arXiv 2411.04403; Lassance et al., 2023, arXiv 2304.12702.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.transformer.tokens import Ids, tokenized

CHUNK = 2_048  # texts tokenised or encoded at a time


def inverse_document_frequency(tokens: Iterable[Ids], size: int) -> Tensor:
    """Return ``log(1 + (N - df + 0.5) / (df + 0.5))`` of every token, float64 ``[size]``.

    ``df`` of the ``N`` texts contain the token. Raises ``DataError`` without texts.
    """
    frequency, count = np.zeros(size), 0
    for ids in tokens:
        frequency[np.unique(ids)] += 1
        count += 1
    if not count:
        raise DataError("idf: no texts; inverse document frequencies need a corpus to count in")
    return torch.from_numpy(np.log1p((count - frequency + 0.5) / (frequency + 0.5)))


def idf_from_texts(
    tokenizer: Any, texts: Iterable[str], size: int, *, length: int | None = None
) -> Tensor:
    """Return the inverse document frequencies of tokens over the texts, ``[size]``.

    A text counts by its first ``length`` tokens; special tokens weigh 0. Texts are streamed.
    """
    chunks = (tokenized(tokenizer, chunk, length=length).ids for chunk in _chunks(texts))
    weights = inverse_document_frequency(itertools.chain.from_iterable(chunks), size).float()
    weights[[i for i in tokenizer.all_special_ids if i < size]] = 0.0
    return weights


def fit_idf(encoder: SpladeEncoder, texts: Iterable[str]) -> None:
    """Set the query weights of an encoder with ``query_model="idf"`` from a corpus, in place.

    Its fingerprint changes. Raises ``ConfigError`` for another query model.
    """
    queries = encoder.queries
    if queries is None or encoder.query_model != "idf":
        raise ConfigError(
            f"query_model: {encoder.query_model!r} has no term weights to count; use query_model: "
            "idf"
        )
    weights = idf_from_texts(
        encoder.tokenizer, texts, encoder.dim, length=encoder.lengths["document"]
    )
    with torch.no_grad():
        queries.weights.copy_(weights.to(queries.weights.device))
    queries.counted = True


def term_quantiles(
    chunks: Iterable[sp.csr_array] | sp.csr_array, quantile: float
) -> NDArray[np.float32]:
    """Return the quantile of each term's weights over a collection, ``[vocab]``.

    Only documents with the term count (linear interpolation, as ``numpy.quantile``); 0 for terms
    that no document has. ``chunks`` are the collection's vectors or a sample of them; memory is
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
    used = counts > 0
    place = quantile * (counts[used] - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, counts[used] - 1)
    left, right = weights[starts[used] + low], weights[starts[used] + high]
    quantiles = np.zeros(len(counts), np.float32)
    quantiles[used] = left + (place - low) * (right - left)
    return quantiles


def fit_term_floors(encoder: SpladeEncoder, texts: Iterable[str]) -> None:
    """Set the weights below which an encoder's ``prune_quantile`` prunes, in place.

    ``texts`` are the collection or a sample of it. The encoder's fingerprint changes. Raises
    ``ConfigError`` for an encoder without a quantile, ``DataError`` without texts.
    """
    unpruned = encoder.without_quantile()
    set_term_floors(encoder, [unpruned.encode_documents(chunk) for chunk in _chunks(texts)])


def set_term_floors(encoder: SpladeEncoder, chunks: Iterable[sp.csr_array] | sp.csr_array) -> None:
    """Do the same from vectors that the encoder made without its quantile."""
    if encoder.prune_quantile is None:
        raise ConfigError("prune_quantile: the encoder has none, so there is nothing to fit")
    parts = [chunks] if isinstance(chunks, sp.csr_array) else list(chunks)
    if not sum(part.shape[0] for part in parts):
        raise DataError("prune_quantile: no documents; quantiles are read off their vectors")
    encoder.term_floors = term_quantiles(parts, encoder.prune_quantile)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    return iter(lambda: list(itertools.islice(stream, CHUNK)), [])
