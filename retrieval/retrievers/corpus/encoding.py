"""How a corpus is encoded: shards, the form on disk, the cache, processes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.vectors.forms import EXACT, STORES, Store

SHARD = 8_192


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings of ``Retriever.build(encoding=...)``; none but ``store`` changes what is found.

    ``shard`` is the number of texts encoded and written at a time, and so what a kill can cost.
    ``store`` is the form of vectors on disk: float16 halves it, int8 (with a scale for each
    vector) quarters it, and what that loses is said in the log. ``cache`` is a folder of vectors to
    use again, True for the usual one, for any corpus, in which the encoders used longest ago make
    room (20 GB, or ``$SLUICE_CACHE_BYTES``); without it they lie in the retriever's folder until it
    is whole.
    ``workers`` processes encode together, on ``devices`` in turn.
    """

    shard: Annotated[int, Ge(1)] = SHARD
    store: Store = EXACT
    cache: bool | str | Path | None = None
    workers: Annotated[int, Ge(1)] = 1
    devices: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("shard", "workers"):
            whole_number(getattr(self, name), name, 1)
        if isinstance(self.devices, str):
            raise ConfigError(f"devices: {self.devices!r}; expected a list such as ['cuda:0']")
        if self.store not in STORES:
            near = suggest(str(self.store), STORES)
            raise ConfigError(f"store: {self.store!r}; known: {', '.join(STORES)}{near}")

    @property
    def cache_folder(self) -> Path | None:
        """The folder of cached vectors, None for no cache."""
        if self.cache is True:
            from sluice.encoders.vectors.cache import cache_root

            return cache_root()
        return Path(self.cache).expanduser() if self.cache else None
