"""Starts the service: one process or several over HTTP, or MCP over standard input and output."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.encoders.foundation.processes import cores, longer_pause
from sluice.retrieval.retrievers.folder import read_head
from sluice.retrieval.serving.content.content import heads_in
from sluice.retrieval.serving.content.live import Numbers
from sluice.retrieval.serving.processes.worker import (
    Answer,
    Ask,
    Failed,
    FromWorker,
    Listening,
    Opened,
    Refresh,
    Refreshed,
    work,
)
from sluice.retrieval.serving.settings import ServeSettings

log = logging.getLogger("sluice.serve")

# What the process that workers are forked from has read: a new worker starts in half the time, and
# the memory of modules is there once.
# None of these starts a thread, which would not live on in a fork.
PRELOADED = (
    "numba",
    "faiss",
    "sluice.retrieval.serving.http.app",
    "sluice.retrieval.serving.processes.server",
)
OF_MODELS = ("torch", "transformers")  # where something else than words is searched
MORE = 5.0  # seconds beyond ``stop_within`` after which workers are killed
GIVEN_UP = 10.0  # seconds that a change waits for another worker to take it over


@dataclass(eq=False)
class Worker:
    """One worker: its process, and what it is waited for."""

    number: int
    process: Any
    pipe: Connection
    opened: bool = False
    listens: bool = False


@dataclass(eq=False)
class Spread:
    """A change announced to workers: ``waiting`` have not answered, ``writer`` waits for it.

    ``behind`` counts those that could not open the new state, or not in time.
    """

    writer: Worker | None
    ticket: int
    waiting: set[Worker]
    behind: int = 0
    since: float = field(default_factory=time.monotonic)


class Parent:
    """Keeps ``workers`` processes over one socket, until SIGTERM or Ctrl-C.

    The socket is bound here and inherited: connections that a killed worker had not accepted are
    another one's. A change by one worker is announced to all before it is answered.
    """

    def __init__(self, folder: Path, settings: ServeSettings, listener: socket.socket) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigError("--workers: this system cannot fork processes; leave it out")
        for package, name in (("uvicorn", "uvicorn"), ("prometheus_client", "prometheus-client")):
            if importlib.util.find_spec(package) is None:
                raise MissingPackageError(name, "serve", "serving over HTTP")
        self.folder, self.settings, self.listener = folder, settings, listener
        self._context: Any = multiprocessing.get_context("forkserver")
        heads = [read_head(path.parent) for path in heads_in(folder)]
        by_words = bool(heads) and all(head.encoder_generation for head in heads)
        self._context.set_forkserver_preload([*PRELOADED, *(() if by_words else OF_MODELS)])
        self._workers: list[Worker] = []
        self._pauses: dict[int, tuple[float, float]] = {}  # by number: since when, how long
        self._numbers = Numbers()
        self._spreads: dict[int, Spread] = {}
        self._tickets = 0
        self._said = False

    def run(self, said: Callable[[], None]) -> None:
        """Serve; ``said`` is called when the first worker answers. ``ConfigError`` if it cannot.

        The others start after it: what is compiled at first use, they find on disk.
        """
        # Each worker has its share of the cores; what the user set stays.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.settings.workers)))
        with tempfile.TemporaryDirectory(prefix="sluice-serve-") as place, _signals() as woken:
            self._place = Path(place)
            try:
                self._start(0)
                while not woken.count:
                    self._turn(woken.pipe)
                    if not self._said and self._workers[0].listens:
                        self._said = True
                        said()
                        for number in range(1, self.settings.workers):
                            self._start(number)
            finally:
                self._stop(woken)
        if woken.count:
            raise KeyboardInterrupt  # as one process alone does: the command says how it ended

    def _start(self, number: int) -> None:
        own, its = self._context.Pipe()
        level = logging.getLogger("sluice").getEffectiveLevel()
        process = self._context.Process(
            target=work,
            args=(number, self.folder, self.settings, self.listener, its, self._place, level),
            name=f"sluice-worker-{number}",
        )
        process.start()
        its.close()
        self._workers.append(Worker(number, process, own))

    def _turn(self, woken: Connection) -> None:
        """Wait for what workers say, for one that ends, or for a signal."""
        watched: list[Any] = [woken, *(each.pipe for each in self._workers)]
        watched += [each.process.sentinel for each in self._workers]
        ready = wait(watched, timeout=0.2 if self._pauses or self._spreads else 60.0)
        for worker in list(self._workers):
            if worker.pipe in ready:
                self._read(worker)
            if worker.process.sentinel in ready:
                self._ended(worker)
        now = time.monotonic()
        for number, (since, pause) in list(self._pauses.items()):
            started = any(each.number == number for each in self._workers)
            if not started and now - since >= pause:
                self._start(number)
        for spread in [s for s in self._spreads.values() if now - s.since > GIVEN_UP]:
            numbers = ", ".join(str(each.number) for each in spread.waiting)
            log.warning("worker %s: does not serve the newest state yet", numbers)
            spread.behind += len(spread.waiting)
            spread.waiting.clear()
            self._settle(spread)

    def _read(self, worker: Worker) -> None:
        with suppress(EOFError, OSError):
            while worker.pipe.poll():
                self._take(worker, worker.pipe.recv())

    def _take(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case Ask(ticket, None):
                self._spread(worker, ticket)
            case Ask(ticket, state):
                _send(worker, Answer(ticket, self._numbers.number(str(state))))
            case Opened():
                worker.opened = True  # what was written before is on disk for it
                self._spread(None, 0, [worker])
            case Refreshed(ticket, served):
                if spread := self._spreads.get(ticket):
                    spread.waiting.discard(worker)
                    spread.behind += not served
                    self._settle(spread)
            case Listening():
                worker.listens = True
                self._pauses.pop(worker.number, None)
            case Failed(text):
                if not self._said:
                    raise ConfigError(text)
                log.error("worker %d: %s", worker.number, text)

    def _spread(self, writer: Worker | None, ticket: int, told: list[Worker] | None = None) -> None:
        if told is None:
            told = [each for each in self._workers if each.opened and each is not writer]
        self._tickets += 1
        spread = self._spreads[self._tickets] = Spread(writer, ticket, set(told))
        for worker in told:
            if not _send(worker, Refresh(self._tickets)):
                spread.waiting.discard(worker)
        self._settle(spread)

    def _settle(self, spread: Spread) -> None:
        if spread.waiting:
            return
        self._spreads = {n: each for n, each in self._spreads.items() if each is not spread}
        if spread.writer is not None:
            _send(spread.writer, Answer(spread.ticket, spread.behind))

    def _ended(self, worker: Worker) -> None:
        """Start another worker: at once for one that answered, else after longer and longer."""
        self._read(worker)
        worker.process.join()
        code = worker.process.exitcode
        self._workers.remove(worker)
        worker.pipe.close()
        for spread in list(self._spreads.values()):
            spread.waiting.discard(worker)
            self._settle(spread)
        if not self._said:
            raise ConfigError(f"worker {worker.number}: ended with code {code} before it answered")
        _, pause = self._pauses.get(worker.number, (0.0, 0.0))
        pause = 0.0 if worker.listens else longer_pause(pause)
        log.warning("worker %d ended (code %s); starting another", worker.number, code)
        self._pauses[worker.number] = (time.monotonic(), pause)

    def _stop(self, woken: _Woken) -> None:
        """End all workers: those that do not finish in time, or at a second signal, are killed."""
        for worker in self._workers:
            worker.process.terminate()
        ends, before = time.monotonic() + self.settings.stop_within + MORE, woken.count
        while alive := [each for each in self._workers if each.process.is_alive()]:
            if time.monotonic() > ends or woken.count > max(1, before):
                for worker in alive:
                    worker.process.kill()
            wait([each.process.sentinel for each in alive], timeout=0.1)
            for worker in alive:
                self._read(worker)  # a write that waits for others
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()


@dataclass(eq=False)
class _Woken:
    pipe: Connection
    count: int = 0


@contextmanager
def _signals() -> Iterator[_Woken]:
    """Count SIGTERM and Ctrl-C; each also writes to a pipe, which ends a wait."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    woken = _Woken(reading)

    def note(number: int, frame: Any) -> None:
        woken.count += 1
        with suppress(OSError):
            os.write(writing.fileno(), b"x")

    before = {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield woken
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        reading.close()
        writing.close()


def _send(worker: Worker, message: Any) -> bool:
    try:
        worker.pipe.send(message)
    except OSError:  # it has ended, which is seen in a moment
        return False
    return True


Said = Callable[[str], None]


def run_http(folder: Path, settings: ServeSettings, said: Said) -> None:
    """Serve a folder until SIGTERM or Ctrl-C; ``said`` gets the address when it answers."""
    listener = listening(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        if settings.workers > 1:
            Parent(folder, settings, listener).run(lambda: said(address))
            return
        from sluice.retrieval.serving.processes.server import Server, logged_requests  # isort: skip
        from sluice.retrieval.serving.http.app import make_app
        from sluice.retrieval.serving.service import Service

        service = Service.open(folder, settings)
        try:
            app = make_app(service)
        except BaseException:
            service.close()
            raise
        with logged_requests():
            Server(app, service, lambda: said(address)).run(sockets=[listener])
    finally:
        listener.close()


def listening(settings: ServeSettings) -> socket.socket:
    """Return a socket of the address, which does not listen yet; port 0 takes a free one.

    It listens once a process answers: no request waits for models to be loaded.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {settings.host}: {error}; expected an address") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(
            f"--port {settings.port}: {error}; choose another one with --port"
        ) from None
    return listener


def run_mcp(folder: Path, settings: ServeSettings) -> None:
    """Serve an agent over standard input and output."""
    from sluice.retrieval.serving.mcp import run_stdio
    from sluice.retrieval.serving.service import Service

    asyncio.run(run_stdio(Service.open(folder, settings)))
