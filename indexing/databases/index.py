"""What every index in a database is: rows as of any index, found by conditions on metadata too."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import Index, Parameters

Operator: TypeAlias = Literal["any", "not", "gte", "gt", "lte", "lt", "matches"]


class Condition(NamedTuple):
    """One condition on a key of the metadata; orders have one value. All conditions must hold.

    ``any`` is equality with one of the values: of numbers as numbers, integer or float, where a
    boolean does not count as one; a list of texts equals each of its texts; None matches a missing
    value. ``not`` is its negation, missing values included. ``gte``, ``gt``, ``lte`` and ``lt``
    hold for a number and a number, or a text and a text by code point, and never for a missing
    value. ``matches``, of the documents' texts, no index is asked for.
    """

    key: str
    operator: Operator
    values: tuple[Any, ...]


SECRETS = re.compile(r"(?i)(pass(word)?|pwd|sslpassword|(api[-_]?)?key|token|secret)$")
PAIR = re.compile(r"(\w[\w-]*)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s'][^\s]*)")


def refuse_secrets(address: str, where: str, remedy: str) -> None:
    """Raise ``ConfigError`` for a URL, or ``key=value`` text, with a password or key in it.

    A setting is saved beside what is built with it, and printed in errors. The message names
    ``where`` and the ``remedy``, never the address.
    """
    try:
        parts = urlsplit(address)
        secret = bool(parts.password)
        pairs = parse_qsl(parts.query)
    except ValueError:  # such as a bracket of an IPv6 address left open
        secret, pairs = "@" in address, []
    if "://" not in address:
        pairs = PAIR.findall(address)
    elif address.partition("://")[2].partition("/")[0].count("@") > 1:
        secret = True  # a password with an @ of its own
    if secret or any(SECRETS.match(name) and value.strip("'") for name, value in pairs):
        raise ConfigError(f"{where}: holds a password or a key, which would be saved; {remedy}")


def former_facts(folder: Path, type_name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the facts of the indexes of a type in the state before that of ``folder``.

    Of an index inside another the outer one's manifest has them.
    """
    manifests = (parent / MANIFEST for parent in list(folder.parents)[:3])
    manifest = next((each for each in manifests if each.exists()), None)
    yield from _facts(read_json(manifest) if manifest else {}, type_name)


def _facts(value: Any, type_name: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if value.get("type") == type_name and isinstance(value.get("index"), dict):
            yield value["index"]
        for inner in value.values():
            yield from _facts(inner, type_name)


# The ids and the metadata of some rows, in their order.
Described: TypeAlias = Callable[[Rows], tuple[Sequence[str], Sequence[Mapping[str, Any]]]]


class DatabaseIndex(Index):
    """Vectors in a database; the folder holds where they are, how many, and which were deleted.

    The database has a row number for each vector, and where the caller sets ``described`` before
    rows are added, the id and the metadata of its document as well, for ``search_where`` and for
    whoever else reads the database. What was added or deleted after the last committed ``save`` is
    seen by this object alone, and undone by the next change of the folder.
    """

    described: Described | None = None  # what is stored beside the vectors added from now on
    settings: Any  # a dataclass of its arguments, and of its address
    _described = True  # whether every row has the id and metadata of its document

    @property
    def address(self) -> str:
        """Where the database is, as the settings say; empty where they need not."""
        return str(self.settings.address)

    @property
    def resident_bytes(self) -> int:
        """None that are ours: the engine decides, or the server."""
        return 0

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        return type(self)(**asdict(self.settings))

    @property
    def words(self) -> Sequence[str]:
        """What opening it must be allowed: the database that the folder names."""
        return [*super().words, self.address] if self.address else super().words

    @property
    def filters(self) -> bool:
        """Whether the database has the metadata of every row, so that it can be asked."""
        return self._described

    @property
    def rounds(self) -> bool:
        """Whether it keeps fewer bits of a vector than float32 has."""
        return False

    @property
    def differences(self) -> Sequence[str]:
        """How results may differ from those of our exact index; one sentence each, printed."""
        return ()

    @abstractmethod
    def check_vectors(self, *, are_sparse: bool) -> None:
        """Raise ``ConfigError`` for settings that sparse, or dense, vectors have no use for."""

    def search_where(
        self,
        vectors: Any,
        k: int,
        where: Sequence[Condition],
        *,
        keep: ArrayLike | None = None,
        params: Parameters | None = None,
    ) -> Hits:
        """Return the ``k`` best live documents for which ``where`` holds, as ``search`` does."""
        merged = {**self.default_params, **(params or {})}
        k = whole_number(k, "k", 0)
        queries = self._checked(vectors, "queries")
        self._parameters.check(merged)
        count = int(queries.shape[0])
        allowed = self._live.allowed(keep)
        places = min(k, len(self) if allowed is None else int(np.count_nonzero(allowed)))
        if not count or not places:
            return Hits.missing(count, k)
        if where and not self.filters:
            raise ConfigError(
                "where: the database has no metadata of some rows; search with keep, or build the "
                "index with Retriever.build"
            )
        return self._search_where(queries, places, where, allowed, merged).padded(k)

    @abstractmethod
    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the ``k`` best live documents of each query, without the graph if there is one."""

    def _search(
        self, queries: Any, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        return self._search_where(queries, k, (), allowed, parameters)

    @abstractmethod
    def _search_where(
        self,
        queries: Any,
        k: int,
        where: Sequence[Condition],
        allowed: Mask | None,
        parameters: dict[str, Any],
    ) -> Hits:
        """Return at most ``[n, k]`` hits among ``allowed`` rows, of the conditions too."""

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        return cls._open(folder, facts, ())

    def _asked_rows(self, allowed: Mask | None) -> Rows | None:
        """Return the rows a caller's ``keep`` allows; None where the tombstones alone decide."""
        if allowed is None or allowed is self._live.allowed():
            return None
        return np.flatnonzero(allowed).astype(np.int64)
