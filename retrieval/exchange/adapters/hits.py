"""What a stage finds for one query, with all that is known of each document, for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.document import NOTHING, Value
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.stage import Stage


class Found(NamedTuple):
    """One document: its full text, and its metadata for JSON.

    ``metadata`` is the document's own, and ``id``, ``title`` (empty where the stage has no document
    store) and ``score``, which take the place of its keys of these names.
    """

    text: str
    metadata: dict[str, Any]


def searching(stage: Any) -> Stage:
    """Return ``stage`` if it answers queries alone, ``ConfigError`` otherwise."""
    if not isinstance(stage, Stage):
        raise ConfigError(
            f"expected a stage (a Retriever, or load_pipeline's), got {type(stage).__name__}"
        )
    if stage.needs_candidates:
        raise ConfigError(
            f"{stage.name}: needs candidates, and gets none here; put a retriever before it: "
            "retriever >> reranker"
        )
    return stage


def find(stage: Stage, query: str, k: int) -> list[Found]:
    """Return the ``k`` best documents for a query, best first."""
    store = stage.documents
    found = []
    for hit in stage.search(query, k):
        document = store.find(hit.doc_id) if isinstance(store, DocumentStore) else None
        title, own = (document.title, document.metadata) if document else ("", NOTHING)
        metadata = {key: _plain(value) for key, value in own.items()}
        found.append(
            Found(hit.text, {**metadata, "id": hit.doc_id, "title": title, "score": hit.score})
        )
    return found


def _plain(value: Value) -> Value:
    return value if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
