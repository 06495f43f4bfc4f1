"""Live candidates: what a frozen index answers to the queries as they are encoded now (ADORE)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.vector_batch import VectorBatch

if TYPE_CHECKING:
    from sluice.indexing.index import Index

Gather = Callable[[np.ndarray], np.ndarray]  # rows [n] -> vectors [n, dim]


class LiveCandidates:
    """Searches a frozen index with each batch's queries and lays the hits out as a score matrix.

    ``index`` is searched to ``depth``; ``gather(rows)`` returns the documents' vectors, from which
    scores are computed again with gradients to the queries. ``relevant`` holds for each query the
    rows of its relevant documents and their grades: those that the search missed stand at the end
    of the list, so that every query has its positives (Zhan et al. 2021, ADORE, section 4). A
    ``sparse`` index is asked with rows of terms.
    """

    def __init__(
        self,
        index: Index,
        gather: Gather,
        relevant: Mapping[str, Mapping[int, float]],
        *,
        depth: int = 200,
        sparse: bool = False,
    ) -> None:
        if depth < 2:
            raise ConfigError(f"negatives.depth: {depth}, expected 2 or more candidates")
        self.index = index
        self.gather = gather
        self.relevant = relevant
        self.depth = depth
        self.sparse = sparse

    def batch(self, queries: Tensor, ids: Sequence[str], *, cosine: bool) -> VectorBatch:
        """Return the batch of queries ``[B, dim]`` against their candidates, in retrieved order.

        Column r of the matrix is the document at position r of the query's own list.
        """
        vectors = normalize(queries, dim=1) if cosine else queries
        asked = vectors.detach().cpu().numpy().astype(np.float32)
        found = self.index.search(sp.csr_array(asked) if self.sparse else asked, self.depth)
        lists = [self._listed(name, rows) for name, rows in zip(ids, found.rows, strict=True)]
        width = max(len(rows) for rows, _ in lists)
        labels = torch.zeros(len(ids), width)
        mask = torch.zeros(len(ids), width, dtype=torch.bool)
        matrix = queries.new_zeros((len(ids), width))
        scored = []
        for place, (rows, grades) in enumerate(lists):
            labels[place, : len(rows)] = torch.tensor(grades)
            mask[place, : len(rows)] = True
            documents = torch.from_numpy(np.ascontiguousarray(self.gather(rows), np.float32))
            documents = documents.to(queries.device)
            if cosine:
                documents = normalize(documents, dim=1)
            scored.append(documents @ vectors[place])
        mask, labels = mask.to(queries.device), labels.to(queries.device)
        matrix = matrix.masked_scatter(mask, torch.cat(scored))
        empty = queries.new_zeros((0, queries.shape[1]))
        return VectorBatch(
            queries=queries,
            documents=empty,
            labels=labels,
            mask=mask,
            positives=labels.argmax(dim=1),
            owners=torch.zeros(0, dtype=torch.long),
            cosine=cosine,
            matrix=matrix,
            ids={"query": tuple(ids)},
        )

    def _listed(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, list[float]]:
        grades = self.relevant.get(name)
        if not grades:
            raise DataError(f"query {name!r}: none of its relevant documents is in the index")
        hits = rows[rows >= 0]
        here = set(hits.tolist())
        missed = [row for row in grades if row not in here]
        listed = np.concatenate([hits, np.array(missed, dtype=hits.dtype)])
        return listed, [grades.get(row, 0.0) for row in listed.tolist()]
