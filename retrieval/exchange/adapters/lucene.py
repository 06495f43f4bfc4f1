"""OpenSearch and Elasticsearch: an index's mapping, and documents for ``_bulk``.

Facts are those of the manuals: rank_features (weights above 0, names without dots, about 9
significant bits), knn_vector (OpenSearch) and dense_vector (Elasticsearch).
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.exchange.adapters.database_files import (
    Form,
    Record,
    Weights,
    numbers,
    object_of,
    text,
    weights,
)

NORMAL = float(np.finfo(np.float32).tiny)  # weights below are refused
LONGEST_ID = 512  # bytes of UTF-8
LONGEST_TERM = 32_000  # bytes; Lucene's limit is 32,766 with what the field adds
KEYWORD = {"type": "keyword", "ignore_above": 8_191}  # characters, so that no word is too long
LINKS = {"m": 16, "ef_construction": 100}  # of HNSW; the default of both

README = """# Documents for {title}

`index.json` creates the index, `documents-*.ndjson` fill it, each file a request of at most 16
MB:

    curl -X PUT localhost:9200/documents -H 'Content-Type: application/json' -d @index.json
    for file in documents-*.ndjson; do
      curl -X POST localhost:9200/documents/_bulk -H 'Content-Type: application/x-ndjson' \\
        --data-binary @$file
    done

`_bulk` answers 200 even where documents were refused: look for `"errors":false`.
{searches}
{vectors}{terms}
Ties are ordered as Sluice orders them, by id descending (`sort`). Filters by metadata are added
as `{{"term": {{"metadata.year": "2020"}}}}`: metadata is `{metadata}`, whose values are compared
as words.
"""
VECTORS = """
Vectors: {space}. The score is {score}, so the order is that of Sluice; cosine is written as the
inner product of vectors of length 1, which a vector of zeros may be part of. The search is
approximate (HNSW).
"""
TERMS = """
Terms: a score is the sum of the query's weight times the document's. Lucene keeps 9 significant
bits of a document's weight, an error of 0.4 % at most, where the files hold all 24. In names of
terms `%` is written `%25` and `.` is written `%2E`, because names hold no dots; do so in
queries too.{idf}
"""
IDF = """
BM25's idf is in the documents' weights: a query counts its terms, split as Sluice splits them."""


class LuceneForm(Form):
    """What both have in common."""

    ending = ".ndjson"
    title: ClassVar[str]
    flattened: ClassVar[str]  # the type of metadata
    spaces: ClassVar[Mapping[str, str]]
    most_dim: ClassVar[int]
    sparse_query: ClassVar[str]  # what a request of terms holds

    def files(self) -> Mapping[str, str]:
        """Return the index's settings and mapping, a template of each query, and a README."""
        if self.shape.dim > self.most_dim:
            raise ConfigError(
                f"{self.title} takes vectors of {self.most_dim:,} dimensions at most, and these "
                f"have {self.shape.dim:,}; use a smaller model or cut them (dim of the encoder)"
            )
        files = {"index.json": json.dumps(self._index(), indent=2) + "\n"}
        searches = []
        for kind in self.shape.kinds:
            files[f"query-{kind}.json"] = self.template(kind)
            searches.append(f"`query-{kind}.json`")
        files["README.md"] = README.format(
            title=self.title,
            metadata=self.flattened,
            searches=f"`POST documents/_search` takes {' or '.join(searches)}, with a number for "
            f"`{{{{size}}}}`\nand for `{{{{query}}}}` {self._about_queries()}.",
            vectors=self._about_vectors() if self.shape.dim else "",
            terms=TERMS.format(idf=IDF if self.shape.idf else "") if self.shape.terms else "",
        )
        return files

    def entry(self, record: Record) -> str:
        """Return the line of the action and that of the document."""
        document = record.document
        members = [("id", text(document.id))]
        members += [(name, text(value)) for name, value in self._texts(record)]
        metadata = {
            key.replace("\0", " "): value
            for key, value in document.metadata.items()
            if value is not None
        }
        if metadata:
            members.append(("metadata", text(metadata)))
        if record.vector is not None:
            members.append(("vector", numbers(record.vector)))
        if record.terms is not None:
            members.append(("impacts", weights(self._features(record.terms))))
        action = object_of([("index", object_of([("_id", text(key_of(document.id)))]))])
        return f"{action}\n{object_of(members)}\n"

    def request(self, kind: str, value: Any, k: int | str) -> dict[str, Any]:
        """Return the body of ``POST documents/_search``."""
        by = self._dense(value, k) if kind == "dense" else self._sparse(value)
        order: list[Any] = [{"_score": "desc"}, {"id": "desc"}]
        return {"size": k, "_source": ["id", "title", "text"], **by, "sort": order}

    def _texts(self, record: Record) -> Iterator[tuple[str, str]]:
        for name, value in (("title", record.document.title), ("text", record.document.text)):
            if value:
                yield name, value

    def _features(self, terms: Weights) -> Iterator[tuple[str, float]]:
        for term, weight in terms.items():
            name = feature(term)
            if weight < NORMAL or not name or len(name.encode()) > LONGEST_TERM:
                self.left_out += 1
            else:
                yield name, weight

    def _index(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": KEYWORD,
            "title": {"type": "text"},
            "text": {"type": "text"},
            "metadata": self._metadata(),
        }
        if self.shape.dim:
            fields["vector"] = self._vector()
        if self.shape.terms:
            fields["impacts"] = {"type": "rank_features"}
        index: dict[str, Any] = {"mappings": {"dynamic": "strict", "properties": fields}}
        settings = self._settings()
        return {"settings": settings, **index} if settings else index

    def _settings(self) -> dict[str, Any]:
        return {}

    def _metadata(self) -> dict[str, Any]:
        return {"type": self.flattened}

    def _about_queries(self) -> str:
        values = {"dense": "a list of numbers", "sparse": self.sparse_query}
        return ", or ".join(values[kind] for kind in self.shape.kinds)

    def _about_vectors(self) -> str:
        space = self.spaces[self.shape.metric]
        score = "1 / (1 + squared distance)"
        if self.shape.metric == "ip":
            score = "1 + product, or 1 / (1 - product) where that is below 0"
        return VECTORS.format(space=f"`{space}`", score=score)

    @abstractmethod
    def _vector(self) -> dict[str, Any]:
        """Return the mapping of the field of vectors."""

    @abstractmethod
    def _dense(self, vector: Any, k: int | str) -> dict[str, Any]:
        """Return the part of a request that compares vectors."""

    @abstractmethod
    def _sparse(self, terms: Any) -> dict[str, Any]:
        """Return the part of a request that compares terms."""


