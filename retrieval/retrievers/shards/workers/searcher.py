"""What a worker does: opens the indexes of shards and answers requests; their messages."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.children import describe_error
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import DataError, IndexFormatError, SluiceError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing import open_index
from sluice.indexing.index import Index, saved_type

log = logging.getLogger("sluice")

Array = NDArray[Any]
DTYPES: Final = ("<f4", "<f8", "<i4", "<i8", "|u1")
STATES = 3  # of a shard that stay open: searches of an earlier one may be under way


class Message(NamedTuple):
    """A few values that JSON has, and arrays."""

    values: dict[str, Any]
    arrays: list[Array]


def pack(values: Mapping[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """Return a message as bytes, see ``unpack``."""
    whole = [np.ascontiguousarray(each) for each in arrays]
    shapes = [(each.dtype.str, each.shape) for each in whole]
    head = json.dumps([values, shapes], default=_plain).encode()
    return b"".join([struct.pack("<I", len(head)), head, *(each.tobytes() for each in whole)])


def unpack(data: bytes) -> Message:
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


def query_arrays(queries: Any) -> tuple[dict[str, Any], list[Array]]:
    """Return the form of queries' vectors, and their arrays."""
    if isinstance(queries, TokenVectors):
        return {"form": "tokens"}, [queries.values, queries.bounds]
    if isinstance(queries, sparse.csr_array):
        arrays = [queries.data, queries.indices, queries.indptr]
        return {"form": "sparse", "shape": list(queries.shape)}, arrays
    return {"form": "dense"}, [queries]


def read_queries(message: Message) -> tuple[Any, list[Array]]:
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


class ShardSearcher:
    """Answers requests about the indexes of shards, which it opens when they are first named.

    Threads may call it together. A request names a folder, a generation and the hash of its
    manifest, so that all shards of a search are of one state, whatever changes meanwhile: another
    folder may take the place of one, with generations of the same names.
    """

    def __init__(self) -> None:
        self._states: dict[str, OrderedDict[str, Index]] = {}
        self._opening = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request, which may be an error."""
        try:
            return self._answer(unpack(request))
        except (SluiceError, OSError) as error:
            return pack({"error": describe_error(error)})
        except Exception as error:  # the service has the others' answers
            log.exception("a shard could not be searched")
            return pack({"error": [type(error).__name__, f"{type(error).__name__}: {error}"]})

    def _answer(self, message: Message) -> bytes:
        values = message.values
        index = self._open(*(values[key] for key in ("folder", "generation", "state", "allow")))
        if values["do"] == "open":
            return _facts(index)
        queries, others = read_queries(message)
        params = values["params"]
        if values["do"] == "passages":
            passages: Any = index
            return pack({}, [passages.winning_passages(queries, others[0], params=params)])
        keep = None
        if others:
            keep = np.unpackbits(others[0], count=index.rows).astype(np.bool_)
        hits = index.search(queries, values["k"], keep=keep, params=params)
        return pack({}, [hits.rows, hits.scores])

    def _open(self, folder: str, generation: str, state: str, allow: list[str]) -> Index:
        with self._opening:
            states = self._states.get(folder, OrderedDict())
            index = states.get(state)
            if index is None:
                if state_of(Path(folder), generation) != state:
                    raise IndexFormatError(
                        f"{folder}: another folder took its place; open the retriever again"
                    )
                index = open_index(Path(folder), generation=generation, allow=allow)
                for gone in [each for each in self._states if not Path(each).is_dir()]:
                    del self._states[gone]  # by a reshard or a rebuild: files that no folder has
                self._states[folder] = states
                states[state] = index
                while len(states) > STATES:
                    states.popitem(last=False)
            states.move_to_end(state)
            return index


def state_of(folder: Path, generation: str) -> str:
    """Return the hash of the manifest of a generation of an index; nothing where there is none."""
    try:
        return hashlib.blake2b((folder / generation / MANIFEST).read_bytes()).hexdigest()[:32]
    except OSError:  # opening it says what is wrong
        return ""


def _facts(index: Index) -> bytes:
    values = {
        "type": saved_type(index.innermost),
        "metric": index.metric,
        "width": index.width,
        "rows": index.rows,
        "by_passages": index.by_passages,
        "parameters": list(index._search_parameters()),
        "size_bytes": index.size_bytes,
        "resident_bytes": index.resident_bytes,
        "encoder_fingerprint": index.encoder_fingerprint,
    }
    return pack(values, [index._live.deleted])
