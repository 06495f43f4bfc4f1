"""A stage as the retriever of LangChain, LlamaIndex or Haystack.

Their packages are optional: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.document import Value
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
            f"{stage.name}: needs candidates, but gets none here; put a retriever before it: "
            "retriever >> reranker"
        )
    return stage


def find(stage: Stage, query: str, k: int) -> list[Found]:
    """Return the ``k`` best documents for a query, best first."""
    hits = []
    for hit in stage.search(query, k):
        metadata = {key: _plain(value) for key, value in hit.metadata.items()}
        own = {"id": hit.doc_id, "title": hit.title, "score": hit.score}
        hits.append(Found(hit.full_text, {**metadata, **own}))
    return hits


def _plain(value: Value) -> Value:
    return value if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


def langchain_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LangChain retriever of ``stage``: ``invoke(query)``, or ``invoke(query, k=5)``.

    It returns ``Document``s, best first: ``id``, ``page_content`` (title and text, as they are
    encoded and reranked) and ``metadata`` with ``id``, ``title``, ``score`` and the document's own.
    Raises ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, k = searching(stage), whole_number(k, "k", 1)
    return _langchain_class()(stage=stage, k=k)


@functools.cache
def _langchain_class() -> Any:
    try:
        from langchain_core.documents import Document
        from langchain_core.retrievers import BaseRetriever
    except ImportError:
        raise MissingPackageError("langchain-core", "interop", "a LangChain retriever") from None

    class SluiceRetriever(BaseRetriever):  # type: ignore[misc]
        """The documents a stage finds."""

        stage: Any
        k: int

        def _get_relevant_documents(
            self, query: str, *, run_manager: Any, k: int | None = None
        ) -> list[Any]:
            return [
                Document(id=found.metadata["id"], page_content=found.text, metadata=found.metadata)
                for found in find(self.stage, query, self.k if k is None else k)
            ]

    return SluiceRetriever


UNSHOWN = ["id", "title", "score"]  # the title is part of the text


def llama_index_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LlamaIndex retriever of ``stage``: ``retrieve(query)``, ``await aretrieve(query)``.

    It returns ``NodeWithScore``s, best first, of ``TextNode``s: ``node_id`` the document's id, its
    title and text, and ``metadata`` with ``id``, ``title``, ``score`` and the document's own; these
    three are not shown to language models. Raises ``MissingPackageError``, and ``ConfigError`` for
    a stage that needs candidates.
    """
    stage, k = searching(stage), whole_number(k, "k", 1)
    return _llama_index_class()(stage, k)


@functools.cache
def _llama_index_class() -> Any:
    try:
        from llama_index.core.retrievers import BaseRetriever
        from llama_index.core.schema import NodeWithScore, TextNode
    except ImportError:
        raise MissingPackageError("llama-index-core", "interop", "a LlamaIndex retriever") from None

    class SluiceRetriever(BaseRetriever):  # type: ignore[misc]
        """The nodes of the documents a stage finds."""

        def __init__(self, stage: Stage, k: int) -> None:
            super().__init__()
            self.stage, self.k = stage, k

        def _retrieve(self, query_bundle: Any) -> list[Any]:
            nodes = []
            for text, metadata in find(self.stage, query_bundle.query_str, self.k):
                node = TextNode(id_=metadata["id"], text=text, metadata=metadata)
                node.excluded_llm_metadata_keys = node.excluded_embed_metadata_keys = UNSHOWN
                nodes.append(NodeWithScore(node=node, score=metadata["score"]))
            return nodes

        async def _aretrieve(self, query_bundle: Any) -> list[Any]:
            return await asyncio.to_thread(self._retrieve, query_bundle)

    return SluiceRetriever


def haystack_retriever(stage: Stage, top_k: int = 10) -> Any:
    """Return a Haystack component of ``stage``: ``run(query, top_k) -> {"documents": [...]}``.

    ``Document``s come best first: ``id``, ``content`` (title and text, as they are encoded and
    reranked), ``score``, and ``meta`` with ``id``, ``title``, ``score`` and the document's own. A
    pipeline with it cannot be saved as YAML: a stage is not a plain value. Raises
    ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, top_k = searching(stage), whole_number(top_k, "top_k", 1)
    return _haystack_class()(stage, top_k)


@functools.cache
def _haystack_class() -> Any:
    try:
        from haystack import Document, component
    except ImportError:
        raise MissingPackageError("haystack-ai", "interop", "a Haystack component") from None

    @component
    class SluiceRetriever:
        """The documents a stage finds."""

        def __init__(self, stage: Stage, top_k: int) -> None:
            self.stage, self.top_k = stage, top_k

        @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
        def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
            """Return the best documents for a query; ``top_k`` as given here or at first."""
            hits = find(self.stage, query, self.top_k if top_k is None else top_k)
            return {
                "documents": [
                    Document(id=meta["id"], content=text, meta=meta, score=meta["score"])
                    for text, meta in hits
                ]
            }

    return SluiceRetriever
