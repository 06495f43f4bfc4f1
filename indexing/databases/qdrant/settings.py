"""The settings of an index in Qdrant, checked before anything is opened."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from annotated_types import Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.databases.index import refuse_secrets
from sluice.indexing.storage.exact_scores import Metric, checked_metric

Method: TypeAlias = Literal["exact", "hnsw"]
Kind: TypeAlias = Literal["dense", "sparse"]

KEY = "QDRANT_API_KEY"
REMEDY = f"put the key in the environment variable {KEY}, and leave it out here"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
MOST_DIMENSIONS = 65_536


@dataclass(frozen=True)
@checked()
class Settings:
    """What ``QdrantIndex`` was given; ``path`` or ``url``, and the other is empty."""

    path: str = ""
    url: str = ""
    collection: str = "sluice"
    metric: Metric = "ip"
    method: Method = "exact"
    m: Annotated[int, Interval(ge=4, le=512)] = 16
    ef_construct: Annotated[int, Interval(ge=4, le=10000)] = 100

    def __post_init__(self) -> None:
        _check_place(self.path, self.url)
        if not isinstance(self.collection, str) or not NAME.fullmatch(self.collection):
            raise ConfigError(
                f"collection: {self.collection!r:.80}; expected 1 to 60 of a-z, A-Z, 0-9, _ and -, "
                "which the collections' names begin with"
            )
        checked_metric(self.metric)
        known = get_args(Method)
        if self.method not in known:
            raise ConfigError(
                f"method: {self.method!r}; expected one of {', '.join(known)}"
                f"{suggest(str(self.method), known)}"
            )
        if self.method == "exact" and (self.m, self.ef_construct) != (16, 100):
            raise ConfigError("m, ef_construct: are those of method: hnsw; leave them out")

    def check_sparse(self) -> None:
        """Raise ``ConfigError`` for what sparse vectors do not have."""
        if self.metric != "ip":
            raise ConfigError(
                f"metric: {self.metric}; sparse vectors have inner products alone: leave it out"
            )
        if self.method == "hnsw":
            raise ConfigError(
                "method: hnsw; Qdrant searches sparse vectors exactly, without a graph: leave it "
                "out"
            )

    @property
    def address(self) -> str:
        """The folder or the URL."""
        return self.path or self.url


def _check_place(path: Any, url: Any) -> None:
    if not isinstance(path, str) or not isinstance(url, str) or bool(path) == bool(url):
        raise ConfigError(
            "path, url: expected one of them: the folder of an engine in this process, or the "
            "address of a server, as https://host:6333"
        )
    if not url:
        return
    refuse_secrets(url, "url", REMEDY)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("url: expected https://host:6333, or http:// for this machine")
    if parts.scheme == "http" and not _is_here(host):
        raise ConfigError(
            f"url: {host} is another machine, and http sends texts and keys in the clear; use "
            "https, or a tunnel to localhost"
        )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
