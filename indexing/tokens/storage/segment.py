"""What a kernel reads of some documents: codes of their tokens, and what was lost by rounding."""

# mypy: disable-error-code="arg-type, assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.checks import checked_dense

Store = Literal["float32", "float16", "int8", "residual4", "residual2"]
STORES: Final[tuple[Store, ...]] = ("float32", "float16", "int8", "residual4", "residual2")
# Their numbers, as kernels know them; those of residuals begin with the last.
FLOAT32, FLOAT16, INT8, RESIDUAL = range(4)
RESIDUAL_BITS: Final[Mapping[str, int]] = {"residual4": 4, "residual2": 2}  # a dimension
CELL = 4  # dimensions that are multiplied in one step; codes are filled up to whole cells
ZERO = 128  # the code of 0: codes are from 1 to 255
LARGEST_WIDTH = 32_768  # up to it the products of codes add up to a 32-bit integer


class Segment(NamedTuple):
    """Documents 0 to n - 1, with tokens from ``bounds[i]`` to ``bounds[i + 1]``.

    The vector of a token is ``values`` (float32, or float16 as uint16) where the store keeps
    them, else ``(code - ZERO) * scale``. ``codes`` are uint8 ``[tokens, cells * CELL]``, one scale
    a token; for residuals they are two or four to a byte, steps away from a centroid (see
    ``Codebook``), and the scales bfloat16 as uint16. ``losses`` bound, for each document, how far
    any of its token vectors is from its codes (infinite: nothing is promised), and ``reaches``
    their largest norm.
    """

    kind: int
    bounds: Any  # int64 [n + 1]
    losses: Any  # float32 [n]
    reaches: Any  # float32 [n]
    codes: Any
    scales: Any
    centroids: Any  # uint16 [tokens]
    values: Any  # [tokens, dim]
    table: Any  # uint8 [centroids, cells * CELL], in steps
    levels: Any  # int8 [16], in steps


def checked_store(name: str) -> Store:
    """Return ``name`` if it is a way to store token vectors."""
    for known in STORES:
        if name == known:
            return known
    raise ConfigError(
        f"store: unknown {name!r}, expected {', '.join(STORES)}{suggest(str(name), STORES)}"
    )


def checked_tokens(vectors: Any, width: int | None, what: str) -> TokenVectors:
    """Return token vectors whose values are checked as ``checked_dense`` does."""
    if not isinstance(vectors, TokenVectors):
        raise DataError(
            f"{what}: {type(vectors).__name__}, expected TokenVectors: several vectors for each "
            "text; one vector for each goes into FlatIndex, weights of terms into InvertedIndex"
        )
    if vectors.dim > LARGEST_WIDTH:
        raise DataError(
            f"{what}: {vectors.dim:,} dimensions, expected at most {LARGEST_WIDTH:,}; "
            "give the encoder a projection"
        )
    checked_dense(vectors.values, width, what)
    return vectors


def code_width(dim: int) -> int:
    """Return the number of codes of a token: dimensions, filled up to whole cells."""
    return -(-dim // CELL) * CELL


def token_columns(store: Store, dim: int) -> list[tuple[str, DTypeLike, int]]:
    """Return name, dtype and width (0: no axis) of the arrays with a line for each token."""
    wide = code_width(dim)
    if bits := RESIDUAL_BITS.get(store):
        halves: DTypeLike = np.uint16
        packed = wide * bits // 8
        return [("codes", np.uint8, packed), ("scales", halves, 0), ("centroids", halves, 0)]
    columns: list[tuple[str, DTypeLike, int]] = [
        ("codes", np.uint8, wide),
        ("scales", np.float32, 0),
    ]
    if store != "int8":
        columns.append(("values", np.float32 if store == "float32" else np.uint16, dim))
    return columns
