"""Shards in actors of a Ray cluster, whose machines see the same folders."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Annotated, Any

from annotated_types import Ge

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.execution.on_ray import RayExecutor, Surroundings, in_short
from sluice.retrieval.retrievers.shards.workers.crew import (
    HUNG,
    PAUSE,
    PING,
    START,
    ShardSearcher,
    ShardWorkers,
)
from sluice.retrieval.retrievers.shards.workers.process import TOGETHER

RESTART = 30.0  # seconds in which an actor that has died may be started again


class ShardActors(ShardWorkers):
    """Searches shards in actors of a Ray cluster, which Ray starts again where they die.

    ``address`` is that of a running cluster, or auto; left out, one is started on this machine.
    ``workers`` is how many actors share the shards: one for each shard, if left out. ``replicas``
    is how many actors search the same shard. ``num_cpus`` are the cores that an actor asks for, and
    its threads; ``resources`` what else, amounts by the cluster's own names. ``partial``,
    ``deadline_ms`` and ``hedge_ms`` are the search parameters, where a call has no others.
    """

    type_name = "ray"

    def __init__(
        self,
        address: str | None = None,
        workers: Annotated[int, Ge(1)] | None = None,
        replicas: Annotated[int, Ge(1)] = 1,
        num_cpus: Annotated[float, Ge(0)] = 1.0,
        resources: Mapping[str, float] | None = None,
        partial: str | None = None,
        deadline_ms: float | None = None,
        hedge_ms: float | None = None,
    ) -> None:
        super().__init__(replicas, partial, deadline_ms, hedge_ms)
        self.workers = None if workers is None else whole_number(workers, "workers", 1)
        self._cluster = RayExecutor(address, None, num_cpus, 0.0, resources)
        self._lock = threading.Lock()
        self._block = ExitStack()
        self._ray: Any = None
        self._actors: dict[tuple[int, int], Any] = {}

    def _actor(self, shard: int, replica: int) -> Any:
        number = shard if self.workers is None else shard % self.workers
        with self._lock:
            if self._ray is None:
                self._ray = self._block.enter_context(self._cluster.connected())
                self._cluster.slots(self._ray)  # an error where no machine has room for one
            if (number, replica) not in self._actors:
                self._actors[number, replica] = self._make()
            return self._actors[number, replica]

    def _make(self) -> Any:
        needs = dict(self._cluster.needs)
        cores, _ = needs.pop("CPU"), needs.pop("GPU")
        kind = self._ray.remote(
            num_cpus=cores, resources={name: amount for name, amount in needs.items() if amount},
            max_restarts=-1, max_task_retries=0, max_concurrency=TOGETHER,
            scheduling_strategy="SPREAD",
        )(_Searching)  # fmt: skip
        return kind.remote(max(1, math.floor(cores)), *Surroundings.here())

    def begin(self, shard: int, replica: int, request: bytes) -> Callable[[], bytes]:
        """Send a request; return what waits for its answer."""
        actor = self._actor(shard, replica)
        try:
            answer = actor.answer.remote(request)
        except Exception as error:  # Ray has classes of its own for a cluster that is gone
            return _raiser(ConnectionError(in_short(error)))
        return lambda: self._await(actor, answer)

    def _await(self, actor: Any, answer: Any) -> bytes:
        ray = self._ray
        try:
            while not ray.wait([answer], timeout=PING)[0]:
                if not ray.wait([actor.ping.remote()], timeout=HUNG)[0]:
                    ray.kill(actor, no_restart=False)
                    raise ConnectionError(f"its actor gave no sign for {HUNG:.0f} s")
            data: bytes = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            message = f"its actor ended and is being started again ({in_short(error)})"
            raise ConnectionError(message) from None
        except ray.exceptions.RayError as error:
            raise ConnectionError(in_short(error)) from None
        return data

    def wait_for(self, shard: int, replica: int) -> None:
        """Wait until the actor has started, or has started again."""
        self.process_id(shard, replica)

    def process_id(self, shard: int, replica: int) -> int:
        """Return the number of the actor's process, on its machine, once it has started."""
        actor, ray = self._actor(shard, replica), self._ray
        soon, ends = time.monotonic() + RESTART, time.monotonic() + START
        while True:
            try:
                number: int = ray.get(actor.ping.remote(), timeout=ends - time.monotonic())
                return number
            except ray.exceptions.RayError as error:
                dead = not isinstance(error, ray.exceptions.ActorUnavailableError)
                if time.monotonic() > (soon if dead else ends):
                    raise SluiceError(f"its actor does not start: {in_short(error)}") from None
            time.sleep(PAUSE)

    def close(self) -> None:
        """End the actors; a cluster that was started for them ends too."""
        with self._lock:
            for actor in self._actors.values():
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self._ray.kill(actor)
            self._actors, self._ray = {}, None
            self._block.close()


class _Searching:
    """An actor."""

    def __init__(
        self, threads: int, folder: str, places: list[str], settings: dict[str, str]
    ) -> None:
        Surroundings(folder, places, settings).take_over(threads)
        self._searcher = ShardSearcher()

    def answer(self, request: bytes) -> bytes:
        return self._searcher.answer(request)

    def ping(self) -> int:
        return os.getpid()


def _raiser(error: Exception) -> Callable[[], bytes]:
    def wait() -> bytes:
        raise error

    return wait
