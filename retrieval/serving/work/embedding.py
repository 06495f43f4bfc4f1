"""Encodes texts, or scores pairs, of several requests in one pass of a model."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.tokens import TokenCounts, counting_tokens
from sluice.retrieval.evaluation.calibration_error import probabilities
from sluice.retrieval.serving.content.content import PAIR_TOKENS, tokens_of
from sluice.retrieval.serving.faults import invalid, too_large
from sluice.retrieval.serving.shapes.search import SparseValue


class Vector(NamedTuple):
    """What a model made of a text or a pair, and the tokens that it has and that were read."""

    values: Any  # float32 [dim], a sparse row, or a pair's score
    full: int
    read: int


def encode_all(encoder: Any, side: Side, texts: Sequence[str]) -> list[Vector]:
    """Return the vectors of texts, encoded together."""
    encode = encoder.encode_queries if side == "query" else encoder.encode_documents
    return counted_vectors(encode, texts, tokens_of)


def counted_vectors(
    ask: Callable[[list[Any]], Any], texts: Sequence[Any], size_of: Callable[[Any], int]
) -> list[Vector]:
    """Return what a model makes of each text or pair; ``size_of`` counts if the model does not."""
    with counting_tokens() as counted:
        vectors = ask(list(texts))
    counts = TokenCounts.joined(counted, len(texts)) if counted else None
    if counts is None:
        sizes = map(size_of, texts)
        return [Vector(vectors[row], size, size) for row, size in enumerate(sizes)]
    pairs = zip(counts.full.tolist(), counts.read.tolist(), strict=True)
    return [Vector(vectors[row], full, read) for row, (full, read) in enumerate(pairs)]


def cost_of(encoder: Any, side: Side, text: str) -> int:
    """Return about how many tokens of a text the encoder reads."""
    return tokens_of(text, hooks_of(encoder).lengths.get(side))


def side_of(input_type: str, prompt_name: str | None) -> Side:
    """Return the side of the encoder that a request asks."""
    named = input_type if prompt_name is None else prompt_name
    return "query" if named.endswith("query") else "document"


def refuse_cut(vectors: Sequence[Vector], field: str, *, pairs: bool = False) -> None:
    """Raise the ``Fault`` of the first text, or text of a pair with the query, that was cut."""
    for place, vector in enumerate(vectors):
        if vector.full > vector.read:
            path = f"{field}[{place}]" if pairs or len(vectors) > 1 else field
            # The length of a pair that is cut is not counted to its end.
            size = f"{vector.full:,} tokens" if not pairs else "too long with the query"
            raise too_large(
                f"{path}: {size}, and the model reads {vector.read:,}; shorten it, "
                "or set truncate: true to have its end left out",
                path,
            )


def dense_rows(
    vectors: Sequence[Vector], *, normalize: bool | None = None, dimensions: int | None = None
) -> np.ndarray:
    """Return vectors as an array ``[n, dim]``: cut to their first numbers, or of length 1."""
    rows = np.stack([np.asarray(vector.values, np.float32) for vector in vectors])
    if dimensions is not None:
        if dimensions > rows.shape[1]:
            raise invalid(
                f"dimensions: {dimensions}; the vectors have {rows.shape[1]}, expected at most "
                "as many",
                "dimensions",
            )
        rows = rows[:, :dimensions]
    if normalize or dimensions is not None:
        lengths = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=1, keepdims=True))
        rows = (rows / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    return rows


def in_base64(row: np.ndarray) -> str:
    """Return a vector's float32 bytes, little-endian, in base64."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")


def sparse_values(encoder: Any, vector: Vector) -> list[SparseValue]:
    """Return a sparse vector's entries by index, with their terms."""
    row = sp.csr_array(vector.values.reshape(1, -1))
    row.sort_indices()
    columns = row.indices.tolist()
    named = hooks_of(encoder).terms
    terms = [None] * len(columns) if named is None else list(named(columns))
    entries = zip(columns, row.data.tolist(), terms, strict=True)
    return [SparseValue(index=i, value=value, term=term) for i, value, term in entries]


Pair = tuple[str, str]


def score_all(scorer: Any, pairs: Sequence[Pair]) -> list[Vector]:
    """Return the scorer's own score of each pair, all scored together, and whether it was cut."""

    def scored(pairs: list[Pair]) -> list[float]:
        scores = np.asarray(scorer.score(pairs), np.float64)
        if scores.shape != (len(pairs),) or not np.isfinite(scores).all():
            raise ModelError("the reranker returned no finite number for each pair")
        return scores.tolist()  # type: ignore[no-any-return]

    return counted_vectors(scored, pairs, pair_cost)


def pair_cost(pair: Pair) -> int:
    """Return about how many tokens of a pair are read."""
    return min(2 * PAIR_TOKENS, tokens_of(pair[0]) + tokens_of(pair[1]))


def as_relevance(scores: Sequence[float], scale: float, bias: float) -> list[float]:
    """Return the sigmoid of scores, or the probability that was fitted to them."""
    relevance: list[float] = probabilities(np.asarray(scores, np.float64), scale, bias).tolist()
    return relevance


def best_first(scores: Sequence[float], most: int | None) -> list[int]:
    """Return the places of the best scores, ties by place."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return order if most is None else order[:most]
