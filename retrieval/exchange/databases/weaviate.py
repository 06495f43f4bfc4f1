"""Weaviate: a class with its properties, and objects for ``/v1/batch/objects``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sluice.retrieval.exchange.databases.form import (
    Form,
    Record,
    flat_pairs,
    numbers,
    object_of,
    text,
)

README = """# Documents for Weaviate

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
        made = {
            "class": "Document",
            "vectorizer": "none",
            "vectorIndexType": "hnsw",
            "vectorIndexConfig": {"distance": "dot" if product else "l2-squared"},
            "properties": properties,
        }
        distance = "the negative inner product" if product else "the squared distance"
        return {
            "schema.json": json.dumps(made, indent=2) + "\n",
            "query-dense.json": self.template("dense"),
            "README.md": README.replace("{distance}", distance),
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
