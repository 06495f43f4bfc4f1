"""The settings of an index in PostgreSQL, checked before anything connects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.databases.credentials import refuse_secrets
from sluice.indexing.storage.exact_scores import Metric, checked_metric

Column: TypeAlias = Literal["vector", "halfvec", "sparsevec"]
Method: TypeAlias = Literal["exact", "hnsw"]

REMEDY = (
    "put the password in the environment variable PGPASSWORD, or in the file ~/.pgpass, and leave "
    "it out here"
)
LONGEST_NAME = 40  # bytes; PostgreSQL cuts names at 63, and ours get an ending
DIMENSIONS: dict[Column, int] = {"vector": 16_000, "halfvec": 16_000, "sparsevec": 10**9}
HNSW_DIMENSIONS: dict[Column, int] = {"vector": 2_000, "halfvec": 4_000, "sparsevec": 10**9}
NON_ZEROS, HNSW_NON_ZEROS = 16_000, 1_000  # of one sparse vector


ENVIRONMENT = "postgresql://"  # the server that PGHOST, PGDATABASE and PGUSER name


@dataclass(frozen=True)
class Settings:
    """What ``PgvectorIndex`` was given; ``column`` is None until the first vectors decide it."""

    dsn: str = ""
    table: str = "sluice"
    column: Column | None = None
    metric: Metric = "ip"
    method: Method = "exact"
    m: int = 16
    ef_construction: int = 64
    prune: int | None = None

    def __post_init__(self) -> None:
        _check_dsn(self.dsn)
        object.__setattr__(self, "dsn", self.dsn or ENVIRONMENT)
        if not isinstance(self.table, str) or not _is_name(self.table):
            raise ConfigError(
                f"table: {self.table!r:.80}; expected a name of 1 to {LONGEST_NAME} bytes without "
                "line ends and %, which the names of the tables begin with"
            )
        checked_metric(self.metric)
        for name, value, known in (
            ("column", self.column, (None, *get_args(Column))),
            ("method", self.method, get_args(Method)),
        ):
            if value not in known:
                names = [each for each in known if each]
                raise ConfigError(
                    f"{name}: {value!r}; expected one of {', '.join(names)}"
                    f"{suggest(str(value), names)}"
                )
        whole_number(self.m, "m", 2, 100)
        whole_number(self.ef_construction, "ef_construction", 2 * self.m, 1000)
        if self.method == "exact" and (self.m, self.ef_construction) != (16, 64):
            raise ConfigError("m, ef_construction: are those of method: hnsw; leave them out")
        if self.column == "sparsevec" and self.metric != "ip":
            raise ConfigError(f"metric: {self.metric}; sparse vectors have inner products alone")
        if self.prune is not None:
            whole_number(self.prune, "prune", 1, self.most_non_zeros)
            if self.column in ("vector", "halfvec"):
                raise ConfigError(
                    f"prune: {self.prune}; only sparse vectors are pruned: leave it out"
                )

    @property
    def most_non_zeros(self) -> int:
        """The most weights of a sparse vector that can be stored."""
        return HNSW_NON_ZEROS if self.method == "hnsw" else NON_ZEROS

    def check_width(self, width: int, column: Column) -> None:
        """Raise ``ConfigError`` for vectors wider than the column, or its graph, can be."""
        most = (HNSW_DIMENSIONS if self.method == "hnsw" else DIMENSIONS)[column]
        if width <= most:
            return
        remedy = "take {type: flat} or {type: faiss}"
        if column == "vector" and width <= HNSW_DIMENSIONS["halfvec"]:
            remedy = "take column: halfvec, or method: exact"
        elif width <= DIMENSIONS[column]:
            remedy = "take method: exact"
        what = "with method: hnsw" if self.method == "hnsw" else "in pgvector"
        raise ConfigError(
            f"index.column: {width:,} dimensions; {column} has at most {most:,} {what}: {remedy}"
        )

    def refuse_long(self, row: int, weights: int) -> None:
        """Raise ``DataError`` for a sparse vector with more weights than can be stored."""
        raise DataError(
            f"documents: row {row} has {weights:,} weights above 0; a sparsevec has at most "
            f"{self.most_non_zeros:,}"
            + (" with method: hnsw; take method: exact, or" if self.method == "hnsw" else ";")
            + f" set prune: {self.most_non_zeros} to keep the largest"
        )


def _check_dsn(dsn: Any) -> None:
    if not isinstance(dsn, str):
        raise ConfigError("dsn: expected a text, as in postgresql://user@host/database")
    refuse_secrets(dsn, "dsn", REMEDY)
    if dsn and not dsn.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "dsn: expected postgresql://user@host:port/database, or nothing: then the environment "
            "variables PGHOST, PGDATABASE and PGUSER are used, as by psql"
        )


def _is_name(text: str) -> bool:
    return (
        0 < len(text.encode(errors="replace")) <= LONGEST_NAME
        and text.isprintable()
        and "%" not in text
    )
