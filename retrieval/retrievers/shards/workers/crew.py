"""The workers that search shards: their contract, and what one does."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, SluiceError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.processes import describe_error, error_from
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import open_index
from sluice.indexing.folder import index_class
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import Index, Parameters, saved_type
from sluice.indexing.wrappers.fan_out import DEADLINE, HEDGE, PARTIAL, check_patience
from sluice.indexing.wrappers.remote import RemoteFacts, RemoteIndex

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
        "parameters": list(index._parameters.names),
        "size_bytes": index.size_bytes,
        "resident_bytes": index.resident_bytes,
        "encoder_fingerprint": index.encoder_fingerprint,
    }
    return pack(values, [index._live.deleted])


SHARD_WORKERS: Final[Mapping[str, str]] = {
    "processes": "sluice.retrieval.retrievers.shards.workers.processes:ShardProcesses",
    "ray": "sluice.retrieval.retrievers.shards.workers.actors:ShardActors",
}
PING = 5.0  # seconds without an answer after which a worker has to give a sign
HUNG = 60.0  # seconds without a word after which it is given up, and replaced
START = 300.0  # seconds that workers have to start
TRIES = 3  # workers that are lost in a row while they start, or open an index
PAUSE = 0.2  # seconds between two looks whether a worker is there again


class ShardWorkers(ABC):
    """Searches the shards of retrievers in other processes, each shard in ``replicas`` of them.

    Queries' vectors and filters go there; rows and scores come back. ``partial``, ``deadline_ms``
    and ``hedge_ms`` are the search parameters of the same names, where a call has no others. A
    worker that dies is replaced. They start with the first retriever that uses them
    (``Retriever.use_workers``) and end with the block, or ``close``.
    """

    type_name: ClassVar[str]

    def __init__(
        self,
        replicas: int = 1,
        partial: str | None = None,
        deadline_ms: float | None = None,
        hedge_ms: float | None = None,
    ) -> None:
        self.replicas = whole_number(replicas, "replicas", 1)
        given = {PARTIAL: partial, DEADLINE: deadline_ms, HEDGE: hedge_ms}
        self.params = {name: value for name, value in given.items() if value is not None}
        check_patience(self.params)
        if hedge_ms is not None and self.replicas == 1:
            raise ConfigError(
                "hedge_ms: each shard has one worker, so there is no other to ask; expected "
                "replicas: 2, or more"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def begin(self, shard: int, replica: int, request: bytes) -> Callable[[], bytes]:
        """Send a request to a worker of a shard; return what waits for its answer.

        Where the worker is gone, that raises an ``OSError``. Nothing is raised here.
        """

    @abstractmethod
    def wait_for(self, shard: int, replica: int) -> None:
        """Wait until a worker of a shard has started; ``SluiceError`` where it cannot."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    def open(
        self, shard: int, replica: int, folder: Path, generation: str, allow: Collection[str]
    ) -> RemoteIndex:
        """Let a worker open an index; return what stands for it here."""
        place = {
            "folder": str(folder.absolute()),
            "generation": generation,
            "state": state_of(folder, generation),
            "allow": list(allow),
        }
        searcher = _Worker(self, shard, replica, place)
        values, (deleted,) = self._facts(shard, replica, searcher)
        form = index_class({"type": values["type"]}, folder, allow)
        facts = RemoteFacts(
            form, values["metric"], values["width"], values["rows"], deleted,
            values["by_passages"], tuple(values["parameters"]), values["size_bytes"],
            values["resident_bytes"], values["encoder_fingerprint"],
        )  # fmt: skip
        return RemoteIndex(
            facts, searcher, lambda: open_index(folder, generation=generation, allow=allow)
        )

    def _facts(self, shard: int, replica: int, searcher: _Worker) -> Message:
        """Let a worker open what ``searcher`` names; one that is lost meanwhile is replaced."""
        for left in reversed(range(TRIES)):
            self.wait_for(shard, replica)
            try:
                return searcher.ask({"do": "open"})()
            except OSError:  # else its shard would be missing until the next state
                if not left:
                    raise
                time.sleep(PAUSE)
        raise AssertionError  # never reached


class _Worker:
    """One worker of one shard, which has opened one state of its index."""

    def __init__(
        self, workers: ShardWorkers, shard: int, replica: int, place: Mapping[str, Any]
    ) -> None:
        self._workers, self._at, self._place = workers, (shard, replica), place

    def ask(self, values: Mapping[str, Any], arrays: Any = ()) -> Callable[[], Message]:
        """Send a request; return what waits for the answer, and raises the worker's error."""
        wait = self._workers.begin(*self._at, pack({**self._place, **values}, arrays))

        def answer() -> Message:
            found = unpack(wait())
            if "error" in found.values:
                name, message = found.values["error"]
                raise error_from(name, message) or SluiceError(message)
            return found

        return answer

    def begin(
        self, queries: Any, k: int, keep: Mask | None, params: Parameters
    ) -> Callable[[], Hits]:
        """Ask for the hits."""
        form, arrays = query_arrays(queries)
        bits = [] if keep is None else [np.packbits(keep)]
        wait = self.ask({"do": "search", "k": k, "params": params, **form}, [*arrays, *bits])

        def hits() -> Hits:
            rows, scores = wait().arrays
            return Hits(rows, scores)

        return hits

    def winning_passages(self, vector: Any, rows: Rows, params: Parameters) -> Rows:
        """Ask for the passages."""
        form, arrays = query_arrays(vector)
        wait = self.ask({"do": "passages", "params": params, **form}, [*arrays, rows])
        (passages,) = wait().arrays
        return passages
