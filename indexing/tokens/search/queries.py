"""Queries' tokens as the kernels multiply them, and how far the approximate scores may be off."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sluice.indexing.tokens.storage.rounding import LARGEST, LEVELS, SMALLEST

from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.kernels.calls import lent
from sluice.indexing.storage.exact_scores import norms_of
from sluice.indexing.tokens.search.tile import BYTES, LANES
from sluice.indexing.tokens.storage.segment import CELL, ZERO, code_width

UNIT_ROUNDOFF = 2.0**-24  # of float32
_UP = 1 + 2.0**-16


class Queries(NamedTuple):
    """Queries in panels of 16 tokens; query i has the panels from ``panels[i]`` to the next.

    The approximate score of a query and a document is at most ``lossy[i] * loss + direct[i] *
    reach`` away from the exact one (see ``query_panels``); of token j of a query, it is
    ``token_lossy`` and ``token_direct``, in units of its ``scales``.
    """

    exact: Any  # float64 [tokens, dim]
    bounds: Any  # int64 [n + 1], of the tokens
    panels: Any  # int64 [n + 1]
    cells: Any  # [panels, cells, LANES]: int32, or float32
    starts: Any  # [panels, LANES]
    scales: Any  # float32 [panels * LANES], 0 in empty lanes
    token_lossy: Any  # float32 [panels * LANES]
    token_direct: Any
    lossy: Any  # float32 [n]
    direct: Any


def query_panels(queries: TokenVectors) -> Queries:
    """Return queries as kernels read them, with bounds on the approximation.

    A query token q is multiplied as ``q' = scale * codes``, a document's token t as its own codes
    ``t'``. By Cauchy and Schwarz ``|q.t - q'.t'| <= |q| |t - t'| + |q - q'| |t'|``, and the maximum
    over tokens, being 1-Lipschitz, is off by at most the worst of them. To this come the
    roundings: of the product with the two scales, of the sum over the query's tokens, of the
    exact score to float32, and, in codes, of sums beyond 24 bits. A query with values outside of
    ``SMALLEST`` to ``LARGEST`` gets infinite bounds.
    """
    values, dim = queries.values, queries.dim
    count, wide = len(queries), code_width(dim)
    lengths = queries.lengths
    panels = np.concatenate([[0], np.cumsum(-(-lengths // LANES))]).astype(np.int64)
    lanes = int(panels[-1]) * LANES
    owners = np.repeat(np.arange(count), lengths)
    places = panels[owners] * LANES + np.arange(len(values)) - queries.bounds[owners]

    largest = np.abs(values).max(axis=1, initial=0).astype(np.float64)
    token_scales = (largest / LEVELS).astype(np.float32)
    wide_scales = token_scales.astype(np.float64)
    inverse = np.divide(LEVELS, largest, out=np.zeros_like(largest), where=largest > 0)
    whole = np.rint(values.astype(np.float64) * inverse[:, None])
    lost = norms_of_float64(values - whole * wide_scales[:, None])
    norms = norms_of(values)
    wrong = (largest > 0) & ~((largest >= SMALLEST) & (largest <= LARGEST))

    codes = np.zeros((lanes, wide), np.int8)
    codes[places, :dim] = whole.astype(np.int8)
    by_panel = codes.reshape(-1, LANES, wide)
    starts: NDArray[Any]
    if BYTES:
        cells = by_panel.reshape(-1, LANES, wide // CELL, CELL).transpose(0, 2, 1, 3)
        factors: NDArray[Any] = np.ascontiguousarray(cells).view(np.int32)[..., 0]
        starts = (by_panel.sum(axis=2, dtype=np.int32) * -ZERO).astype(np.int32)
    else:
        factors = np.ascontiguousarray(by_panel.transpose(0, 2, 1)).astype(np.float32)
        starts = np.zeros((len(by_panel), LANES), np.float32)
    roundings = (2 * dim * UNIT_ROUNDOFF if dim > 1000 else 0.0) + 16 * UNIT_ROUNDOFF
    summed = 2 * UNIT_ROUNDOFF * (lengths + 8)
    token_direct = lost + roundings * (norms + lost)
    lossy, direct = np.zeros(count), np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(lossy, owners, norms)
        np.add.at(direct, owners, token_direct + summed[owners] * (norms + lost))
        direct[owners[wrong]] = np.inf
        query_lossy, query_direct = ((each * _UP).astype(np.float32) for each in (lossy, direct))
    units = np.divide(1, wide_scales, out=np.zeros(len(values)), where=wide_scales > 0)
    spread = np.zeros((3, lanes), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        spread[:, places] = token_scales, norms * units * _UP, token_direct * units * _UP
    return Queries(
        exact=values.astype(np.float64),
        bounds=lent(queries.bounds),
        panels=panels,
        cells=factors,
        starts=starts,
        scales=spread[0],
        token_lossy=spread[1],
        token_direct=spread[2],
        lossy=query_lossy,
        direct=query_direct,
    )


def norms_of_float64(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean norms of float64 vectors, not below the true ones."""
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)) * (1 + 2.0**-40)
    return norms
