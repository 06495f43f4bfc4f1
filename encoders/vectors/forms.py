"""The cache of vectors: their forms on disk, shards, and where each text's vector lies."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense, Vectors
from sluice.encoders.foundation.disk.files import commit, new_draft
from sluice.encoders.foundation.errors import DataError, IndexFormatError, ModelError
from sluice.encoders.foundation.tokens import TokenVectors

Hashes = NDArray[np.bytes_]  # S16
Places = NDArray[np.int64]  # -1: nowhere

ROW_BITS = 32  # a place is shard << 32 | row


def text_hash(text: str | Mapping[str, str]) -> bytes:
    """Return the 16 bytes that stand for what an encoder reads: a text, or its fields by name."""
    if not isinstance(text, str):
        text = "\x00" + json.dumps(text, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def text_hashes(texts: Iterable[str | Mapping[str, str]]) -> Hashes:
    """Return the hashes of texts, ``S16 [n]``."""
    return np.frombuffer(b"".join(map(text_hash, texts)), "S16")


class HashDirectory:
    """Maps hashes to places, for millions of texts; a hash added twice has either place."""

    def __init__(self) -> None:
        self._levels: list[tuple[Hashes, Places]] = []

    def __len__(self) -> int:
        return sum(len(places) for _, places in self._levels)

    def add(self, hashes: Hashes, places: Places) -> None:
        """Add texts; levels join like the digits of a binary counter, so that few are searched.

        Each text is sorted O(log n) times.
        """
        joined, total = [(hashes, places)], len(places)
        while self._levels and len(self._levels[-1][1]) <= total:
            joined.append(self._levels.pop())
            total += len(joined[-1][1])
        keys, values = (np.concatenate(part) for part in zip(*joined, strict=True))
        order = np.argsort(keys, kind="stable")
        self._levels.append((keys[order], values[order]))

    def find(self, hashes: Hashes) -> Places:
        """Return the place of each hash, -1 where there is none."""
        found = np.full(len(hashes), -1, np.int64)
        for keys, places in self._levels:
            if len(keys):
                at = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
                here = keys[at] == hashes
                found[here] = places[at[here]]
        return found

    def forget(self, shard: int) -> None:
        """Remove every text of a shard."""
        kept = [(keys, places, places >> ROW_BITS != shard) for keys, places in self._levels]
        self._levels = [(keys[mask], places[mask]) for keys, places, mask in kept]


Arrays = Mapping[str, NDArray[Any]]

MAGIC = b"sluicev1"
ALIGNMENT = 64  # bytes: of every array's start
BLOCK = 1 << 20  # bytes checked at a time
SUFFIX = ".vectors"
LARGEST_HEADER = 1 << 20
DTYPES = frozenset(("<f4", "<f2", "|i1", "<i4", "<i8", "|S16"))  # never one of objects


def write_shard(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Write arrays and the facts that describe them as the file ``path``, in one step.

    Several processes may write the same file at once: the first stays. Layout: the magic number,
    the header's length (uint64), the header (JSON), the arrays, their CRC-32 with the header's.
    """
    entries, offset = {}, 0
    for name, array in arrays.items():
        entries[name] = [array.dtype.str, list(array.shape), offset]
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps({**facts, "arrays": entries, "bytes": offset}).encode()
    header += b" " * (-(16 + len(header)) % ALIGNMENT)
    with new_draft(path) as draft:
        with draft.open("wb") as stream:
            start = MAGIC + len(header).to_bytes(8, "little") + header
            stream.write(start)
            checksum = zlib.crc32(start)
            for array in arrays.values():
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                for part in (data, bytes(-array.nbytes % ALIGNMENT)):
                    stream.write(part)
                    checksum = zlib.crc32(part, checksum)
            stream.write(checksum.to_bytes(4, "little"))
        if not path.exists():
            commit(draft, path)


