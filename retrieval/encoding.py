"""How a corpus is encoded: shards, the form on disk, the cache, processes and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoders.errors import ConfigError, suggest
from encoders.vector_forms import EXACT, STORES, Store

SHARD = 8_192


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings of ``Retriever.build(encoding=...)``; none but ``store`` changes what is found.

    ``shard`` is the number of texts encoded and written at a time, and so what a kill can cost.
    ``store`` is the form of vectors on disk: float16 halves it, int8 (with a scale for each
    vector) quarters it, and what that loses is said in the log. ``cache`` is a folder of vectors to
    use again, for any corpus, in which the encoders used longest ago make room (20 GB, or
    ``$SLUICE_CACHE_BYTES``); without it they lie in the retriever's folder until it is whole.
    ``workers`` processes encode together, on ``devices`` in turn.
    """

    shard: int = SHARD
    store: Store = EXACT
    cache: Path | None = None
    workers: int = 1
    devices: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("shard", "workers"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name}: {value!r}; expected a whole number from 1")
        if isinstance(self.devices, str):
            raise ConfigError(f"devices: {self.devices!r}; expected a list such as ['cuda:0']")
        if self.store not in STORES:
            near = suggest(str(self.store), STORES)
            raise ConfigError(f"store: {self.store!r}; known: {', '.join(STORES)}{near}")
