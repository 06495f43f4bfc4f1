"""uvicorn's server: heads of requests in time, and an end that finishes what was accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.retrieval.serving.service import Service

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError:
    raise MissingPackageError("uvicorn", "serve", "serving over HTTP") from None

REQUESTS = "sluice.serve.requests"
BACKLOG = 512  # connections that wait to be accepted
CONNECTIONS = 4_096  # at a time; more are answered 503
KEPT = 30  # seconds that a connection is kept for another request
LAST_ANSWERS = 1.0  # seconds to send what is done when the time to finish is over
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Server(uvicorn.Server):  # type: ignore[misc]
    """Answers from a service on a socket; ``started`` is called when it listens.

    Once told to stop it refuses new work with 503 until what was accepted is done: closing the
    socket first would leave clients without an answer.
    """

    def __init__(self, app: Any, service: Service, began: Callable[[], None]) -> None:
        settings = service.settings
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,
            http=protocol_within(settings.arrive_within),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_keep_alive=KEPT,
            limit_concurrency=CONNECTIONS,
            backlog=1,  # that are accepted at a time: other workers have their part
            h11_max_incomplete_event_size=64 * 1024,
        )
        super().__init__(config)
        self.service, self._began = service, began

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)
        self._began()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what was accepted, refusing the rest; then close the socket."""
        self.service.stop()
        while not self.service.is_done and self.service.left and not self.force_exit:
            await asyncio.sleep(0.05)
        left: Any = max(LAST_ANSWERS, self.service.left)
        self.config.timeout_graceful_shutdown = left
        await super().shutdown(sockets)


class TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc]
    """uvicorn's protocol with a time for the head of each request to arrive.

    uvicorn's own limit is for the time between requests alone, so that a client which sends a
    header now and then keeps a connection for ever.
    """

    arrive_within = 10.0  # seconds
    _timer: asyncio.TimerHandle | None = None
    _begun = False  # whether a part of a head is there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read what came, and wait for the rest of a head."""
        super().data_received(data)
        self._begun = not self._is_asked()
        if not self._begun:
            self._wait_no_more()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.arrive_within, self._give_up)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self._is_asked() and not self.transport.is_closing():
            if self._begun:
                self.transport.write(TOO_LATE)
            self.transport.close()


def protocol_within(seconds: float) -> type[asyncio.Protocol]:
    """Return the protocol with a time of its own."""
    return type("Protocol", (TimedProtocol,), {"arrive_within": seconds})


@contextmanager
def logged_requests() -> Iterator[None]:
    """Write a line for each request of the block to standard error."""
    lines, handler = logging.getLogger(REQUESTS), logging.StreamHandler(sys.stderr)
    passed_on = lines.propagate
    lines.propagate = False
    lines.addHandler(handler)
    try:
        yield
    finally:  # the program may continue, and close the stream
        lines.removeHandler(handler)
        lines.propagate = passed_on