class OpenSearchForm(LuceneForm):
    """OpenSearch 2.13 and later."""

    name, title, flattened = "opensearch", "OpenSearch", "flat_object"
    spaces: ClassVar[Mapping[str, str]] = {"ip": "innerproduct", "l2": "l2"}
    most_dim = 16_000
    sparse_query = "an object of weights by term"

    def _settings(self) -> dict[str, Any]:
        return {"index": {"knn": True}} if self.shape.dim else {}

    def _vector(self) -> dict[str, Any]:
        return {
            "type": "knn_vector",
            "dimension": self.shape.dim,
            "method": {
                "name": "hnsw", "engine": "lucene",
                "space_type": self.spaces[self.shape.metric], "parameters": LINKS,
            },
        }  # fmt: skip

    def _dense(self, vector: Any, k: int | str) -> dict[str, Any]:
        return {"query": {"knn": {"vector": {"vector": vector, "k": k}}}}

    def _sparse(self, terms: Any) -> dict[str, Any]:
        named = terms if isinstance(terms, str) else features(terms)
        return {"query": {"neural_sparse": {"impacts": {"query_tokens": named}}}}


class ElasticsearchForm(LuceneForm):
    """Elasticsearch 8.11 and later."""

    name, title, flattened = "elasticsearch", "Elasticsearch", "flattened"
    spaces: ClassVar[Mapping[str, str]] = {"ip": "max_inner_product", "l2": "l2_norm"}
    most_dim = 4_096
    sparse_query = (
        "a list of clauses, one a term:\n"
        '`{"rank_feature": {"field": "impacts.TERM", "linear": {}, "boost": WEIGHT}}`'
    )

    def _metadata(self) -> dict[str, Any]:
        return {"type": self.flattened, "ignore_above": KEYWORD["ignore_above"]}

    def _vector(self) -> dict[str, Any]:
        return {
            "type": "dense_vector", "dims": self.shape.dim, "index": True,
            "similarity": self.spaces[self.shape.metric],
            "index_options": {"type": "hnsw", **LINKS},
        }  # fmt: skip

    def _dense(self, vector: Any, k: int | str) -> dict[str, Any]:
        near = k if isinstance(k, str) else min(10_000, max(100, 2 * k))
        return {
            "knn": {"field": "vector", "query_vector": vector, "k": k, "num_candidates": near},
        }

    def _sparse(self, terms: Any) -> dict[str, Any]:
        if isinstance(terms, str):
            return {"query": {"bool": {"should": terms}}}
        clauses = [
            {"rank_feature": {"field": f"impacts.{name}", "linear": {}, "boost": weight}}
            for name, weight in features(terms).items()
        ]
        return {"query": {"bool": {"should": clauses}}}


def key_of(doc_id: str) -> str:
    """Return ``_id``: the id, or a hash of one that is longer than 512 bytes."""
    data = doc_id.encode("utf-8")
    if len(data) <= LONGEST_ID:
        return doc_id
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def feature(term: str) -> str:
    """Return a term's name in a field of type rank_features, which holds no dots."""
    return term.replace("%", "%25").replace(".", "%2E")


def features(terms: Weights) -> dict[str, float]:
    """Return a query's weights by the names of its terms; weights of 0 add nothing."""
    return {feature(term): weight for term, weight in terms.items() if weight >= NORMAL and term}
