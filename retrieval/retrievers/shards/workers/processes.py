"""Shards in processes of this machine; one that dies is started again."""

from __future__ import annotations

import itertools
import logging
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Annotated

from annotated_types import Ge

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.processes import cores, end, end_cause, longer_pause, start
from sluice.retrieval.retrievers.shards.workers import process as process_module
from sluice.retrieval.retrievers.shards.workers.crew import (
    HUNG,
    PING,
    START,
    TRIES,
    ShardWorkers,
)
from sluice.retrieval.retrievers.shards.workers.process import read_frame, write_frame

log = logging.getLogger("sluice")

SOON = 10.0  # seconds: a process that ends sooner is started again after a pause


class ShardProcesses(ShardWorkers):
    """Searches shards in processes of this machine.

    ``workers`` is how many processes share the shards: one for each shard, if left out.
    ``replicas`` is how many processes search the same shard, so that there are as many times more
    of them. ``threads`` is how many each uses. ``partial``, ``deadline_ms`` and ``hedge_ms`` are
    the search parameters, where a call has no others.
    """

    type_name = "processes"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)] | None = None,
        replicas: Annotated[int, Ge(1)] = 1,
        threads: Annotated[int, Ge(1)] | None = None,
        partial: str | None = None,
        deadline_ms: float | None = None,
        hedge_ms: float | None = None,
    ) -> None:
        super().__init__(replicas, partial, deadline_ms, hedge_ms)
        self.workers = None if workers is None else whole_number(workers, "workers", 1)
        share = max(1, cores() // (self.workers or cores()))
        self.threads = share if threads is None else whole_number(threads, "threads", 1)
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], _Process] = {}

    def _process(self, shard: int, replica: int) -> _Process:
        number = shard if self.workers is None else shard % self.workers
        with self._lock:
            at = number, replica
            if at not in self._running:
                self._running[at] = _Process(f"{number}.{replica}", self.threads)
            return self._running[at]

    @property
    def process_ids(self) -> dict[tuple[int, int], int]:
        """The processes that run, by the number of the worker and of the replica."""
        with self._lock:
            return {at: each.process_id for at, each in self._running.items() if each.process_id}

    def begin(self, shard: int, replica: int, request: bytes) -> Callable[[], bytes]:
        """Send a request; return what waits for its answer."""
        return self._process(shard, replica).begin(request)

    def wait_for(self, shard: int, replica: int) -> None:
        """Wait until the process has started."""
        self._process(shard, replica).wait()

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            running, self._running = list(self._running.values()), {}
        for each in running:
            each.close()


class _Process:
    """A process, its successors, and the requests that they have not answered."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[bytes]] = {}
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._started = threading.Event()
        self._closed = threading.Event()
        self._stream: socket.socket | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._heard = time.monotonic()
        self._failed = 0  # processes in a row that ended before they had started
        self._why = "its worker is starting"
        self._keeper = threading.Thread(target=self._keep, name=f"shard-{name}", daemon=True)
        self._keeper.start()

    @property
    def process_id(self) -> int:
        """The process that answers now; 0 while there is none."""
        running = self._running
        return running.pid if running is not None and self._started.is_set() else 0

    def wait(self) -> None:
        """Wait until it has started; ``SluiceError`` where it does not."""
        ends = time.monotonic() + START
        while not self._started.wait(0.2):
            if self._failed >= TRIES or time.monotonic() > ends:
                raise SluiceError(f"{self._why}; what it printed says why it cannot start")

    def begin(self, request: bytes) -> Callable[[], bytes]:
        """Send a request; return what waits for the answer."""
        number, answer = next(self._numbers), Future[bytes]()
        with self._lock:
            stream = self._stream if self._started.is_set() else None
            if stream is not None:
                self._waiting[number] = answer
        if stream is None:
            answer.set_exception(ConnectionError(self._why))
        else:
            self._send(stream, number, request)
        return lambda: self._await(answer)

    def _send(self, stream: socket.socket, number: int, body: bytes) -> None:
        try:
            with self._writing:
                write_frame(stream, number, body)
        except OSError:  # it is gone, or has not read for a long time
            if stream is self._stream:
                self._kill()

    def _await(self, answer: Future[bytes]) -> bytes:
        began = time.monotonic()
        while True:
            try:
                return answer.result(timeout=PING)
            except TimeoutError:
                stream = self._stream
                if time.monotonic() - max(began, self._heard) > HUNG:
                    self._kill()  # which ends the wait
                elif stream is not None:
                    self._send(stream, 0, b"")

    def _kill(self) -> None:
        running = self._running
        if running is not None:
            running.kill()

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        while self._keeper.is_alive():
            self._kill()
            self._keeper.join(0.1)

    # In a thread of its own.

    def _keep(self) -> None:
        """Start the process, read its answers, and start it again when it ends."""
        pause = 0.0
        while not self._closed.wait(pause):
            began = time.monotonic()
            try:
                with self._spawn() as stream:
                    while (frame := read_frame(stream)) is not None:
                        self._heard = time.monotonic()
                        self._hear(*frame)
                    how = end_cause(self._end())
            except OSError as error:  # no memory, or no more processes
                how = str(error)
            self._failed = 0 if self._started.is_set() else self._failed + 1
            self._started.clear()
            pause = longer_pause(pause) if time.monotonic() - began < SOON else 0.0
            if not self._closed.is_set():
                self._why = f"its worker ended ({how}) and is being started again"
                log.warning("shards: worker %s ended (%s); starting another", self._name, how)
            self._fail()

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        # A process that reads nothing for so long is given up.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(HUNG), 0))
        self._running = start(
            process_module.__name__, threads=self._threads, channel=theirs,
            stdin=subprocess.DEVNULL, stdout=2, process_group=0,
        )  # fmt: skip
        self._stream, self._heard = ours, time.monotonic()
        return ours

    def _hear(self, number: int, body: bytearray) -> None:
        if not number:
            self._started.set()
            return
        with self._lock:
            answer = self._waiting.pop(number, None)
        if answer is not None:
            answer.set_result(bytes(body))

    def _end(self) -> int:
        running = self._running
        if running is None:
            return 0
        (code,) = end([running])  # it may have closed the stream alone
        self._running = self._stream = None
        return code

    def _fail(self) -> None:
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for answer in waiting:
            answer.set_exception(ConnectionError(self._why))
