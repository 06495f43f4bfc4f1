"""Exports retrievers, a dense one, a sparse one or both, as the files that a database loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.exchange.databases.form import Form, Shape
from sluice.retrieval.exchange.databases.sides import DenseSide, SparseSide, records, sides_of

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.retriever import Retriever

ROOM = "sluice.retrieval.exchange.databases"
DATABASES: Final[Mapping[str, str]] = {
    "opensearch": f"{ROOM}.lucene:OpenSearchForm",
    "elasticsearch": f"{ROOM}.lucene:ElasticsearchForm",
    "vespa": f"{ROOM}.vespa:VespaForm",
    "weaviate": f"{ROOM}.weaviate:WeaviateForm",
    "lancedb": f"{ROOM}.lance:LanceForm",
}
DEPTH = 10  # hits that the searches in QUERIES ask for
QUERIES = "queries.jsonl"
MARKER = "export.json"  # what only a folder of this kind has: it may be replaced


@dataclass(frozen=True, slots=True)
class DatabaseExport:
    """What was written; ``decoded`` says that the index keeps less than the full vectors."""

    documents: int
    shape: Shape
    decoded: bool
    left_out: int  # weights that the database cannot hold
    replaced: int  # characters that the database cannot hold

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents"]
        if self.shape.dim:
            parts.append(f"vectors of {self.shape.dim:,} dimensions ({self.shape.metric})")
        if self.decoded:
            parts.append("decoded from the index's codes, which are lossy")
        if self.shape.terms:
            parts.append("weights of terms")
        if self.shape.idf:
            parts.append("BM25's idf is in the documents' weights")
        if self.left_out:
            parts.append(f"{self.left_out:,} weights left out, which the database cannot hold")
        if self.replaced:
            parts.append(f"{self.replaced:,} control characters in texts replaced by spaces")
        return "; ".join(parts)


def export_database(
    retriever: Retriever,
    output: str | Path,
    form: str,
    *,
    beside: Retriever | None = None,
    queries: Mapping[str, str] | None = None,
) -> DatabaseExport:
    """Write the folder ``output``: settings, documents, templates of queries, and a README.

    ``form`` is one of ``DATABASES``. ``beside`` is a second retriever of the same documents, so
    that these have a dense vector and weights of terms. Deleted documents are left out.
    ``queries`` (id to text) are encoded, and the bodies of their searches for the best 10 written
    to ``queries.jsonl``: ``{"id", "dense": body, "sparse": body}``; blank ones are left out.
    """
    if form not in DATABASES:
        known = ", ".join(DATABASES)
        raise ConfigError(f"format: {form!r}; known: {known}{suggest(form, DATABASES)}")
    kind: type[Form] = resolve(DATABASES[form])
    sides = sides_of([retriever] if beside is None else [retriever, beside])
    dense, sparse = sides.get("dense"), sides.get("sparse")
    if sparse is not None and not kind.takes_terms:
        raise ConfigError(
            f"{sparse.retriever.path}: its vectors are weights of terms, which {form} cannot hold; "
            "export a dense retriever, or choose opensearch, elasticsearch, vespa or lancedb"
        )
    if beside is not None and len(beside) != len(retriever):
        raise DataError(
            f"{beside.path}: {len(beside):,} documents, and {retriever.path} has "
            f"{len(retriever):,}; expected two retrievers of the same documents"
        )
    writer = kind(
        Shape(
            dim=dense.dim if isinstance(dense, DenseSide) else 0,
            metric=dense.metric if isinstance(dense, DenseSide) else "ip",
            largest=sparse.largest() if isinstance(sparse, SparseSide) else None,
            idf=isinstance(sparse, SparseSide) and sparse.factors is not None,
        )
    )
    with replaced_folder(Path(output), markers=(MARKER,)) as folder:
        for name, text in writer.files().items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        count = writer.write(folder, records(list(sides.values())))
        report = DatabaseExport(
            documents=count,
            shape=writer.shape,
            decoded=isinstance(dense, DenseSide) and dense.decoded,
            left_out=writer.left_out,
            replaced=writer.replaced,
        )
        if queries is not None:
            asked = {name: text for name, text in queries.items() if text.strip()}
            values = {kind: side.queries(list(asked.values())) for kind, side in sides.items()}
            with (folder / QUERIES).open("w", encoding="utf-8") as stream:
                for at, name in enumerate(asked):
                    bodies = {
                        kind: writer.request(kind, each[at], DEPTH) for kind, each in values.items()
                    }
                    stream.write(json.dumps({"id": name, **bodies}, ensure_ascii=False) + "\n")
        facts = {"format": form, "documents": count, "exported": str(report)}
        (folder / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return report
