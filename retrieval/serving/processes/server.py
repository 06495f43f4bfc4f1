"""uvicorn's server: bounded heads and connections, and an end that finishes what was accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.encoders.foundation.errors import needed_package
from sluice.retrieval.serving.service import Service

with needed_package("uvicorn", "serve", "serving over HTTP"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
    from uvicorn.protocols.http.h11_impl import H11Protocol

REQUESTS = "sluice.serve.requests"
BACKLOG = 512  # connections that wait to be accepted
CONNECTIONS = 4_096  # at a time
SHARE = CONNECTIONS // 2  # for one address: a proxy in front has one
AHEAD = 64  # requests that a client sends before their answers; uvicorn would take any number
MOST_HEAD = 64 * 1024  # bytes of a request's line and headers, or of what follows its last chunk
KEPT = 30  # seconds that a connection is kept for another request
LAST_ANSWERS = 1.0  # seconds to send what is done when the time to finish is over
NO_MORE = b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout" + NO_MORE
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large" + NO_MORE


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
            h11_max_incomplete_event_size=2 * MOST_HEAD,  # the protocol refuses at half of it
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


Base: Any = asyncio.Protocol  # uvicorn's: see ``protocol_within``


class BoundedProtocol(Base):  # type: ignore[misc]
    """What uvicorn's protocols lack: bounds of a head, and of the connections of an address.

    A head has ``arrive_within`` seconds: a client that sends a header now and then would keep a
    connection for ever. Its bytes are counted before httptools copies them, a header anew for each
    part. Of too many connections the oldest that waits for its client makes room.
    """

    arrive_within = 10.0  # seconds
    addresses: dict[str, dict[Any, None]]  # the connections of each, oldest first
    _timer: asyncio.TimerHandle | None = None
    _begun = False  # whether a part of a head is there
    _unread = 0  # bytes of a head or behind a last chunk that the parser has so far
    _steps = 0  # heads and parts of bodies that httptools has read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room, and wait for the first request."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        own = self.addresses.setdefault(self._address, {})
        own[self] = None
        if len(own) > SHARE or len(self.connections) >= CONNECTIONS:
            crowd = own if len(own) > SHARE else max(self.addresses.values(), key=len)
            oldest = next((each for each in crowd if each.waits_for_client), None)
            if oldest is not None:
                oldest.leave()
                oldest.transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read what came, and wait for the rest of a head."""
        while data and not self.transport.is_closing():
            room = MOST_HEAD + 1 - self._unread
            part, data, steps = data[:room], data[room:], self._steps
            super().data_received(part)
            if isinstance(self, H11Protocol):
                paused = self.conn.their_state is h11.DONE  # the next request waits for its turn
                self._unread = 0 if paused else len(self.conn.trailing_data[0])
            else:
                self._unread = self._unread + len(part) if self._steps == steps else 0
            if self._unread > MOST_HEAD:
                self._refuse(TOO_LONG)
        self._begun = not self._is_asked()
        if not self._begun:
            self._wait_no_more()
        elif self._timer is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """Note that httptools has read a head; h11 reads none before the last is answered."""
        self._steps += 1
        if len(self.pipeline) >= AHEAD:
            self.transport.abort()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note that httptools has read a part of a body."""
        self._steps += 1
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        self.leave()
        super().connection_lost(exc)

    @property
    def waits_for_client(self) -> bool:
        """Whether the next step is the client's: to send, or to read what was sent."""
        return not self._is_asked() or self.cycle.more_body or self.flow.write_paused

    def leave(self) -> None:
        """Count no longer among the connections of an address."""
        own = self.addresses.get(self._address, {})
        own.pop(self, None)
        if not own:
            self.addresses.pop(self._address, None)

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
            self._refuse(TOO_LATE if self._begun else b"")

    def _refuse(self, answer: bytes) -> None:
        """Close, with an answer unless it would be taken for that to an earlier request."""
        if not self._is_asked() or (self.cycle.more_body and not self.cycle.response_started):
            self.transport.write(answer)
        self.transport.close()


def protocol_within(seconds: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with bounds, and a time of its own for heads."""
    own = {"arrive_within": seconds, "addresses": {}}
    return type("Protocol", (BoundedProtocol, AutoHTTPProtocol), own)


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
