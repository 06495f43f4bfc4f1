"""One request as the end points see it, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from sluice.retrieval.serving.faults import Fault
from sluice.retrieval.serving.shapes.base import Shape, read_json, read_values

JSON = "application/json"

Read = TypeVar("Read", bound=Shape)
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Call:
    """A request that was let in: ``arrived`` is its ``time.perf_counter``.

    ``gone`` returns when the client has closed the connection. ``key`` is the name of the key, None
    where none is needed.
    """

    request_id: str
    arrived: float
    body: bytes
    gone: Callable[[], Awaitable[Any]]
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    def read(self, kind: type[Read]) -> Read:
        """Return the body as a shape; a ``Fault`` that names the field that is wrong."""
        return read_json(kind, self.body)

    def asked(self, kind: type[Read], values: Mapping[str, Any]) -> Read:
        """Return the values of a query string as a shape."""
        return read_values(kind, dict(values))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a shape, a list of such, plain values, or bytes of a ``media`` type."""

    content: Any
    status: int = 200
    media: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The bytes to send."""
        if isinstance(self.content, bytes):
            return self.content
        if isinstance(self.content, BaseModel):
            return self.content.__pydantic_serializer__.to_json(self.content)
        return to_json(self.content)


async def unless_gone(work: Awaitable[Answer], gone: Awaitable[Any]) -> Answer:
    """Return what ``work`` does; where ``gone`` returns first, cancel the work and stop."""
    # The work runs in this task: another one for each request is a tenth of what the loop does.
    own, working, left = asyncio.current_task(), True, False
    watcher = asyncio.ensure_future(gone)

    def leave(_: Any) -> None:
        nonlocal left
        left = working and own is not None and own.cancel()

    watcher.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not left or own is None:
            raise
        own.uncancel()
        raise Fault(499, "client_closed_request", "the client closed the connection") from None
    finally:
        working = False  # where both end at once, leave may be called after this
        watcher.remove_done_callback(leave)
        watcher.cancel()
