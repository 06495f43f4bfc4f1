"""A smaller copy of the vectors, searched before them, and how far its scores can be off."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.checks import Dense
from sluice.indexing.kernels.calls import in_parallel
from sluice.indexing.storage.exact_scores import Metric, Norms
from sluice.indexing.storage.rows import ChunkedRows


def rounded_queries(factors: Dense) -> tuple[NDArray[np.uint16], Norms]:
    """Return queries as bfloat16 bits, and what each lost by it: ``|q - q'|``."""
    bits = factors.view(np.uint32).astype(np.uint64)
    codes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    widened = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # near the largest float32: no bound then
        lost = factors.astype(np.float64) - widened
        return codes, np.sqrt(np.einsum("ij,ij->i", lost, lost)) * (1 + 2.0**-40)


FirstPass = Literal["bf16", "int8", "binary"]
FIRST_PASSES: Final[tuple[FirstPass, ...]] = ("bf16", "int8", "binary")
WORD = 64  # bits in a word of a binary code
ROWS_PER_TASK = 256
_ALL: NDArray[np.int64] = np.empty(0, dtype=np.int64)


def checked_first_pass(name: str | None) -> FirstPass | None:
    """Return ``name`` if it is None or a known compressed copy."""
    for known in FIRST_PASSES:
        if name == known:
            return known
    if name is None:
        return None
    raise ConfigError(
        f"first_pass: unknown {name!r}, expected bf16, int8, binary or None"
        f"{suggest(str(name), FIRST_PASSES)}"
    )


class CompressedRows(ChunkedRows):
    """Codes of rows 0, 1, 2, ..., with what is needed to bound their errors.

    A chunk is ``(codes, losses)`` for ``bf16``, ``(codes, losses, scales)`` for ``int8`` and
    ``(codes,)`` for ``binary``; codes are ``[n, width]``, or ``[n, words]`` of 64 signs. With
    ``cosine`` they are those of the normalised vectors.
    """

    def __init__(self, kind: FirstPass, metric: Metric) -> None:
        super().__init__()
        self.kind = kind
        self._normalise = metric == "cosine"

    def append(self, vectors: Dense, norms: Norms, join: bool = True) -> None:
        """Add the codes of the next rows; ``join`` as the vectors themselves are joined."""
        if self.kind == "binary":
            self._extend((sign_bits(vectors),), join)
        elif self.kind == "bf16":
            self._extend(self._halves(vectors, norms), join)
        else:
            self._extend(self._bytes(vectors, norms), join)

    def _halves(self, vectors: Dense, norms: Norms) -> tuple[NDArray[np.uint16], Dense]:
        from sluice.indexing.flat.tile import round_all_to_bfloat16

        codes = np.empty(vectors.shape, np.uint16)
        losses = np.empty(len(vectors), np.float32)

        def task(first: int, last: int) -> None:
            round_all_to_bfloat16(vectors, norms, self._normalise, first, last, codes, losses)

        in_parallel(task, len(vectors), ROWS_PER_TASK)
        return codes, losses

    def _bytes(self, vectors: Dense, norms: Norms) -> tuple[NDArray[np.int8], Dense, Dense]:
        from sluice.indexing.flat.tile import round_all_to_int8

        codes = np.empty(vectors.shape, np.int8)
        losses, scales = np.empty((2, len(vectors)), np.float32)

        def task(first: int, last: int) -> None:
            round_all_to_int8(vectors, norms, self._normalise, first, last, codes, scales, losses)

        in_parallel(task, len(vectors), ROWS_PER_TASK)
        return codes, np.array(losses), np.array(scales)

    def write(self, folder: Path, width: int) -> None:
        """Write ``codes.npy``, ``losses.npy`` and ``scales.npy``, as far as there are any."""
        self._write_columns(folder, self._columns(width))

    def read(self, folder: Path, rows: int, width: int) -> None:
        """Map what ``write`` wrote."""
        if width:
            self._read_columns(folder, self._columns(width), rows)

    def _columns(self, width: int) -> list[tuple[str, DTypeLike, int]]:
        losses: tuple[str, DTypeLike, int] = ("losses", np.float32, 0)
        if self.kind == "bf16":
            return [("codes", np.uint16, width), losses]
        if self.kind == "int8":
            return [("codes", np.int8, width), losses, ("scales", np.float32, 0)]
        return [("codes", np.uint64, -(-width // WORD))]


def sign_bits(vectors: Dense) -> NDArray[np.uint64]:
    """Return one bit for each coordinate, 1 where it is positive, in words of 64."""
    words = -(-vectors.shape[1] // WORD)
    packed = np.zeros((len(vectors), words * 8), np.uint8)
    signs = np.packbits(vectors > 0, axis=1)
    packed[:, : signs.shape[1]] = signs
    return packed.view(np.uint64)
