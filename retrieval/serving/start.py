"""Runs the service: uvicorn over HTTP, or MCP over standard input and output."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.retrieval.serving.settings import ServeSettings

REQUESTS = "sluice.serve.requests"
BACKLOG = 512  # connections that wait to be accepted
CONNECTIONS = 4_096  # at a time; more are answered 503


def run_http(folder: Path, settings: ServeSettings, said: Callable[[str], None]) -> None:
    """Serve a folder until SIGTERM or Ctrl-C; ``said`` gets the address when it answers."""
    try:
        import uvicorn
    except ImportError:
        raise MissingPackageError("uvicorn", "serve", "serving over HTTP") from None
    from sluice.retrieval.serving.http.app import make_app
    from sluice.retrieval.serving.service import Service

    listener = listening(settings)
    try:
        service = Service.open(folder, settings)
        app = make_app(service)
    except BaseException:
        listener.close()
        raise
    lines = logging.getLogger(REQUESTS)
    lines.propagate = False
    if not lines.handlers:
        lines.addHandler(logging.StreamHandler(sys.stderr))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(settings.stop_within)),
        limit_concurrency=CONNECTIONS,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=64 * 1024,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = uvicorn.Server(config)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    listener.listen(BACKLOG)  # not earlier: no request waits for models to be loaded
    said(f"http://{shown}:{port}")
    server.run(sockets=[listener])


def listening(settings: ServeSettings) -> socket.socket:
    """Return a socket of the address, which does not listen yet; port 0 takes a free one."""
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

    service: Any = Service.open(folder, settings)
    asyncio.run(run_stdio(service))
