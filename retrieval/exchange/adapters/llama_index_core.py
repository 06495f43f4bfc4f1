"""LlamaIndex: a stage as a ``BaseRetriever`` of llama-index-core.

llama-index-core is an optional package: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.exchange.adapters.hits import find, searching
from sluice.retrieval.pipelines.stage import Stage

UNSHOWN = ["id", "title", "score"]  # the title stands in the text


def llama_index_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LlamaIndex retriever of ``stage``: ``retrieve(query)``, ``await aretrieve(query)``.

    It returns ``NodeWithScore``s, best first, of ``TextNode``s: ``node_id`` the document's id, its
    title and text, and ``metadata`` with ``id``, ``title``, ``score`` and the document's own; these
    three are not shown to language models. Raises ``MissingPackageError``, and ``ConfigError`` for
    a stage that needs candidates.
    """
    stage, k = searching(stage), whole_number(k, "k", 1)
    return _retriever_class()(stage, k)


@functools.cache
def _retriever_class() -> Any:
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
