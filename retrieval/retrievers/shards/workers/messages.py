"""Requests and answers between a searcher and the workers of its shards: JSON, then arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.token_vectors import TokenVectors

Array = NDArray[Any]
DTYPES: Final = ("<f4", "<f8", "<i4", "<i8", "|u1")


class Message(NamedTuple):
    """A few values that JSON has, and arrays."""

    values: dict[str, Any]
    arrays: list[Array]


def packed(values: Mapping[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """Return a message as bytes, see ``unpacked``."""
    whole = [np.ascontiguousarray(each) for each in arrays]
    shapes = [(each.dtype.str, each.shape) for each in whole]
    head = json.dumps([values, shapes], default=_plain).encode()
    return b"".join([struct.pack("<I", len(head)), head, *(each.tobytes() for each in whole)])


def unpacked(data: bytes) -> Message:
    """Return the values and arrays of a message; ``DataError`` for bytes that are none."""
    try:
        (length,) = struct.unpack_from("<I", data)
        values, shapes = json.loads(data[4 : 4 + length])
        arrays, at = [], 4 + length
        for dtype, shape in shapes:
            if dtype not in DTYPES:
                raise ValueError(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            # A copy is aligned and may be written to, as kernels expect.
            array = np.frombuffer(data, dtype, count, at).reshape(shape).copy()
            arrays.append(array)
            at += array.nbytes
    except (ValueError, TypeError, struct.error) as error:
        raise DataError(f"a message between shards and their workers: {error}") from None
    return Message(values, arrays)


def queries_sent(queries: Any) -> tuple[dict[str, Any], list[Array]]:
    """Return the form of queries' vectors, and their arrays."""
    if isinstance(queries, TokenVectors):
        return {"form": "tokens"}, [queries.values, queries.bounds]
    if isinstance(queries, sparse.csr_array):
        arrays = [queries.data, queries.indices, queries.indptr]
        return {"form": "sparse", "shape": list(queries.shape)}, arrays
    return {"form": "dense"}, [queries]


def queries_read(message: Message) -> tuple[Any, list[Array]]:
    """Return the queries' vectors of a message, and its other arrays."""
    values, arrays = message
    if values["form"] == "tokens":
        return TokenVectors(arrays[0], arrays[1]), arrays[2:]
    if values["form"] == "sparse":
        return sparse.csr_array(tuple(arrays[:3]), shape=tuple(values["shape"])), arrays[3:]
    return arrays[0], arrays[1:]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
