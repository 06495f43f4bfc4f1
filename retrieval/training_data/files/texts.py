"""The texts of queries and documents that a training file names by id alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.training_data.files.rows import Row

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset

log = logging.getLogger("sluice")


def with_texts(rows: list[Row], dataset: Dataset) -> list[Row]:
    """Return the rows with the dataset's texts where they have ids only.

    Documents that the dataset has no text for (or a blank one) are left out, and so are rows that
    lose their query or their last positive: counted in a warning. ``DataError`` if that is all.
    """
    queries = {row.query.id for row in rows if row.query.text is None and row.query.id}
    documents = {
        one.document.id
        for row in rows
        for one in row.documents
        if one.document.text is None and one.document.id
    }
    if not queries and not documents:
        return rows
    query_texts, document_texts = _queries(queries, dataset), _documents(documents, dataset)
    kept = [found for row in rows if (found := _filled(row, query_texts, document_texts))]
    lost = len(rows) - len(kept)
    absent = sorted(queries - query_texts.keys()) + sorted(documents - document_texts.keys())
    if not kept and rows:
        raise DataError(
            f"{rows[0].place}: none of the {len(rows):,} rows names a query and a positive that "
            f"dataset {dataset.name} has texts for (such as {', '.join(absent[:3])}); the file "
            "belongs to another collection: give that as dataset"
        )
    if absent:
        log.warning(
            "%s: has no text for %s of the ids in the training file (%s); %s of %s rows are left "
            "out for it",
            dataset.name, f"{len(absent):,}", ", ".join(absent[:3]), f"{lost:,}", f"{len(rows):,}",
        )  # fmt: skip
    return kept


def _queries(wanted: set[str], dataset: Dataset) -> dict[str, str]:
    if not wanted:
        return {}
    stream = dataset.source.queries(dataset.split or "train")
    return {name: text for name, text in stream if name in wanted and text.strip()}


def _documents(wanted: set[str], dataset: Dataset) -> dict[str, str]:
    if not wanted:
        return {}
    found: Iterable[tuple[str, str]] = ((d.id, d.full_text) for d in dataset.corpus)
    return {name: text for name, text in found if name in wanted and text}


def _filled(row: Row, queries: Mapping[str, str], documents: Mapping[str, str]) -> Row | None:
    """Return the row with its texts, None where its query or every positive has none."""
    query = row.query
    if query.text is None:
        query = query._replace(text=queries.get(query.id or ""))
    made = []
    for one in row.documents:
        document = one.document
        if document.text is None:
            document = document._replace(text=documents.get(document.id or ""))
        if document.text is not None:
            made.append(one._replace(document=document))
    had = any(one.label > 0 for one in row.documents)  # a graded list may have none
    whole = query.text is not None and any(one.label > 0 for one in made) >= had
    return row._replace(query=query, documents=tuple(made)) if whole else None
