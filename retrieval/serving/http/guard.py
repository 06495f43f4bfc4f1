"""What stands before the end points: host, keys, rate and size, request ids and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sluice.retrieval.serving.faults import Fault, overloaded, too_large
from sluice.retrieval.serving.http.call import JSON, Call, Reply
from sluice.retrieval.serving.http.endpoints import SEARCH
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.settings import Key, Keys
from sluice.retrieval.serving.shapes.base import ErrorAnswer, ErrorFacts

log = logging.getLogger("sluice.serve.requests")

CALL = "sluice.call"  # where the scope of a request has its ``Call``
DOCUMENTS = "/documents/"  # before an id
REQUEST_ID = re.compile(rb"[\w.-]{1,64}")
BUSY = 32  # requests under way: with fewer, another program makes the event loop late
CLIENTS = 10_000  # whose rate is remembered
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ScopeOf = Callable[[str, str], "str | None"]  # of a method and a path; None: no key is needed


class Guard:
    """Lets requests in: an ASGI application around the end points.

    A body is read whole before its end point runs, so that a slow client holds nothing but its
    connection. Every answer has an id, and one line of JSON in the log, without query or key.
    """

    def __init__(self, app: App, service: Service, keys: Keys | None, scope_of: ScopeOf) -> None:
        self.app, self.service, self.keys, self.scope_of = app, service, keys, scope_of
        self.hosts = service.settings.allowed_hosts
        self._rates: dict[str, tuple[float, float]] = {}
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass the lifespan on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        arrived = time.perf_counter()
        headers = dict(scope["headers"])
        header = headers.get(b"x-request-id", b"")
        safe = REQUEST_ID.fullmatch(header)
        request_id = header.decode() if safe else secrets.token_hex(8)
        seen: dict[str, Any] = {"status": 0, "key": None, "kind": None}

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
                own = [(b"x-request-id", request_id.encode()), *HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        self._under_way += 1
        try:
            key = self._let_in(scope, headers)
            seen["key"] = None if key is None else key.name
            body = await self._body(headers, receive)
            scope[CALL] = Call(request_id, arrived, body, receive, key=seen["key"])
            await self.app(scope, _replayed(body, receive), answering)
        except Fault as fault:
            seen["kind"] = fault.kind
            await send_reply(refusal(fault, request_id), answering)
        except Exception:
            log.exception("request %s failed", request_id)
            seen["kind"] = "internal"
            if not seen["status"]:
                await send_reply(refusal(internal(), request_id), answering)
        finally:
            self._under_way -= 1
            self._note(scope, request_id, arrived, seen)

    def _let_in(self, scope: Scope, headers: dict[bytes, bytes]) -> Key | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = re.sub(r":\d*$", "", host)
        if name not in self.hosts:
            raise Fault(
                421, "unknown_host", "host: this name is not served; sluice serve --allow-host"
            )
        if "\n" in scope["path"] and not scope["path"].startswith(DOCUMENTS):
            # The router takes "/metrics" and a line break for "/metrics". An id may have one.
            raise Fault(400, "invalid_request", "path: has a line break; expected none")
        needed = self.scope_of(scope["method"], scope["path"])
        key = self._key(needed, headers)
        self._check_lag(needed)
        client = scope.get("client") or ("", 0)
        self._check_rate(key.name if key is not None else str(client[0]))
        return key

    def _check_lag(self, needed: str | None) -> None:
        """Refuse before anything is read where the event loop itself has too much to do."""
        lag, longest = self.service.lag, self.service.settings.longest_wait
        if needed == SEARCH and lag > longest and self._under_way > BUSY:
            raise overloaded(
                f"the service is {lag:.1f} s late; try again after the seconds of Retry-After", 1
            )

    def _key(self, needed: str | None, headers: dict[bytes, bytes]) -> Key | None:
        if self.keys is None or needed is None:
            return None
        kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        key = self.keys.find(text.strip()) if kind.lower() == "bearer" else None
        if key is None:
            raise Fault(
                401, "unauthorized", "a key is needed; send the header Authorization: Bearer KEY"
            )
        if needed not in key.scopes:
            raise Fault(403, "forbidden", f"the key has no scope {needed!r}")
        return key

    def _check_rate(self, client: str) -> None:
        """Take one of the client's requests of this second; ``Fault`` of 429 without any left."""
        rate = self.service.settings.rate
        if rate is None:
            return
        now = time.monotonic()
        most = max(1.0, rate)
        left, since = self._rates.pop(client, (most, now))
        left = min(most, left + (now - since) * rate)
        if left >= 1:
            left -= 1
            self._rates[client] = (left, now)
            while len(self._rates) > CLIENTS:
                self._rates.pop(next(iter(self._rates)))
            return
        self._rates[client] = (left, now)
        raise overloaded(
            f"more than {rate:g} requests a second; slow down", max(1, round((1 - left) / rate))
        )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        settings = self.service.settings
        most = settings.body_bytes
        large = too_large(f"body: above {most:,} bytes; send it in parts", "body")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(settings.arrive_within):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Fault(499, "client_closed_request", "the client closed it")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise large
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Fault(
                408, "timeout", f"body: not here within {settings.arrive_within:g} s"
            ) from None
        media = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if size and media != JSON.encode():
            # A page of another site can post text without asking, and no JSON.
            raise Fault(415, "unsupported_media_type", f"content-type: expected {JSON}")
        return b"".join(parts)

    def _note(self, scope: Scope, request_id: str, arrived: float, seen: dict[str, Any]) -> None:
        seconds = time.perf_counter() - arrived
        route = scope.get("sluice.route", "other")
        refused = seen["kind"] or scope.get("sluice.refused")
        self.service.metrics.saw_request(route, seconds, refused)
        if log.isEnabledFor(logging.INFO):
            facts = {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "id": request_id,
                "method": scope["method"],
                "path": route,
                "status": seen["status"],
                "ms": round(seconds * 1000, 2),
                "key": seen["key"],
                "refused": refused,
            }
            log.info("%s", json.dumps(facts))


def internal() -> Fault:
    """Return the fault of a failure of the service, whose cause is in its log alone."""
    return Fault(500, "internal", "the service failed; its log has the cause under this request_id")


def refusal(fault: Fault, request_id: str) -> Reply:
    """Return the answer to a request that is not answered."""
    facts = ErrorFacts(
        message=fault.message, type=fault.kind, param=fault.param, code=str(fault.status)
    )
    headers = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
    if fault.status == 401:
        headers["www-authenticate"] = "Bearer"
    if fault.status in (408, 413) or fault.kind == "stopping":
        # The rest of the body is not read, or the next connection is another process's.
        headers["connection"] = "close"
    return Reply(ErrorAnswer(error=facts, request_id=request_id), fault.status, headers=headers)


async def send_reply(reply: Reply, send: Send) -> None:
    """Send an answer."""
    body = reply.body
    headers = [
        (b"content-type", reply.media.encode()),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives a body that was read, and then what comes after it."""
    replayed = False

    async def receiving() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving
