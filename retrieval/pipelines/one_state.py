"""Keeps all stages of one call at the same state of a retriever that another thread may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

State = TypeVar("State")

# What the call under way has seen: an object and its state, by the object's id. The object is kept,
# since another could get the id of one that is gone.
_seen: ContextVar[dict[int, tuple[object, Any]] | None] = ContextVar("seen", default=None)


@contextmanager
def one_state() -> Iterator[None]:
    """Let each retriever be searched in one state until the outermost block ends."""
    if _seen.get() is not None:
        yield
        return
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def kept_state(owner: object, current: State) -> State:
    """Return the state that the call under way saw first, the current one outside of calls."""
    seen = _seen.get()
    if seen is None:
        return current
    _, state = seen.setdefault(id(owner), (owner, current))
    return cast("State", state)
