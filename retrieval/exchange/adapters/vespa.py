"""Vespa: an application package with its schema, and a feed of ``put`` operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.exchange.adapters.database_files import (
    Form,
    Record,
    Weights,
    flat_pairs,
    numbers,
    object_of,
    text,
    weights,
)

# What a string may not hold: control characters, and what Unicode keeps for no character.
NONCHARACTERS = "".join(
    chr(first + low) for first in range(0xFFFE, 17 << 16, 1 << 16) for low in (0, 1)
)
ILLEGAL = re.compile(f"[\0-\b\x0b\x0c\x0e-\x1f\x7f\ufdd0-\ufdef{NONCHARACTERS}]")
LARGEST_WHOLE = 10_000  # of the whole numbers that WAND gathers candidates by
GATHERED = 1_000  # candidates of WAND at least

SERVICES = """<?xml version="1.0" encoding="utf-8" ?>
<services version="1.0">
  <container id="default" version="1.0">
    <document-api/>
    <search/>
  </container>
  <content id="content" version="1.0">
    <min-redundancy>1</min-redundancy>
    <documents>
      <document type="doc" mode="index"/>
    </documents>
    <nodes>
      <node distribution-key="0" hostalias="node1"/>
    </nodes>
  </content>
</services>
"""
FIELDS = """
        field id type string {
            indexing: attribute | summary
        }
        field title type string {
            indexing: index | summary
            index: enable-bm25
        }
        field text type string {
            indexing: index | summary
            index: enable-bm25
        }
        field metadata type array<string> {
            indexing: attribute | summary
            attribute: fast-search
        }"""
VECTOR = """
        field vector type tensor<float>(x[{dim}]) {{
            indexing: attribute | index
            attribute {{
                distance-metric: {distance}
            }}
            index {{
                hnsw {{
                    max-links-per-node: 16
                    neighbors-to-explore-at-insert: 100
                }}
            }}
        }}"""
TERMS = """
        field terms type weightedset<string> {
            indexing: attribute
            attribute: fast-search
        }
        field impacts type tensor<float>(term{}) {
            indexing: attribute
            attribute: fast-rank
        }"""
DENSE = """
    rank-profile dense {{
        inputs {{
            query(vector) tensor<float>(x[{dim}])
        }}
        first-phase {{
            expression: {expression}
        }}
    }}"""
SPARSE = """
    rank-profile sparse {
        inputs {
            query(impacts) tensor<float>(term{})
        }
        first-phase {
            expression: sum(query(impacts) * attribute(impacts))
        }
    }"""
PRODUCT = "sum(query(vector) * attribute(vector))"
DISTANCE = "-sum((query(vector) - attribute(vector)) * (query(vector) - attribute(vector)))"

README = """# Documents for Vespa

This folder is an application package:

    vespa deploy --wait 300 .
    for file in documents-*.jsonl; do vespa feed $file; done

`POST /search/` takes {searches}, with a number for `{{{{size}}}}`.
{about}
Scores are Sluice's own (`ranking` names the profile). Equal scores are in no stated order.
Metadata is a list of `name=value`: `and metadata contains "year=2020"`.
"""
ABOUT = {
    "dense": """
`{{query}}` of `query-dense.json` is a list of numbers. Cosine is written as the inner product
of vectors of length 1. The search is approximate (HNSW).
""",
    "sparse": """
