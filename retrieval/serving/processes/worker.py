"""One worker of several: a service that announces its changes to the others."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import lock, lock_file
from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.serving.content.live import Peers
from sluice.retrieval.serving.settings import ServeSettings


class Opened(NamedTuple):
    """A worker has opened the folder; it listens after its first ``Refresh``."""


class Listening(NamedTuple):
    """A worker answers requests."""


class Failed(NamedTuple):
    """A worker cannot start: the error of a setting or of the folder."""

    message: str


class Ask(NamedTuple):
    """A worker's question: the number of a state, or, without one, that all serve the newest."""

    ticket: int
    state: str | None = None


class Answer(NamedTuple):
    """The parent's answer to ``Ask``: a state's number, or how many do not serve the newest."""

    ticket: int
    number: int = 0


class Refresh(NamedTuple):
    """Serve the folder's newest state now."""

    ticket: int


class Refreshed(NamedTuple):
    """A worker has done what ``Refresh`` asked; ``served``: the newest state is served now."""

    ticket: int
    served: bool


FromWorker = Opened | Listening | Failed | Ask | Refreshed


ANSWERED_WITHIN = 15.0  # seconds; the parent gives up earlier


class Workers(Peers):
    """The other workers, asked through the parent; a file's lock lets one of all write."""

    def __init__(self, pipe: Connection, place: Path) -> None:
        super().__init__()
        self._pipe, self._place = pipe, place
        self._sending = threading.Lock()
        self._tickets = itertools.count(1)
        self._waiting: dict[int, Future[int]] = {}

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, lock_file(self._place / "writing.lock") as handle:
            lock(handle)
            yield

    def writing(self) -> AbstractContextManager[object]:
        """Wait until no other worker writes; one that was killed holds nothing."""
        return self._writing()

    def number(self, state: str) -> int:
        """Return the parent's number of a state."""
        return self._ask(state)

    def changed(self) -> int:
        """Return when all workers have opened the newest state: how many of them could not."""
        return self._ask(None)

    def send(self, message: FromWorker) -> None:
        """Say something to the parent, if it is there."""
        with self._sending, suppress(OSError):
            self._pipe.send(message)

    def answered(self, answer: Answer) -> None:
        """Give an answer to the thread that waits for it."""
        if waiting := self._waiting.pop(answer.ticket, None):
            waiting.set_result(answer.number)

    def _ask(self, state: str | None) -> int:
        ticket, number = next(self._tickets), Future[int]()
        self._waiting[ticket] = number
        self.send(Ask(ticket, state))
        try:
            return number.result(ANSWERED_WITHIN)
        except TimeoutError:
            raise SluiceError("the parent of the workers does not answer") from None


def work(
    number: int,
    folder: Path,
    settings: ServeSettings,
    listener: socket.socket,
    pipe: Connection,
    place: Path,
    level: int,
) -> None:
    """Serve a folder as worker ``number`` until SIGTERM, or until the parent ends."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which tells the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # uvicorn has its own
    _log_to_stderr(level)
    peers = Workers(pipe, place)
    opened, refreshed = threading.Event(), threading.Event()
    held: list[Any] = []  # the service and the server, once there

    def refresh(ticket: int) -> None:
        opened.wait()
        served = False
        try:
            held[0].live.refresh()
            served = not held[0].live.behind
        finally:
            peers.send(Refreshed(ticket, served))
            refreshed.set()

    def listen() -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):  # the parent has ended
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if isinstance(message, Answer):
                peers.answered(message)
            elif isinstance(message, Refresh):
                threading.Thread(target=refresh, args=(message.ticket,), daemon=True).start()

    threading.Thread(target=listen, name="sluice-parent", daemon=True).start()
    try:
        from sluice.retrieval.serving.http.app import make_app
        from sluice.retrieval.serving.metrics import count_as_worker
        from sluice.retrieval.serving.processes.server import Server, logged_requests
        from sluice.retrieval.serving.service import Service

        count_as_worker(place, number)
        service = Service.open(folder, settings, peers)
        app = make_app(service)
    except (SluiceError, OSError) as error:
        peers.send(Failed(str(error)))
        sys.exit(2)
    held.append(service)
    opened.set()
    peers.send(Opened())
    refreshed.wait(ANSWERED_WITHIN)
    with logged_requests():
        Server(app, service, lambda: peers.send(Listening())).run(sockets=[listener])


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("sluice").setLevel(level)
