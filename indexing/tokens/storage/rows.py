"""Stores the token vectors of documents by row: rounded, in memory, mapped or spooled to disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.kernels.calls import in_parallel, lent
from sluice.indexing.storage.rows import DenseSpool, fact, passing, write_array
from sluice.indexing.tokens.storage.segment import (
    CELL,
    RESIDUAL_BITS,
    STORES,
    Segment,
    Store,
    code_width,
    token_columns,
)

JOINED = 1 << 19  # tokens up to which small additions are joined
LARGEST_HALF = 65_504.0  # of float16
_EMPTY_CODEBOOK = np.zeros((1, CELL), np.uint8), np.zeros(16, np.int8), 0.0


class TokenRows:
    """The token vectors of rows 0, 1, 2, ...; rows are only added, or compacted."""

    def __init__(self, store: Store) -> None:
        self.store: Store = store
        self.dim: int | None = None  # None before the first vectors
        self.codebook: Any = None  # of residuals, once learnt
        self._segments: list[Segment] = []
        self._lent: tuple[Segment, ...] | None = None  # the same, as kernels take them
        self._spool: dict[str, DenseSpool] | None = None
        self._folder: Path | None = None

    def __len__(self) -> int:
        return sum(len(segment.losses) for segment in self._segments)

    @property
    def tokens(self) -> int:
        """The number of token vectors."""
        return sum(int(segment.bounds[-1]) for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays as they are saved."""
        if self.dim is None:
            return 0
        size = 8 + 16 * len(self)
        for segment in self._segments:
            for name, _, _ in token_columns(self.store, self.dim):
                size += getattr(segment, name).nbytes
        if self.codebook is not None:
            size += self.codebook.table.nbytes + self.codebook.levels.nbytes
        return size

    def segments(self) -> Sequence[Segment]:
        """Return the documents in segments, in the order of their rows, as kernels take them."""
        lent_segments = self._lent
        if lent_segments is None:
            lent_segments = tuple(
                Segment(segment.kind, *(lent(array) for array in segment[1:]))
                for segment in self._segments
            )
            self._lent = lent_segments
        return lent_segments

    def spool(self, folder: Path) -> None:
        """Keep the token vectors added from now on in files of ``folder``, mapped from there."""
        self._spool, self._folder = {}, folder

    def append(self, documents: TokenVectors) -> None:
        """Add the rounded vectors of checked documents as the next rows."""
        added = self._rounded(documents)
        self.dim, self._lent = documents.dim, None
        if self._spool is None:
            self._extend(added)
            return
        columns: dict[str, Any] = {}
        for name, dtype, _ in token_columns(self.store, self.dim):
            array = getattr(added, name)
            if array.size:
                if name not in self._spool and self._folder is not None:
                    self._spool[name] = DenseSpool(self._folder, dtype)
                columns[name] = lent(self._spool[name].append(array))
        self._segments.append(added._replace(**columns))

    def _rounded(self, documents: TokenVectors) -> Segment:
        """Return documents as a segment of their own."""
        from sluice.indexing.tokens.storage.rounding import bound_codes, round_to_codes

        values, bounds = documents.values, documents.bounds
        kept: dict[str, Any] = {}
        if self.store == "float16":
            with np.errstate(over="ignore"):
                halves = values.astype(np.float16)
            values = halves.astype(np.float32)
            kept["values"] = halves.view(np.uint16)
        elif self.store == "float32":
            kept["values"] = np.array(values)
        losses, reaches = np.empty((2, len(documents)), np.float32)
        blank = self._segment(bounds=np.array(bounds), losses=losses, reaches=reaches, **kept)
        if bits := RESIDUAL_BITS.get(self.store):
            from sluice.indexing.tokens.storage.codebook import residual_codes

            codes, scales, centroids = residual_codes(values, self.codebook, bits)
            segment = blank._replace(codes=codes, scales=scales, centroids=centroids)
            in_parallel(
                lambda first, last: bound_codes(segment, first, last, losses, reaches),
                len(documents),
                16,
            )
            return segment
        tokens = len(values)
        byte_codes = np.empty((tokens, code_width(documents.dim)), np.uint8)
        token_scales = np.empty(tokens, np.float32)
        values = lent(np.ascontiguousarray(values))
        in_parallel(
            lambda first, last: round_to_codes(
                values,
                blank.bounds,
                first,
                last,
                self.store != "int8",
                byte_codes,
                token_scales,
                losses,
                reaches,
            ),
            len(documents),
            16,
        )
        return blank._replace(codes=byte_codes, scales=token_scales)

    def _segment(self, **columns: Any) -> Segment:
        """Return a segment of some arrays; those that the store does not have are empty."""
        table, levels, _ = self.codebook or _EMPTY_CODEBOOK
        residual = self.store in RESIDUAL_BITS
        empty: dict[str, Any] = {
            "codes": np.empty((0, 0), np.uint8),
            "scales": np.empty(0, np.uint16 if residual else np.float32),
            "centroids": np.empty(0, np.uint16),
            "values": np.empty((0, 0), np.uint16 if self.store == "float16" else np.float32),
        }
        return Segment(
            kind=STORES.index(self.store), table=table, levels=levels, **{**empty, **columns}
        )

    def _extend(self, added: Segment) -> None:
        # Joined like the digits of a binary counter: each token is copied O(log) times.
        joined, total = [added], int(added.bounds[-1])
        while self._segments:
            last = int(self._segments[-1].bounds[-1])
            if last > min(total, JOINED - total):
                break
            total += last
            joined.insert(0, self._segments.pop())
        self._segments.append(joined[0] if len(joined) == 1 else self._joined(joined))

    def _joined(self, parts: Sequence[Segment]) -> Segment:
        names = [name for name, _, _ in token_columns(self.store, self.dim or 0)]
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in (*names, "losses", "reaches")
        }
        lengths = np.concatenate([[0], *(np.diff(part.bounds) for part in parts)])
        return self._segment(bounds=np.cumsum(lengths, dtype=np.int64), **columns)

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        names = [name for name, _, _ in token_columns(self.store, self.dim or 0)]
        remaining, first = [], 0
        for segment in self._segments:
            mask = allowed[first : first + len(segment.losses)]
            first += len(mask)
            if mask.all():
                remaining.append(segment)
            elif mask.any():
                lengths = np.diff(segment.bounds)
                tokens = np.repeat(mask, lengths)
                columns = {name: getattr(segment, name)[tokens] for name in names}
                remaining.append(
                    self._segment(
                        bounds=np.concatenate([[0], np.cumsum(lengths[mask])]).astype(np.int64),
                        losses=segment.losses[mask],
                        reaches=segment.reaches[mask],
                        **columns,
                    )
                )
        self._segments, self._lent = remaining, None

    def places(self, rows: Rows) -> list[tuple[Segment, Rows, Rows]]:
        """Return, for each segment with some of the rows, their places in it and in ``rows``."""
        segments = self.segments()
        if len(segments) == 1:
            return [(segments[0], rows, np.arange(len(rows)))]
        ends = np.cumsum([len(segment.losses) for segment in segments])
        homes = np.searchsorted(ends, rows, side="right")
        found = []
        for home in np.unique(homes).tolist():
            where = np.flatnonzero(homes == home)
            segment = segments[home]
            found.append((segment, rows[where] - (ends[home] - len(segment.losses)), where))
        return found

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each row."""
        parts = [np.diff(segment.bounds) for segment in self._segments]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def gather(self, rows: Rows) -> TokenVectors:
        """Return the stored vectors of any rows, in their order."""
        if self.dim is None or not len(rows):
            return TokenVectors(
                np.zeros((0, self.dim or 0), np.float32), np.zeros(len(rows) + 1, np.int64)
            )
        from sluice.indexing.tokens.storage.rounding import read_tokens

        found = self.places(rows)
        lengths = np.empty(len(rows), np.int64)
        for segment, places, where in found:
            lengths[where] = segment.bounds[places + 1] - segment.bounds[places]
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        values = np.empty((int(bounds[-1]), self.dim), np.float32)
        for segment, places, where in found:
            read_tokens(segment, places, bounds[where], values)
        return TokenVectors(values, bounds)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write one ``.npy`` file an array; return the facts ``read`` needs."""
        rows, tokens = len(self), self.tokens
        bounds = np.concatenate([[0], np.cumsum(self.lengths())]).astype(np.int64)
        write_array(folder / "bounds.npy", [bounds], bounds.shape, np.int64)
        for name in ("losses", "reaches"):
            parts = [getattr(segment, name) for segment in self._segments]
            write_array(folder / f"{name}.npy", parts, (rows,), np.float32)
        if self.dim is not None:
            for name, dtype, width in token_columns(self.store, self.dim):
                shape = (tokens, width) if width else (tokens,)
                columns = passing(getattr(segment, name) for segment in self._segments)
                write_array(folder / f"{name}.npy", columns, shape, dtype)
        facts = {"store": self.store, "rows": rows, "tokens": tokens, "dim": self.dim or 0}
        if self.codebook is not None:
            table, levels, unit = self.codebook
            write_array(folder / "table.npy", [table], table.shape, np.uint8)
            write_array(folder / "levels.npy", [levels], levels.shape, np.int8)
            facts.update(centroids=len(table), unit=unit)
        return facts

    @classmethod
    def read(cls, store: Store, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, mapped into memory."""
        opened = cls(store)
        rows, tokens, dim = (fact(facts, name, int, folder) for name in ("rows", "tokens", "dim"))
        bounds = open_array(folder / "bounds.npy", np.int64, (rows + 1,), mapped=False)
        if bounds[0] or (np.diff(bounds) < 0).any() or bounds[-1] != tokens:
            raise IndexFormatError(
                f"{folder / 'bounds.npy'}: not the bounds of {tokens:,} tokens; rebuild the index"
            )
        columns = {
            name: open_array(folder / f"{name}.npy", np.float32, (rows,))
            for name in ("losses", "reaches")
        }
        if not dim:
            return opened
        opened.dim = dim
        if store in RESIDUAL_BITS and "centroids" in facts:
            opened.codebook = _opened_codebook(folder, facts, dim)
        for name, dtype, width in token_columns(store, dim):
            shape = (tokens, width) if width else (tokens,)
            columns[name] = open_array(folder / f"{name}.npy", dtype, shape)
        if rows:
            if store in RESIDUAL_BITS and opened.codebook is None:
                raise IndexFormatError(f"{folder}: documents without a codebook; rebuild the index")
            opened._segments = [opened._segment(bounds=bounds, **columns)]
        return opened


def _opened_codebook(folder: Path, facts: Mapping[str, Any], dim: int) -> Any:
    from sluice.indexing.tokens.storage.codebook import STEPS, Codebook

    count, unit = fact(facts, "centroids", int, folder), fact(facts, "unit", float, folder)
    table = open_array(folder / "table.npy", np.uint8, (count, code_width(dim)), mapped=False)
    levels = open_array(folder / "levels.npy", np.int8, (STEPS,), mapped=False)
    if not count or not is_number(unit) or unit <= 0:
        raise IndexFormatError(
            f"{folder}: a codebook of {count:,} centroids in steps of {unit!r}; rebuild the index"
        )
    return Codebook(table, levels, unit)


def check_halves(documents: TokenVectors) -> None:
    """Raise ``DataError`` for a value that float16 cannot hold."""
    values = documents.values
    step = 1 << 16
    for start in range(0, len(values), step):
        if np.abs(values[start : start + step]).max(initial=0) > LARGEST_HALF:
            raise DataError(
                f"documents: a value beyond {LARGEST_HALF:,.0f}, the largest of float16; "
                "normalise the vectors, or choose store: float32"
            )