class Shard:
    """A shard's file: opening reads the header and checks the size; arrays are mapped on demand.

    ``IndexFormatError`` for a file that is not a shard, or not of the size in its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            start = stream.read(16)
            length = int.from_bytes(start[8:], "little")
            if start[:8] != MAGIC or length > LARGEST_HEADER:
                raise IndexFormatError(f"{path}: is not a file of vectors")
            header = stream.read(length)
        try:
            self.facts: dict[str, Any] = json.loads(header)
            self._entries = {
                str(name): (_stored_dtype(dtype), tuple(map(int, shape)), 16 + length + int(offset))
                for name, (dtype, shape, offset) in self.facts["arrays"].items()
            }
            size = 16 + length + int(self.facts["bytes"]) + 4
            for name, (dtype, shape, begin) in self._entries.items():
                end = begin + dtype.itemsize * math.prod(shape)
                if min(shape, default=0) < 0 or begin < 16 + length or end > size - 4:
                    raise ValueError(f"the array {name!r} is not inside of the file")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IndexFormatError(f"{path}: its header is damaged ({error})") from None
        actual = path.stat().st_size
        if actual != size:
            raise IndexFormatError(f"{path}: {actual:,} bytes, expected {size:,} by its header")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def array(self, name: str) -> NDArray[Any]:
        """Return an array, mapped into memory as long as it is referred to."""
        try:
            dtype, shape, offset = self._entries[name]
        except KeyError:
            raise IndexFormatError(f"{self.path}: has no array {name!r}") from None
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, mode="r", offset=offset, shape=shape)

    def verify(self) -> None:
        """Raise ``IndexFormatError`` unless the checksum matches the content."""
        left, checksum = self.path.stat().st_size - 4, 0
        with self.path.open("rb") as stream:
            while left > 0:
                block = stream.read(min(BLOCK, left))
                if not block:
                    break
                checksum = zlib.crc32(block, checksum)
                left -= len(block)
            stored = stream.read(4)
        if left or stored != checksum.to_bytes(4, "little"):
            raise IndexFormatError(f"{self.path}: its checksum does not match its content")


def _stored_dtype(dtype: Any) -> np.dtype[Any]:
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}")
    return np.dtype(str(dtype))


Store: TypeAlias = Literal["float32", "float16", "int8"]
Values: TypeAlias = NDArray[Any]

STORES: tuple[Store, ...] = ("float32", "float16", "int8")
EXACT: Store = "float32"
LARGEST_INT8 = 127


def checked_vectors(vectors: Any, count: int, who: str) -> Vectors:
    """Return an encoder's vectors as float32 ``[count, width]``; an error names what is wrong."""
    matrix: Any = vectors  # one of scipy's many sparse classes, or a numpy array
    if isinstance(vectors, TokenVectors):
        values = vectors.values
    elif sp.issparse(vectors):
        matrix = sp.csr_array(matrix).astype(np.float32, copy=False)
        values = matrix.data
    elif isinstance(vectors, np.ndarray) and vectors.ndim == 2:
        matrix = values = np.ascontiguousarray(vectors, np.float32)
    else:
        shape = f" of shape {vectors.shape}" if isinstance(vectors, np.ndarray) else ""
        raise ModelError(
            f"{who}: encode_documents returned {type(vectors).__name__}{shape}, expected an array "
            "[texts, dim], a scipy.sparse.csr_array or TokenVectors"
        )
    if matrix.shape[0] != count:
        raise ModelError(f"{who}: {matrix.shape[0]:,} vectors for {count:,} texts; give one each")
    if not np.isfinite(values).all():
        raise DataError(f"{who}: a vector is not finite (NaN or infinite); it was not stored")
    checked: Vectors = matrix
    return checked


def stored_form(vectors: Vectors, store: Store) -> dict[str, Values]:
    """Return the arrays that represent the vectors on disk.

    int8 has a scale for each vector (of token vectors, for each token's), its largest value / 127;
    the rounding error is at most half of it. ``DataError`` for a value too large for float16.
    """
    if isinstance(vectors, TokenVectors):
        return {"bounds": vectors.bounds, **stored_form(_plain(vectors), store)}
    if isinstance(vectors, np.ndarray):
        lines = np.full(len(vectors), vectors.shape[1])
        return _encoded(vectors.reshape(-1), lines, store, vectors.shape)
    sparse = vectors.copy() if not vectors.has_sorted_indices else vectors
    sparse.sort_indices()
    starts = np.asarray(sparse.indptr, np.int64)
    return {
        "starts": starts,
        "terms": np.asarray(sparse.indices, np.int32),
        **_encoded(sparse.data, np.diff(starts), store, sparse.data.shape),
    }


