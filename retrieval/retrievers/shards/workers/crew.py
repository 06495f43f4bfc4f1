"""The workers that search shards: contract, and the indexes that they stand behind."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from sluice.encoders.foundation.children import error_from
from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing import open_index
from sluice.indexing.folder import index_class
from sluice.indexing.hits import Hits
from sluice.indexing.index import Parameters
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.wrappers.fan_out import DEADLINE, HEDGE, PARTIAL, check_patience
from sluice.indexing.wrappers.remote import RemoteFacts, RemoteIndex
from sluice.retrieval.retrievers.shards.workers.searcher import (
    Message,
    pack,
    query_arrays,
    state_of,
    unpack,
)

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
