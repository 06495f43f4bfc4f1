"""LangChain: a stage as a ``BaseRetriever`` of langchain-core.

langchain-core is an optional package: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

import functools
from typing import Any

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.exchange.adapters.hits import find, searching
from sluice.retrieval.pipelines.stage import Stage


def langchain_retriever(stage: Stage, k: int = 10) -> Any:
    """Return a LangChain retriever of ``stage``: ``invoke(query)``, or ``invoke(query, k=5)``.

    It returns ``Document``s, best first: ``id``, ``page_content`` (title and text, as they are
    encoded and reranked) and ``metadata`` with ``id``, ``title``, ``score`` and the document's own.
    Raises ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, k = searching(stage), whole_number(k, "k", 1)
    return _retriever_class()(stage=stage, k=k)


@functools.cache
def _retriever_class() -> Any:
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
