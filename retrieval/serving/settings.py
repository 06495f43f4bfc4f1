"""How a folder is served: addresses, limits, batches, keys; and what is served beside searching."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import read_json, replaced_file, writable
from sluice.encoders.foundation.disk.generations import swap_lock
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError, suggest
from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers


class Part(NamedTuple):
    """A room, and in it what opens the part, its end points, and the files of its page."""

    room: str
    opener: str
    end_points: str
    pages: str


TABLE: Mapping[str, Part] = {
    "judging": Part(
        "sluice.retrieval.serving.judging",
        "sluice.retrieval.serving.judging.judging:open_judging",
        "sluice.retrieval.serving.judging.endpoints:END_POINTS",
        "sluice.retrieval.serving.judging.endpoints:PAGES",
    ),
}


log = logging.getLogger("sluice.serve")

# Read and ask models; change documents; judge them; metrics.
SCOPES = ("search", "write", "judge", "admin")
PREFIX = "sluice_"
RANDOM_BYTES = 32  # too many to guess, so that a plain hash is enough
ENTRY = {"name", "sha256", "scopes"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the file has it."""

    name: str
    sha256: str
    scopes: frozenset[str]


class Keys:
    """The keys of a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._now()
        self._keys = read_keys(path)

    def find(self, text: str) -> Key | None:
        """Return the key that a client sent, None for one that is not known."""
        if (stamp := self._now()) != self._stamp:
            self._keys, self._stamp = [], stamp  # none is valid while the file cannot be read
            try:
                self._keys = read_keys(self.path)
            except (SluiceError, OSError) as error:
                log.error("no key is valid until this is mended: %s", error)
        hashed = digest(text)
        match = None
        for key in self._keys:  # all of them: the time says nothing of which
            if hmac.compare_digest(hashed, key.sha256):
                match = key
        return match

    def _now(self) -> tuple[int, int]:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return stat.st_mtime_ns, stat.st_size


def digest(text: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file; ``DataError`` for anything else."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; sluice key {path} NAME makes one with a key")
    content = read_json(path)
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise DataError(f"{path}: not a file of keys; sluice key {path} NAME makes one")
    return [_key(path, place, entry) for place, entry in enumerate(entries)]


def _key(path: Path, place: int, entry: Any) -> Key:
    if not isinstance(entry, dict) or set(entry) != ENTRY:
        raise DataError(f"{path}: keys[{place}]: expected name, sha256 and scopes")
    if not all(isinstance(entry[name], str) for name in ("name", "sha256")):
        raise DataError(f"{path}: keys[{place}]: name and sha256 are texts")
    scopes = _scopes(entry["scopes"], f"{path}: keys[{place}]")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise DataError(f"{path}: keys[{place}]: sha256 is not 64 hexadecimal digits")
    return Key(entry["name"], entry["sha256"], scopes)


def add_key(path: Path, name: str, scopes: Collection[str]) -> str:
    """Make a key, add its hash to a file, and return the key: it is nowhere else.

    A key of the same name is replaced. Others that change the file meanwhile wait. Of a link the
    file that it leads to is changed: services that name that one must not keep a replaced key.
    """
    checked = _scopes(list(scopes), f"key {name}")
    if not name.strip():
        raise ConfigError("name: blank; expected what tells this key from others")
    text = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    path = Path(os.path.realpath(path))
    with swap_lock(writable(path)):
        others = [key for key in read_keys(path) if key.name != name] if path.exists() else []
        keys = [*others, Key(name, digest(text), checked)]
        listed = [{"name": k.name, "sha256": k.sha256, "scopes": sorted(k.scopes)} for k in keys]
        with replaced_file(path, 0o600) as stream:
            stream.write(json.dumps({"keys": listed}, indent=2).encode() + b"\n")
    return text


def _scopes(scopes: Any, where: str) -> frozenset[str]:
    if not isinstance(scopes, list) or not scopes:
        raise ConfigError(f"{where}: scopes: {scopes!r}; expected some of {', '.join(SCOPES)}")
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(
                f"{where}: scope {scope!r}; expected one of {', '.join(SCOPES)}"
                f"{suggest(str(scope), SCOPES)}"
            )
    return frozenset(scopes)


LONGEST = 86_400  # seconds or milliseconds of a setting
MOST_QUERY = 20_000  # characters of a query: rerankers read it anew with each document
SECONDS = Interval(gt=0, le=LONGEST)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
@checked()
class ServeSettings:
    """The settings of a service, with their limits checked; those with a sentence are options too.

    ``hosts`` are the names that a request's Host header may have, beside those of the loopback.
    Times are in seconds, except ``window_ms``: how long the first request of a batch waits for
    others. ``longest_wait`` is for the first part of a request; what would wait longer is refused.
    ``inputs`` is the most texts of one request and ``depth`` the largest ``k``. Headers and body
    have ``arrive_within`` seconds each. ``workers`` are processes over one socket. ``judge`` is a
    file of queries or a split of the dataset. ``shard_workers`` search the shards of retrievers,
    and end with the service.
    """

    host: Annotated[
        str, "ADDRESS", "The address to listen at; the default is this machine alone."
    ] = "127.0.0.1"
    port: Annotated[int, Ge(0), "The port; 0 takes a free one."] = 8080
    hosts: Annotated[
        Sequence[str], "NAME", "A name by which requests may call this service; may be repeated."
    ] = ()
    keys: Annotated[Path | None, "The keys of `sluice key`: requests need one."] = None
    open_to_all: Annotated[bool, "Answer other machines without keys."] = False
    writable: Annotated[bool, "Let requests add, replace and delete documents."] = False
    mcp: bool = False
    judge: Annotated[
        str | None,
        "QUERIES",
        "Let people grade documents at /judge: a file of queries, or a split of the dataset.",
    ] = None
    judgements: Annotated[Path | None, "The log that judgements are added to."] = None
    judge_depth: Annotated[int, Ge(1), "Judge the first N documents of each pipeline."] = 10
    pipelines: Annotated[
        Sequence[str],
        "NAME",
        "A pipeline or retriever to serve; may be repeated, and the last is used where a request "
        "names none.",
    ] = ()
    allow: tuple[str, ...] = ()
    batch_tokens: Annotated[int, Ge(1), "Tokens that a model reads at once."] = 16_384
    queue_tokens: Annotated[
        int, Ge(1), "Tokens that are accepted and not done; more are refused."
    ] = 262_144
    window_ms: Annotated[
        float, Interval(ge=0, le=LONGEST), "MS", "How long a batch waits for more requests."
    ] = 0.0
    longest_wait: Annotated[
        float, SECONDS, "SECONDS", "Requests that would wait longer for their turn are refused."
    ] = 0.25
    inputs: Annotated[int, Ge(1), "Texts in one request."] = 1_024
    depth: Annotated[int, Ge(1), "The largest k."] = 1_000
    body_bytes: Annotated[int, Ge(1)] = 2 * 1024 * 1024
    rate: Annotated[float | None, Gt(0), "N", "Requests of a client in a second."] = None
    timeout: Annotated[float, SECONDS, "SECONDS", "The longest that a request waits and runs."] = (
        60.0
    )
    arrive_within: Annotated[float, SECONDS, "SECONDS"] = 10.0
    reload_every: Annotated[float, SECONDS, "SECONDS"] = 1.0
    stop_within: Annotated[float, SECONDS, "SECONDS"] = 30.0
    workers: Annotated[int, Ge(1), "Processes that answer; indexes are in memory once."] = 1
    shard_workers: ShardWorkers | None = None

    def __post_init__(self) -> None:
        """Refuse limits that no request could meet, and an open port without keys."""
        if self.shard_workers is not None and self.workers > 1:
            raise ConfigError(
                f"workers: {self.workers:,}, and shard_workers: each process would start shard "
                "workers of its own; expected one of the two"
            )
        if self.queue_tokens < self.batch_tokens:
            raise ConfigError(
                f"queue_tokens: {self.queue_tokens:,}, and a batch has up to "
                f"{self.batch_tokens:,}; expected at least as many"
            )
        if self.judge is None and (self.judgements is not None or self.judge_depth != 10):
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
