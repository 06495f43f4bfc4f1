"""Starts the service: one process or several over HTTP, or MCP over standard input and output."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.serving.settings import ServeSettings

Said = Callable[[str], None]


def run_http(folder: Path, settings: ServeSettings, said: Said) -> None:
    """Serve a folder until SIGTERM or Ctrl-C; ``said`` gets the address when it answers."""
    listener = listening(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        if settings.workers > 1:
            from sluice.retrieval.serving.processes.parent import Parent

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
