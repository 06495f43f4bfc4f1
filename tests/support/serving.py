"""Sends requests to a service's application, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
