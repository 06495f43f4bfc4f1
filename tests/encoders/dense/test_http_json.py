"""A server that answers drop by drop is given up in time, whatever of its answer is slow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sluice.encoders.dense.remote.http_json import HttpJson
from sluice.encoders.foundation.errors import ModelError

OK, REFUSED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 400 Bad Request\r\n"
SLOW = {
    "status": (b"HTTP/1.1 200 ", b"O"),
    "head": (OK, b"x"),
    "body": (OK + b"content-length: 1000\r\n\r\n", b"["),
    "chunks": (OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n[\r\n"),
    "error": (REFUSED + b"content-length: 1000\r\n\r\n", b"no"),
}


@pytest.fixture
def dripping(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that sends the start of an answer, and then drops for ever."""
    start, drops = SLOW[request.param]
    listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(start)
            try:
                while not stop.wait(0.02):
                    connection.sendall(drops)
            except OSError:
                pass  # the client gave up

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    stop.set()
    thread.join()
    listener.close()


@pytest.mark.parametrize("dripping", SLOW, indirect=True)
def test_the_time_is_for_the_whole_answer(dripping: str) -> None:
    client, start = HttpJson(dripping, timeout_s=0.3, retries=0), time.monotonic()
    with pytest.raises(ModelError, match=r"took too long|timed out|status 400"):
        client.post({})
    assert time.monotonic() - start < 0.8
