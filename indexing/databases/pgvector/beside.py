"""What goes into a table: weights as far as they fit, and ids and metadata beside the vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.indexing.databases.pgvector.settings import NON_ZEROS, Row, Settings, pruned
from sluice.indexing.inverted.statistics import Contribution


def row_of(name: str, metadata: Mapping[str, Any]) -> Row:
    """Return what is stored beside a vector; ``DataError`` for what PostgreSQL cannot hold."""
    plain = {key: _plain(value) for key, value in metadata.items()}
    written = json.dumps(plain, ensure_ascii=False)
    if "\0" in name or any("\0" in part for part in _texts(plain)):
        raise DataError(
            f"document {name!r}: its id or metadata has a zero character, which PostgreSQL has in "
            "no text; remove it"
        )
    return Row(name.encode(), b"\x01" + written.encode())  # 1: the version of jsonb's form


def _texts(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        yield key
        yield from (each for each in _several(value) if isinstance(each, str))


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def stored_weights(documents: Any, settings: Settings, lost: list[float]) -> Any:
    """Return sparse vectors as they can be stored; what ``prune`` drops is added to ``lost``.

    ``lost`` are the weight dropped and the weight of all. ``DataError`` for too many weights.
    """
    if settings.prune is None:
        lengths = np.diff(documents.indptr)
        if lengths.max(initial=0) > settings.most_non_zeros:
            row = int(lengths.argmax())
            settings.refuse_long(row, int(lengths[row]))
        return documents
    kept, dropped = pruned(documents, settings.prune)
    lost[0] += dropped
    lost[1] += float(documents.data.sum(dtype=np.float64))
    return kept


def contributions(query: Any, document: Any) -> list[Contribution]:
    """Return each shared term's part of the product of two sparse rows, in ascending term order."""
    impacts = dict(zip(document.indices.tolist(), document.data.tolist(), strict=True))
    weights = zip(query.indices.tolist(), query.data.tolist(), strict=True)
    return [
        Contribution(term, weight, impacts[term], weight * impacts[term])
        for term, weight in weights
        if term in impacts
    ]


def check_queries(queries: Any) -> None:
    """Raise ``DataError`` for a sparse query with more weights than a sparsevec has."""
    longest = int(np.diff(queries.indptr).max(initial=0))
    if longest > NON_ZEROS:
        raise DataError(
            f"queries: one has {longest:,} weights above 0; a sparsevec has at most "
            f"{NON_ZEROS:,}: set query_top_k of the encoder"
        )
