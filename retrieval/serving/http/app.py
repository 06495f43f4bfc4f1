"""The ASGI application: the end points, the page and MCP, behind the guard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import needed_package
from sluice.retrieval.serving.faults import Fault, fault_of
from sluice.retrieval.serving.http.call import Call, EndPoint, Reply
from sluice.retrieval.serving.http.endpoints import END_POINTS, SEARCH, openapi
from sluice.retrieval.serving.http.guard import (
    CALL,
    App,
    Guard,
    Receive,
    Scope,
    Send,
    internal,
    refusal,
    send_reply,
)
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.settings import TABLE, Keys

with needed_package("starlette", "serve", "serving over HTTP"):
    from starlette.applications import Starlette
    from starlette.convertors import PathConvertor, register_url_convertor
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, compile_path

log = logging.getLogger("sluice.serve")

MCP_PATH = "/mcp"
BEAT = 0.05  # seconds between two looks at how late the event loop is
LATEST = 0.2  # the weight of the latest of them

PAGE = "sluice.retrieval.serving.http"
PAGES = {
    "/": "index.html", "/page.js": "page.js", "/page.css": "page.css", "/icon.svg": "icon.svg",
}  # fmt: skip
MEDIA = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


class Answering:
    """An end point as an ASGI application: its reply, or what is wrong as an answer."""

    def __init__(self, service: Service, points: Mapping[str, EndPoint], path: str) -> None:
        self.service, self.points, self.path = service, points, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call: Call = scope[CALL]
        scope["sluice.route"] = self.path
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        point = self.points.get(method)
        try:
            if point is None:
                known = ", ".join(self.points)
                raise Fault(405, "method_not_allowed", f"{method}: expected {known}")
            call.path = scope.get("path_params", {})
            if scope["query_string"]:
                call.query = dict(Request(scope).query_params)
            reply = await point.handler(self.service, call)
        except Exception as error:
            fault = fault_of(error)
            if fault is None:
                log.exception("request %s failed", call.request_id)
                fault = internal()
            fault.message = self.service.readable(fault.message)
            scope["sluice.refused"] = fault.kind
            reply = refusal(fault, call.request_id)
        await send_reply(reply, send)


def make_app(service: Service) -> App:
    """Return the application that answers from a service, which its lifespan starts and closes."""
    settings = service.settings
    keys = None if settings.keys is None else Keys(settings.keys)
    service.metrics.watch(
        lambda: service.waiting()[0],
        lambda: service.budget.used,
        lambda: service.content.number,
    )
    paths: dict[str, dict[str, EndPoint]] = {}
    for point in END_POINTS:
        paths.setdefault(point.path, {})[point.method] = point
    routes: list[Any] = [
        _route(path, Answering(service, points, path)) for path, points in paths.items()
    ]
    document = Reply(openapi(keys=keys is not None))
    files = {**page_files(PAGE, PAGES), "/openapi.json": document}
    for part in TABLE.values():
        files |= page_files(part.room, resolve(part.pages))
    routes += [_route(path, _static(path, reply)) for path, reply in files.items()]
    managers: list[Any] = []
    if settings.mcp:
        from sluice.retrieval.serving.mcp import mcp_http

        application, manager = mcp_http(service)
        posts = _posts(MCP_PATH, application)
        routes += [_route(MCP_PATH, posts), _route(f"{MCP_PATH}/", posts)]
        managers.append(manager)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        beating = asyncio.ensure_future(_beat(service))
        async with AsyncExitStack() as stack:
            stack.callback(beating.cancel)
            for manager in managers:
                await stack.enter_async_context(manager())
            try:
                yield
            finally:
                if not await asyncio.to_thread(service.close):
                    log.warning("stopped before all that was accepted was done")

    application = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _not_here}
    )
    return Guard(application, service, keys, scope_of(frozenset(files)))


def page_files(room: str, pages: Mapping[str, str]) -> dict[str, Reply]:
    """Return the files of a room's page, by the address that each is served at."""
    folder = resources.files(room) / "files"
    return {
        address: Reply((folder / name).read_bytes(), media=MEDIA[Path(name).suffix])
        for address, name in pages.items()
    }


async def _beat(service: Service) -> None:
    """Note by how much the event loop is late, on average of late."""
    while True:
        due = time.perf_counter() + BEAT
        await asyncio.sleep(BEAT)
        service.lag += LATEST * (time.perf_counter() - due - service.lag)


def scope_of(public: frozenset[str]) -> Any:
    """Return the function that says what scope a key needs for a method and a path."""
    # The router's own patterns: what it lets through to an end point needs that one's scope.
    patterns = [
        (each.method, compile_path(_pattern(each.path))[0], each.scope) for each in END_POINTS
    ]

    def needed(method: str, path: str) -> str | None:
        if path in public:
            return None
        for known, pattern, scope in patterns:
            if known == ("GET" if method == "HEAD" else method) and pattern.match(path):
                return scope
        return SEARCH

    return needed


def _route(path: str, application: App) -> Any:
    return Route(_pattern(path), endpoint=application, methods=None)


_any_id = PathConvertor()
_any_id.regex = "(?s:.*)"  # the rest of a path, line breaks too
register_url_convertor("any_id", _any_id)


def _pattern(path: str) -> str:
    return path.replace("{id:path}", "{id:any_id}")


def _static(path: str, reply: Reply) -> App:
    body = Reply(reply.body, media=reply.media, headers={"cache-control": "no-cache"})

    async def send_file(scope: Scope, receive: Receive, send: Send) -> None:
        scope["sluice.route"] = path
        if scope["method"] not in ("GET", "HEAD"):
            fault = Fault(405, "method_not_allowed", f"{scope['method']}: expected GET")
            await send_reply(refusal(fault, scope[CALL].request_id), send)
            return
        await send_reply(body, send)

    return _Application(send_file)


def _posts(path: str, application: App) -> App:
    """Return an application that answers POST at its root, and nothing else.

    Without sessions, a stream that a GET opens would stay empty and hold its connection.
    """

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        scope["sluice.route"] = path
        if scope["method"] != "POST":
            fault = Fault(405, "method_not_allowed", f"{scope['method']}: expected POST")
            scope["sluice.refused"] = fault.kind
            await send_reply(refusal(fault, scope[CALL].request_id), send)
            return
        await application({**scope, "path": "/", "raw_path": b"/"}, receive, send)

    return _Application(pass_on)


class _Application:
    """A function as an ASGI application: Starlette takes a function for one of a request."""

    def __init__(self, answer: App) -> None:
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.answer(scope, receive, send)


async def _not_here(request: Request, error: HTTPException) -> Response:
    """Answer a path that no end point has."""
    call: Call = request.scope[CALL]
    known = "/openapi.json lists them"
    if request.scope["path"].rstrip("/") == MCP_PATH:
        known = "sluice serve --mcp http adds it"
    fault = Fault(error.status_code, "not_found", f"no such path; {known}")
    request.scope["sluice.refused"] = fault.kind
    reply = refusal(fault, call.request_id)
    return Response(reply.body, reply.status, reply.headers, reply.media)
