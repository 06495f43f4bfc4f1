"""A stage that searches only the documents whose metadata match a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.where import Where, conditions
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.saving import NameOf
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Hit
    from sluice.retrieval.pipelines.stage import Texts
    from sluice.retrieval.retrievers.retriever import Retriever


class Filtered(Stage):
    """``retriever.filtered(where)``: ``where`` holds for every hit."""

    def __init__(self, retriever: Retriever, where: Where) -> None:
        conditions(where)  # raises for an invalid condition now, not at the first query
        self.retriever, self.where = retriever, dict(where)
        self.name = retriever.name

    @property
    def documents(self) -> Texts:
        """The store of the retriever, which has all documents."""
        return self.retriever.documents

    @property
    def base_retriever(self) -> Retriever:
        """The retriever without its filter."""
        return self.retriever

    @property
    def base_where(self) -> Where:
        """The condition as it was given."""
        return self.where

    @property
    def names_passages(self) -> bool:
        """Whether the retriever searches documents by their passages."""
        return self.retriever.names_passages

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens met, as the retriever does."""
        return self.retriever.matches_of(query, doc_id)

    @property
    def least_score(self) -> float | None:
        """The least score of the retriever."""
        return self.retriever.least_score

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search every query among the documents that match."""
        return self.retriever.run(queries, given, k, where=self.where)

    def filtered(self, where: Where) -> Filtered:
        """Return the stage for which both hold; ``ConfigError`` for two conditions on one key."""
        conditions(where)
        for key in self.where:
            if key in where and where[key] != self.where[key]:
                raise ConfigError(
                    f"where: {key!r} is filtered by {self.where[key]!r} already; expected one "
                    "condition on a key"
                )
        return Filtered(self.retriever, {**self.where, **where})

    def written(self, name_of: NameOf) -> str:
        """Return a name: the filter is saved with the retriever."""
        return name_of(self)

    def _hits(self, query: str, k: int) -> list[Hit]:
        return self.retriever.search(query, k, where=self.where)

    def _hits_of_all(self, queries: Queries, k: int) -> list[list[Hit]]:
        return self.retriever.search(list(queries.values()), k, where=self.where)
