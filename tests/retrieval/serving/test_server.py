"""Real sockets: requests that do not arrive, and an end that finishes what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from serving import EXTRA, asker

from sluice.retrieval.serving.work.lane import Job

BODY = json.dumps({"query": "gold", "pipeline": "bm25", "fields": []}).encode()
HEAD = b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SEARCH = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@contextmanager
def running(service: Any) -> Iterator[tuple[Any, Callable[[], socket.socket], threading.Thread]]:
    """Run the server over a free port; yield it, what connects to it, and its thread."""
    pytest.importorskip("uvicorn", reason=EXTRA)
    from sluice.retrieval.serving import make_app
    from sluice.retrieval.serving.processes.server import Server
    from sluice.retrieval.serving.processes.start import listening

    listener, began = listening(service.settings), threading.Event()
    server = Server(make_app(service), service, began.set)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert began.wait(20)
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        return opened[-1]

    try:
        yield server, connect, thread
    finally:
        for each in opened:
            each.close()
        server.should_exit = True
        thread.join(20)


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer: its status, its headers and its body."""
    stream = connection.makefile("rb")
    status = int(stream.readline().split()[1])
    headers = {}
    while line := stream.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    return status, headers, stream.read(int(headers["content-length"]))


def test_requests_that_do_not_arrive_are_given_up(own: Any) -> None:
    """Slow-loris: a header now and then, or a body without end, keeps no connection for ever."""
    with running(own(port=0, arrive_within=0.4)) as (_, connect, _):
        silent, partial, body, again = connect(), connect(), connect(), connect()
        begun = connect()
        begun.sendall(b"POST /sea")
        again.sendall(SEARCH)
        assert answer_of(again)[0] == 200
        again.sendall(HEAD)  # the second request of a connection, without its end
        body.sendall(HEAD + b"content-length: 100\r\n\r\n{")
        partial.sendall(b"POST /search HTTP/1.1\r\n")
        start = time.monotonic()
        for number in range(20):
            time.sleep(0.1)
            try:
                partial.sendall(b"x-%d: 1\r\n" % number)
            except OSError:
                break
            if time.monotonic() - start > 0.25 and number == 2:
                fine = connect()  # others are answered meanwhile
                fine.sendall(SEARCH)
                assert answer_of(fine)[0] == 200
        assert time.monotonic() - start < 1.9
        assert answer_of(again)[0] == answer_of(begun)[0] == 408
        status, headers, text = answer_of(body)
        assert (status, headers["connection"]) == (408, "close")
        assert b"body: not here within 0.4 s" in text
        assert silent.recv(10) == b""
        assert body.recv(10) == b""


HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n"
ENDLESS = {
    "header": b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
    "line": b"GET /health?",
    "trailer": CHUNKED + b"x: ",
}


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The parser of the server: uvicorn takes h11 where httptools is not installed."""
    module = pytest.importorskip(f"uvicorn.protocols.http.{request.param}_impl")
    from sluice.retrieval.serving.processes import server

    names = {"httptools": "HttpToolsProtocol", "h11": "H11Protocol"}
    monkeypatch.setattr(server, "AutoHTTPProtocol", getattr(module, names[request.param]))
    return str(request.param)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ENDLESS)
def test_an_endless_head_is_refused_and_holds_nobody_up(own: Any, parser: str, place: str) -> None:
    with running(own(port=0)) as (_, connect, _):
        rude, fine = connect(), connect()
        rude.sendall(ENDLESS[place])
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 8_000_000:  # more than buffers hold: it is not read to its end
                rude.sendall(b"a" * 65_536)
                sent += 65_536
                start = time.monotonic()
                fine.sendall(HEALTH)
                assert answer_of(fine)[0] == 200
                assert time.monotonic() - start < 1
        assert sent < 8_000_000
        assert answer_of(rude)[0] == 431


def test_heads_have_64_kib_and_bodies_more(own: Any, parser: str) -> None:
    with running(own(port=0)) as (_, connect, _):
        begin, end = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ", b"\r\n\r\n"
        longest = begin + b"a" * (65_536 - len(begin) - len(end)) + end
        fine, split, above, large = connect(), connect(), connect(), connect()
        fine.sendall(longest + HEALTH)  # the second one is counted anew
        split.sendall(longest[:50_000])
        above.sendall(longest.replace(end, b"aa" + end))
        head = HEAD + b"content-length: 300000\r\n\r\n"
        large.sendall(head + b" " * 150_000)
        assert [answer_of(each)[0] for each in (fine, above)] == [200, 431]
        split.sendall(longest[50_000:])
        large.sendall(b" " * (150_000 - len(BODY)) + BODY + HEALTH)
        assert [answer_of(each)[0] for each in (split, large)] == [200, 200]
        unread = connect()  # answered before its body is there, which is passed over and no head
        unread.sendall(head.replace(b"host: localhost", b"host: other") + b" " * 100_000)
        assert answer_of(unread)[0] == 421
        unread.sendall(b" " * 200_000 + HEALTH)
        assert answer_of(unread)[0] == 200


@pytest.mark.parametrize(("share", "longest"), [(3, 100), (100, 4)])
def test_connections_of_an_address_make_room(
    own: Any, monkeypatch: pytest.MonkeyPatch, share: int, longest: int
) -> None:
    """Idle connections, and those with a part of a request, keep nobody else out."""
    from sluice.retrieval.serving.processes import server

    monkeypatch.setattr(server, "SHARE", share)
    monkeypatch.setattr(server, "CONNECTIONS", longest)
    with running(own(port=0)) as (_, connect, _):
        idle = [connect() for _ in range(3)]
        idle[0].sendall(HEAD + b"content-length: 100\r\n\r\n{")
        idle[1].sendall(b"POST /sea")
        for _ in range(3):
            fine = connect()
            fine.sendall(HEALTH)
            assert answer_of(fine)[0] == 200
            fine.sendall(SEARCH)
            assert answer_of(fine)[0] == 200
        for each in idle:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""


def test_stopping_finishes_what_was_accepted_and_refuses_the_rest(own: Any) -> None:
    service = own(port=0, stop_within=10.0)
    with running(service) as (server, connect, thread):
        go = threading.Event()
        lane = service._lanes["indexes"]
        for number in range(len(lane._threads)):
            lane.submit(Job(number, [1], [1], lambda units: [go.wait(10)]))
        accepted, kept = connect(), connect()
        kept.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert answer_of(kept)[0] == 200
        accepted.sendall(SEARCH)
        while service.waiting()[0] == 0:
            time.sleep(0.01)
        server.should_exit = True
        while not service.stopping:
            time.sleep(0.01)
        for connection in (kept, connect()):  # an old connection, and a new one
            connection.sendall(SEARCH)
            status, headers, text = answer_of(connection)
            assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
            assert json.loads(text)["error"]["type"] == "stopping"
        go.set()
        status, _, text = answer_of(accepted)
        assert status == 200
        assert json.loads(text)["hits"]
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(OSError, match="refused"):
            connect()


def test_the_end_does_not_wait_for_ever(own: Any) -> None:
    service = own(port=0, stop_within=0.3)
    with running(service) as (server, connect, thread):
        go = threading.Event()
        service._lanes["models"].submit(Job("stuck", [1], [1], lambda units: [go.wait(20)]))
        waiting = connect()
        body = BODY.replace(b'"bm25"', b'"dense"')
        waiting.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        start = time.monotonic()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()
        assert time.monotonic() - start < 6
        go.set()


def test_a_service_is_ready_when_it_is_warm(own: Any) -> None:
    service = own(writable=True)
    ask = asker(service)
    go = threading.Event()
    service._lanes["writes"].submit(Job("held", [1], [1], lambda units: [go.wait(10)]))
    service.start()
    cold = ask("GET", "/ready")
    assert (cold.status_code, cold.headers["retry-after"]) == (503, "5")
    assert cold.json()["fault"].startswith("warming up")
    assert ask("GET", "/health").status_code == 200
    go.set()
    end = time.monotonic() + 20
    while not service.is_warm:
        assert time.monotonic() < end
        time.sleep(0.02)
    warm = ask("GET", "/ready")
    assert (warm.status_code, warm.json()["fault"], warm.json()["state"]) == (200, None, 1)


def test_requests_ahead_of_their_answers_are_bounded(own: Any, parser: str) -> None:
    """A client that sends requests by the thousand, before any answer, takes little memory."""
    with running(own(port=0)) as (_, connect, _):
        for number in (10, 1_000):
            several, answered = connect(), b""
            several.sendall(HEALTH * number)
            with contextlib.suppress(ConnectionError):
                while answered.count(b"HTTP/1.1 200") < number and (more := several.recv(65_536)):
                    answered += more
            whole = number == 10 or parser == "h11"  # which reads one request at a time
            assert (answered.count(b"HTTP/1.1 200") == number) == whole
        fine = connect()
        fine.sendall(HEALTH)
        assert answer_of(fine)[0] == 200
