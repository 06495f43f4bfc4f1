"""How a folder is served: addresses, limits, batches, keys."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import is_number
from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers

LONGEST = 86_400  # seconds or milliseconds of a setting
MOST_QUERY = 20_000  # characters of a query: rerankers read it anew with each document
JUDGE_DEPTH = 10  # documents of each pipeline, unless told otherwise
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a service, with their limits checked.

    ``hosts`` are the names that a request's Host header may have, beside those of the loopback.
    Times are in seconds, except ``window_ms``: how long the first request of a batch waits for
    others. ``queue_tokens`` bounds what waits or runs, ``batch_tokens`` one pass of a model.
    ``longest_wait`` is for the first part of a request; what would wait longer is refused.
    ``rate`` is the most requests of one client in a second, None for any number. ``inputs`` is the
    most texts of one request and ``depth`` the largest ``k``. Headers and body have
    ``arrive_within`` seconds each. ``workers`` are processes over one socket. ``judge`` is a file
    of queries or a split of the dataset, ``judgements`` the log of the grades for the first
    ``judge_depth`` documents of each pipeline. ``shard_workers`` search the shards of retrievers,
    and end with the service.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    keys: Path | None = None
    open_to_all: bool = False
    writable: bool = False
    mcp: bool = False
    judge: str | None = None
    judgements: Path | None = None
    judge_depth: int = JUDGE_DEPTH
    pipelines: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    batch_tokens: int = 16_384
    queue_tokens: int = 262_144
    window_ms: float = 0.0
    longest_wait: float = 0.25
    inputs: int = 1_024
    depth: int = 1_000
    body_bytes: int = 2 * 1024 * 1024
    rate: float | None = None
    timeout: float = 60.0
    arrive_within: float = 10.0
    reload_every: float = 1.0
    stop_within: float = 30.0
    workers: int = 1
    shard_workers: ShardWorkers | None = None

    def __post_init__(self) -> None:
        """Refuse limits that no request could meet, and an open port without keys."""
        for name in (
            "batch_tokens", "queue_tokens", "inputs", "depth", "body_bytes", "workers",
            "judge_depth",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)!r}; expected 1 or more")
        for name in ("timeout", "longest_wait", "arrive_within", "reload_every", "stop_within"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value <= LONGEST:
                raise ConfigError(f"{name}: {value!r}; expected seconds above 0, up to {LONGEST:,}")
        if self.shard_workers is not None and self.workers > 1:
            raise ConfigError(
                f"workers: {self.workers:,}, and shard_workers: each process would start shard "
                "workers of its own; expected one of the two"
            )
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate: {self.rate!r}; expected requests a second, above 0")
        if not 0 <= self.window_ms <= LONGEST:
            raise ConfigError(
                f"window_ms: {self.window_ms!r}; expected milliseconds, 0 to {LONGEST:,}"
            )
        if self.queue_tokens < self.batch_tokens:
            raise ConfigError(
                f"queue_tokens: {self.queue_tokens:,}, and a batch has up to "
                f"{self.batch_tokens:,}; expected at least as many"
            )
        if self.judge is None and (self.judgements is not None or self.judge_depth != JUDGE_DEPTH):
            raise ConfigError(
                "judgements, judge_depth: are for judging, and nothing is judged; set judge too"
            )
        if self.judge is not None and self.judge_depth > self.depth:
            raise ConfigError(
                f"judge_depth: {self.judge_depth:,}, and the largest k is {self.depth:,}; expected "
                "at most as many"
            )
        if not self.is_local and self.keys is None and not self.open_to_all:
            raise ConfigError(
                f"host {self.host}: other machines reach it, and no keys are set; give --keys FILE "
                "(sluice key makes one), or --open to answer everybody"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The names that a Host header may have, without a port, in small letters."""
        own = () if self.host in ("0.0.0.0", "::") else (self.host,)
        return frozenset(name.lower() for name in (*LOOPBACK, *own, *self.hosts))
