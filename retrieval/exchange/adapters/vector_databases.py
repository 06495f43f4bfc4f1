"""Weaviate: a class and its objects. LanceDB, DuckDB and others that read parquet: one file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.exchange.adapters.database_files import (
    Form,
    Record,
    flat_pairs,
    numbers,
    object_of,
    text,
)

WEAVIATE_README = """# Documents for Weaviate

`schema.json` makes the class, `documents-*.json` fill it, each file a request of at most 16 MB:

    curl -X POST localhost:8080/v1/schema -H 'Content-Type: application/json' -d @schema.json
    for file in documents-*.json; do
      curl -X POST localhost:8080/v1/batch/objects -H 'Content-Type: application/json' \\
        --data-binary @$file
    done

`POST /v1/graphql` takes `query-dense.json`, with a list of numbers for `{{query}}` and a number
for `{{size}}`. The key of an object is a UUID made of the document's id, which is in `doc_id`;
the same document has the same key again. The distance is {distance}; cosine is written as the
inner product of vectors of length 1. The search is approximate (HNSW), and equal distances are
in no stated order. Metadata is a list of `name=value`:

    where: {path: ["metadata"], operator: ContainsAny, valueText: ["year=2020"]}
"""


class WeaviateForm(Form):
    """Weaviate 1.2x; it holds vectors, and no weights of terms."""

    name, ending = "weaviate", ".json"
    frame = ('{"objects":[\n', ",\n", "\n]}\n")
    takes_terms = False

    def files(self) -> Mapping[str, str]:
        """Return the class, a template of the query, and a README."""
        product = self.shape.metric == "ip"
        properties = [
            _words("doc_id", "field"), _words("title", "word"), _words("text", "word"),
            {**_words("metadata", "field"), "dataType": ["text[]"]},
        ]  # fmt: skip
        schema_class = {
            "class": "Document",
            "vectorizer": "none",
            "vectorIndexType": "hnsw",
            "vectorIndexConfig": {"distance": "dot" if product else "l2-squared"},
            "properties": properties,
        }
        distance = "the negative inner product" if product else "the squared distance"
        return {
            "schema.json": json.dumps(schema_class, indent=2) + "\n",
            "query-dense.json": self.template("dense"),
            "README.md": WEAVIATE_README.replace("{distance}", distance),
        }

    def entry(self, record: Record) -> str:
        """Return a document's object."""
        document = record.document
        properties: dict[str, Any] = {"doc_id": document.id}
        properties |= {"title": document.title} if document.title else {}
        properties |= {"text": document.text} if document.text else {}
        pairs = [f"{key}={value}" for key, value in flat_pairs(document.metadata)]
        properties |= {"metadata": pairs} if pairs else {}
        members = [
            ("class", text("Document")), ("id", text(key_of(document.id))),
            ("properties", text(properties)),
        ]  # fmt: skip
        if record.vector is not None:
            members.append(("vector", numbers(record.vector)))
        return object_of(members)

    def request(self, kind: str, value: Any, k: int | str) -> dict[str, Any]:
        """Return the body of ``POST /v1/graphql``."""
        vector = value if isinstance(value, str) else json.dumps(value)
        near = f"limit: {k}, nearVector: {{vector: {vector}}}"
        fields = "doc_id title text _additional { id distance }"
        return {"query": f"{{ Get {{ Document({near}) {{ {fields} }} }} }}"}

    def template(self, kind: str) -> str:
        """Return a request's body with ``{{query}}`` and ``{{size}}`` in the places of both."""
        return json.dumps(self.request(kind, "{{query}}", "{{size}}"), indent=2) + "\n"


def key_of(doc_id: str) -> str:
    """Return an object's key: version 5, so that one id has one key."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, doc_id))


def _words(name: str, tokenization: str) -> dict[str, Any]:
    return {"name": name, "dataType": ["text"], "tokenization": tokenization}


ROWS = 1_024  # of a row group: what is held at a time

LANCE_README = """# Documents as parquet

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
        return {
            "README.md": LANCE_README.format(columns=columns, lance=lance, duck="\n".join(duck))
        }

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
