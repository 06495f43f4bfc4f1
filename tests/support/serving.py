"""Sends requests to a service's application without a socket, or serves it over one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXTRA = "the extra serve is not installed: pip install 'sluice-ir[serve]'"

Ask = Callable[..., Any]


def asker(service: Any, **headers: str) -> Ask:
    """Return a function that sends requests to a service's application, and returns responses."""
    import httpx

    from sluice.retrieval.serving import make_app

    app = make_app(service)

    def ask(*request: Any) -> Any:
        several = isinstance(request[0], tuple)
        requests = list(request) if several else [request]

        async def send() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", headers=headers
            ) as client:
                return await asyncio.gather(*(_sent(client, *each) for each in requests))

        responses = asyncio.run(send())
        return responses if several else responses[0]

    async def _sent(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
        if isinstance(body, bytes):
            kind = {"content-type": "application/json"}
            return await client.request(method, path, content=body, headers=kind)
        if body is None:
            return await client.request(method, path)
        return await client.request(method, path, json=body)

    return ask


@contextmanager
def over_http(folder: Path, settings: Any) -> Iterator[str]:
    """Serve a folder over the loopback from a thread, and yield its address."""
    import uvicorn

    from sluice.retrieval.serving import Service, make_app
    from sluice.retrieval.serving.processes.start import listening

    listener = listening(settings)
    app = make_app(Service.open(folder, settings))
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
