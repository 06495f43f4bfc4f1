"""Queries by id, and how deep they are searched unless a cut says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

DEPTH = 1000  # how deep a retriever inside a pipeline searches when no cut says otherwise

Queries = Mapping[str, str]  # query id -> text


class SelfExcluding(dict[str, str]):
    """Queries that retrievers answer without the document whose id is the query's own.

    They return as many documents as for other queries. For datasets whose queries are documents
    (``Dataset.identical_ids``).
    """
