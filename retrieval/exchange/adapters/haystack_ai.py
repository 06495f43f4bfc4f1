"""Haystack: a stage as a component of haystack-ai.

haystack-ai is an optional package: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

import functools
from typing import Any

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.exchange.adapters.hits import find, searching
from sluice.retrieval.pipelines.stage import Stage


def haystack_retriever(stage: Stage, top_k: int = 10) -> Any:
    """Return a Haystack component of ``stage``: ``run(query, top_k) -> {"documents": [...]}``.

    ``Document``s come best first: ``id``, ``content`` (title and text, as they are encoded and
    reranked), ``score``, and ``meta`` with ``id``, ``title``, ``score`` and the document's own. A
    pipeline with it cannot be saved as YAML: a stage is no plain value. Raises
    ``MissingPackageError``, and ``ConfigError`` for a stage that needs candidates.
    """
    stage, top_k = searching(stage), whole_number(top_k, "top_k", 1)
    return _component_class()(stage, top_k)


@functools.cache
def _component_class() -> Any:
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
