"""Names the shards that a search went without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_absent: ContextVar[dict[str, str] | None] = ContextVar("sluice_absent_shards", default=None)


@contextmanager
def partial_results() -> Iterator[dict[str, str]]:
    """Yield a dictionary that the searches of the block, in this thread, fill.

    It has the name of each shard whose documents could not be found, with the reason; it stays
    empty where all answered, as they must unless ``partial: allow`` is set.
    """
    outer = _absent.get()
    absent: dict[str, str] = {}
    token = _absent.set(absent)
    try:
        yield absent
    finally:
        _absent.reset(token)
        if outer is not None:
            outer.update(absent)


def note_absent(absent: Mapping[str, str]) -> None:
    """Add shards, with the reasons, to what the blocks around collect."""
    collected = _absent.get()
    if collected is not None:
        collected.update(absent)