In `query-sparse.json`, `{{query}}` is an object of whole numbers by term, for WAND, which
gathers candidates by the documents' `terms`, whole numbers from 1 to 10,000. `{{impacts}}` is a
tensor, which scores them exactly by the documents' `impacts`:
`{{term:"gold"}:1.5,{term:"river"}:0.25}`.
""",
}


class VespaForm(Form):
    """Vespa 8."""

    name = "vespa"

    def files(self) -> Mapping[str, str]:
        """Return schema and services, a template of each query, and a README."""
        shape = self.shape
        fields, profiles = FIELDS, ""
        if shape.dim:
            product = shape.metric == "ip"
            distance = "dotproduct" if product else "euclidean"
            fields += VECTOR.format(dim=shape.dim, distance=distance)
            profiles += DENSE.format(dim=shape.dim, expression=PRODUCT if product else DISTANCE)
        if shape.terms:
            fields, profiles = fields + TERMS, profiles + SPARSE
        schema = f"schema doc {{\n    document doc {{{fields}\n    }}{profiles}\n}}\n"
        files = {"schemas/doc.sd": schema, "services.xml": SERVICES}
        files |= {f"query-{kind}.json": self.template(kind) for kind in shape.kinds}
        files["README.md"] = README.format(
            searches=" or ".join(f"`query-{kind}.json`" for kind in shape.kinds),
            about="".join(ABOUT[kind] for kind in shape.kinds),
        )
        return files

    def entry(self, record: Record) -> str:
        """Return a document's ``put``, on a line."""
        document = record.document
        if bad := ILLEGAL.search(document.id):
            raise DataError(
                f"document {document.id!r}: its id holds U+{ord(bad[0]):04X}, and Vespa's strings "
                "hold no control characters; give the document another id"
            )
        fields = [("id", text(document.id))]
        for name, value in (("title", document.title), ("text", document.text)):
            if value:
                fields.append((name, text(self._legal(value))))
        pairs = [self._legal(f"{key}={value}") for key, value in flat_pairs(document.metadata)]
        if pairs:
            fields.append(("metadata", text(pairs)))
        if record.vector is not None:
            fields.append(("vector", object_of([("values", numbers(record.vector))])))
        if record.terms is not None:
            terms = dict(self._legal_weights(record.terms))
            fields.append(("terms", text(self._whole(terms))))
            fields.append(("impacts", object_of([("cells", weights(terms.items()))])))
        put = [("put", text(f"id:sluice:doc::{quote(document.id, safe='')}"))]
        return object_of([*put, ("fields", object_of(fields))]) + "\n"

    def request(self, kind: str, value: Any, k: int | str) -> dict[str, Any]:
        """Return the body of ``POST /search/``."""
        if kind == "dense":
            near = f"{{targetHits: {k}}}nearestNeighbor(vector, vector)"
            inputs: dict[str, Any] = {"input.query(vector)": value}
        else:
            gathered = k if isinstance(k, str) else max(GATHERED, 10 * k)
            words, tensor = value, "{{impacts}}"
            if not isinstance(value, str):
                words = text(self._whole(dict(self._legal_weights(value))))
                tensor = literal(self._legal_weights(value))
            near = f"{{targetHits: {gathered}}}wand(terms, {words})"
            inputs = {"input.query(impacts)": tensor}
        select = f"select id, title, text from doc where {near}"
        return {"yql": select, "ranking": kind, "hits": k, **inputs}

    def template(self, kind: str) -> str:
        """Return a request's body with ``{{query}}`` and ``{{size}}`` in the places of both."""
        if kind == "dense":
            return super().template(kind)
        body = self.request(kind, "{{query}}", "{{size}}")
        return json.dumps(body, indent=2).replace('"{{size}}"', "{{size}}") + "\n"

    def _legal(self, words: str) -> str:
        legal, count = ILLEGAL.subn(" ", words)
        self.replaced += count
        return legal

    def _legal_weights(self, terms: Weights) -> Iterator[tuple[str, float]]:
        for term, weight in terms.items():
            if weight > 0 and not ILLEGAL.search(term):
                yield term, weight
            else:
                self.left_out += 1

    def _whole(self, terms: Weights) -> dict[str, int]:
        """Return weights in whole numbers from 1; those of a query relative to its largest."""
        scale = LARGEST_WHOLE / (max([self.shape.largest or 0.0, *terms.values()]) or 1.0)
        return {term: max(1, round(weight * scale)) for term, weight in terms.items()}


def literal(terms: Iterator[tuple[str, float]]) -> str:
    """Return a tensor of one named dimension as queries have it."""
    return "{" + ",".join(f"{{term:{text(term)}}}:{weight:.9g}" for term, weight in terms) + "}"