def _encoded(
    values: Values, lines: Values, store: Store, shape: tuple[int, ...]
) -> dict[str, Values]:
    if store == "float32":
        return {"values": values.reshape(shape)}
    if store == "float16":
        with np.errstate(over="ignore"):
            small = values.astype(np.float16)
        if not np.isfinite(small).all():
            raise DataError(
                f"store: float16 holds values up to 65,504, a vector has {np.abs(values).max():.6g}"
                "; store float32, or int8, which has a scale for each vector"
            )
        return {"values": small.reshape(shape)}
    peaks = np.zeros(len(lines), np.float32)
    filled = lines > 0
    if filled.any():
        begins = np.concatenate(([0], np.cumsum(lines)))[:-1]
        peaks[filled] = np.maximum.reduceat(np.abs(values), begins[filled])
    scales = (peaks / LARGEST_INT8).astype(np.float32)
    steps = np.repeat(np.where(scales > 0, scales, np.float32(1)), lines)
    rounded = np.clip(np.rint(values / steps), -LARGEST_INT8, LARGEST_INT8).astype(np.int8)
    return {"values": rounded.reshape(shape), "scales": scales}


def dense_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return stored dense vectors ``[n, dim]`` of rows, in their order, as float32."""
    vectors = np.asarray(arrays["values"][rows], np.float32)
    if "scales" in arrays:
        vectors *= np.asarray(arrays["scales"][rows])[:, None]
    return vectors


def token_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64]) -> TokenVectors:
    """Return stored token vectors of texts, in their order, as float32."""
    stored = np.asarray(arrays["bounds"])
    starts, lengths = stored[rows], stored[rows + 1] - stored[rows]
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    if (starts[1:] == stored[rows + 1][:-1]).all():  # neighbours, as a corpus is read: one piece
        first = int(starts[0]) if len(starts) else 0
        places: Any = slice(first, first + int(bounds[-1]))
    else:
        places = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
    values = np.array(arrays["values"][places], np.float32)
    if "scales" in arrays:
        values *= np.asarray(arrays["scales"][places])[:, None]
    return TokenVectors(values, bounds)


def sparse_rows(arrays: Mapping[str, Values], rows: NDArray[np.int64], width: int) -> sp.csr_array:
    """Return stored sparse vectors ``[n, width]`` of rows, in their order, as float32."""
    starts = np.asarray(arrays["starts"])
    lengths = starts[rows + 1] - starts[rows]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(starts[rows] - ends[:-1], lengths) + np.arange(ends[-1])
    values = np.asarray(arrays["values"][places], np.float32)
    if "scales" in arrays:
        values *= np.repeat(np.asarray(arrays["scales"][rows]), lengths)
    vectors = sp.csr_array((values, arrays["terms"][places], ends), shape=(len(rows), width))
    if values.size and not values.all():  # int8 rounded some to zero
        vectors.eliminate_zeros()
    return vectors


def put_together(parts: Sequence[Vectors], order: Sequence[NDArray[np.int64]]) -> Vectors:
    """Return one matrix of parts whose rows belong at the positions in ``order``."""
    matrices: Any = parts
    back = np.argsort(np.concatenate(order), kind="stable")
    if isinstance(parts[0], TokenVectors):
        return TokenVectors.joined(matrices, parts[0].dim).rows(back)
    if isinstance(parts[0], np.ndarray):
        dense: Vectors = np.concatenate(matrices)[back]
        return dense
    return sp.csr_array(sp.vstack(matrices, format="csr"))[back]


def mean_cosine(one: Vectors, other: Vectors) -> float:
    """Return the mean cosine between the rows of two matrices; rows of zeros are left out.

    Of token vectors, between those of the same token.
    """
    one, other = _plain(one), _plain(other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        products = np.einsum("ij,ij->i", one, other, dtype=np.float64)
        squares = [np.einsum("ij,ij->i", each, each, dtype=np.float64) for each in (one, other)]
    else:
        left, right = sp.csr_array(one), sp.csr_array(other)
        products = np.asarray(left.multiply(right).sum(axis=1), np.float64)
        squares = [
            np.asarray(each.multiply(each).sum(axis=1), np.float64) for each in (left, right)
        ]
    lengths = np.sqrt(squares[0] * squares[1])
    some = lengths > 0
    return float((products[some] / lengths[some]).mean()) if some.any() else 1.0


def _plain(vectors: Vectors) -> Dense | sp.csr_array:
    """Return token vectors as one matrix of all tokens, others as they are."""
    return cast(Dense, vectors.values) if isinstance(vectors, TokenVectors) else vectors
