"""LanceDB, DuckDB and all that reads parquet: one file with vectors, terms, texts and metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.exchange.databases.form import Form, Record

ROWS = 1_024  # of a row group: what is held at a time

README = """# Documents as parquet

`documents.parquet` has the columns {columns}. `metadata` is JSON.

LanceDB, whose search is exact until an index is made:

    import lancedb, pyarrow.parquet as pq
    file = pq.ParquetFile("documents.parquet")
    database = lancedb.connect("db")
    table = database.create_table("documents", file.iter_batches(), schema=file.schema_arrow)
{lance}
DuckDB, exact:

{duck}
Cosine is written as the inner product of vectors of length 1. Equal scores are ordered by id
descending, as Sluice orders them, where the query says so.
"""
LANCE_DENSE = (
    '    table.search(query, vector_column_name="vector").distance_type("{distance}").limit(10)\n'
)
DUCK_DENSE = """\
    SELECT id, {score}(vector::FLOAT[{dim}], $query::FLOAT[{dim}]) AS score
    FROM 'documents.parquet' ORDER BY score {order}, id DESC LIMIT 10;
"""
DUCK_SPARSE = (
    "    SELECT id, sum(weight * query.value) AS score\n"
    "    FROM (SELECT id, unnest(terms) AS term, unnest(weights) AS weight\n"
    "          FROM 'documents.parquet'), query\n"
    "    WHERE term = query.key GROUP BY id ORDER BY score DESC, id DESC LIMIT 10;\n\n"
    "where `query` is a table of each term (`key`) and its weight (`value`).\n"
)


class LanceForm(Form):
    """A parquet file that LanceDB takes as it is."""

    name = "lancedb"

    def files(self) -> Mapping[str, str]:
        """Return a README with the queries."""
        shape, product = self.shape, self.shape.metric == "ip"
        duck = []
        if shape.dim:
            score = "array_inner_product" if product else "array_distance"
            order = "DESC" if product else "ASC"
            duck.append(DUCK_DENSE.format(score=score, dim=shape.dim, order=order))
        if shape.terms:
            duck.append(DUCK_SPARSE)
        lance = LANCE_DENSE.format(distance="dot" if product else "l2") if shape.dim else ""
        columns = ", ".join(f"`{field.name}` ({field.type})" for field in self._schema())
        return {"README.md": README.format(columns=columns, lance=lance, duck="\n".join(duck))}

    def entry(self, record: Record) -> str:
        """Return nothing: rows are written together, by ``write``."""
        return ""

    def request(self, kind: str, value: Any, k: int | str) -> dict[str, Any]:
        """Return the values of the README's queries."""
        return {"query": value, "limit": k}

    def write(self, folder: Path, records: Iterable[Record]) -> int:
        """Write ``documents.parquet``, a row group at a time."""
        import pyarrow as pa
        from pyarrow import parquet

        schema, count = self._schema(), 0
        with parquet.ParquetWriter(
            folder / "documents.parquet", schema, use_dictionary=False, compression="zstd",
            compression_level=1,
        ) as writer:  # fmt: skip
            stream = iter(records)
            while group := list(islice(stream, ROWS)):
                try:
                    columns = [self._column(field, group) for field in schema]
                except (pa.ArrowException, TypeError, ValueError) as error:
                    raise DataError(f"ids or texts: {error}; expected texts") from None
                writer.write_table(pa.table(columns, schema=schema))
                count += len(group)
        return count

    def _schema(self) -> Any:
        import pyarrow as pa

        fields = [(name, pa.string()) for name in ("id", "title", "text", "metadata")]
        if self.shape.dim:
            fields.append(("vector", pa.list_(pa.float32(), self.shape.dim)))
        if self.shape.terms:
            fields.append(("terms", pa.list_(pa.string())))
            fields.append(("weights", pa.list_(pa.float32())))
        return pa.schema(fields)

    def _column(self, field: Any, group: list[Record]) -> Any:
        import pyarrow as pa

        if field.name == "vector":
            vectors = np.concatenate(
                [record.vector for record in group if record.vector is not None]
            )
            return pa.FixedSizeListArray.from_arrays(pa.array(vectors), self.shape.dim)
        return pa.array([_value(record, field.name) for record in group], field.type)


def _value(record: Record, column: str) -> Any:
    document = record.document
    if column == "metadata":
        return json.dumps(dict(document.metadata), ensure_ascii=False)
    if column == "terms":
        return list(record.terms or ())
    if column == "weights":
        return list((record.terms or {}).values())
    return {"id": document.id, "title": document.title, "text": document.text}[column]
