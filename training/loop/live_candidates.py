"""Searches a frozen index with the queries as they are encoded now (ADORE)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.training.batches.vector_batch import VectorBatch

if TYPE_CHECKING:
    from sluice.indexing.index import Index

Gather = Callable[[np.ndarray], np.ndarray]  # rows [n] -> vectors [n, dim]
Append = Literal["none_found", "every"]


class LiveCandidates:
    """Searches a frozen index with each batch's queries and lays the hits out as a score matrix.

    ``index`` is searched to ``depth``; ``gather(rows)`` returns the documents' vectors, from which
    scores are computed again with gradients to the queries. ``relevant`` holds for each query the
    rows of its relevant documents and their grades. With ``append: none_found`` a query of whose
    relevant documents the search found none gets all of them at the end of its list, so that every
    query has a positive (Zhan et al. 2021, ADORE, section 4); with ``every`` each relevant document
    that the search missed is appended, whatever else it found. A ``sparse`` index is searched with
    rows of terms.
    """

    def __init__(
        self,
        index: Index,
        gather: Gather,
        relevant: Mapping[str, Mapping[int, float]],
        *,
        depth: int = 200,
        append: Append = "none_found",
        sparse: bool = False,
    ) -> None:
        if depth < 2:
            raise ConfigError(f"negatives.depth: {depth}, expected 2 or more candidates")
        check_append(append, "negatives.append")
        self.index = index
        self.gather = gather
        self.relevant = relevant
        self.depth = depth
        self.append = append
        self.sparse = sparse

    def batch(self, queries: Tensor, ids: Sequence[str], *, cosine: bool) -> VectorBatch:
        """Return the batch of queries ``[B, dim]`` against their candidates, in retrieved order.

        Column r of the matrix is the document at position r of the query's own list.
        """
        vectors = normalize(queries, dim=1) if cosine else queries
        plain = vectors.detach().cpu().numpy().astype(np.float32)
        hits = self.index.search(sp.csr_array(plain) if self.sparse else plain, self.depth)
        lists = [self._candidates(query, rows) for query, rows in zip(ids, hits.rows, strict=True)]
        width = max(len(rows) for rows, _ in lists)
        labels = torch.zeros(len(ids), width)
        mask = torch.zeros(len(ids), width, dtype=torch.bool)
        matrix = queries.new_zeros((len(ids), width))
        scores = []
        for place, (rows, grades) in enumerate(lists):
            labels[place, : len(rows)] = torch.tensor(grades)
            mask[place, : len(rows)] = True
            documents = torch.from_numpy(np.ascontiguousarray(self.gather(rows), np.float32))
            documents = documents.to(queries.device)
            if cosine:
                documents = normalize(documents, dim=1)
            scores.append(documents @ vectors[place])
        mask, labels = mask.to(queries.device), labels.to(queries.device)
        return VectorBatch(
            queries=queries,
            documents=queries.new_zeros((0, queries.shape[1])),
            labels=labels,
            mask=mask,
            positives=labels.argmax(dim=1),
            owners=torch.zeros(0, dtype=torch.long),
            cosine=cosine,
            matrix=matrix.masked_scatter(mask, torch.cat(scores)),
            ids={"query": tuple(ids)},
        )

    def _candidates(self, query: str, rows: np.ndarray) -> tuple[np.ndarray, list[float]]:
        """Return the rows of a query's candidates, best first, and their grades."""
        grades = self.relevant.get(query)
        if not grades:
            raise DataError(f"query {query!r}: none of its relevant documents is in the index")
        hits = rows[rows >= 0]
        missed = grades.keys() - set(hits.tolist())
        if self.append == "none_found" and len(missed) < len(grades):
            missed = set()
        appended = np.array([row for row in grades if row in missed], dtype=hits.dtype)
        candidates = np.concatenate([hits, appended])
        return candidates, [grades.get(row, 0.0) for row in candidates.tolist()]


def check_append(append: str, where: str) -> None:
    """Raise ``ConfigError`` for a rule of appending positives that does not exist."""
    rules = get_args(Append)
    if append not in rules:
        raise ConfigError(
            f"{where}: {append!r}, expected {' or '.join(rules)}{suggest(str(append), rules)}"
        )
