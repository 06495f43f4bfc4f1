"""The number that is minimised, and the search with live queries that may give its candidates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.training.batches.processes import gathered
from sluice.training.batches.scoring import TokenScoring, tokens_of
from sluice.training.batches.vector_batch import Scoring, VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.sparsity.regulariser import Regulariser, active_terms

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


log = logging.getLogger("sluice")


class Objective:
    """The loss of a batch with the penalties of the regulariser, always in float32.

    ``parts`` collects sums and counts of what the next log line reports as means. ``scoring`` is
    for vectors that no inner product compares; of tokens, ``cosine`` then says that each has length
    1.
    """

    def __init__(
        self,
        loss: LossBase,
        *,
        cosine: bool,
        regulariser: Regulariser | None = None,
        live: LiveCandidates | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self.loss = loss
        self.cosine = cosine
        self.scoring = scoring
        self.regulariser = regulariser
        self.live = live
        self.chunk: int | None = None  # of texts that a loss runs through the network at once
        self.parts: dict[str, tuple[Tensor, int]] = {}
        self._checked = False  # whether `xtr` leaves any token out

    def __call__(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Any], *, layers: int, step: int
    ) -> Tensor:
        """Return the value for ``outputs``, this process's vectors by name.

        ``inputs`` is what the collator laid out, ``layers`` how many layers' vectors are side by
        side, ``step`` the number of the optimiser step, for the message of a ``DataError``: a value
        that is not finite stops the training.
        """
        with torch.autocast(_device(outputs), enabled=False):
            sizes = inputs["sizes"]
            vectors = {n: gathered(values.float(), sizes[n]) for n, values in outputs.items()}
            batch = self._batch(vectors, inputs, layers)
            value = self.loss.over(batch)
            penalties = self._penalties(batch)
            if penalties:
                self.note(self.loss.noted, value)
            total: Tensor = sum(penalties.values(), start=value)
        if not torch.isfinite(total):
            names = inputs["ids"]["query"] or inputs["ids"]["document"]
            raise DataError(
                f"training step {step}: the loss is {total.item()} on the batch of "
                f"{', '.join(names[:8])}{' ...' if len(names) > 8 else ''}; earlier checkpoints "
                "are kept: lower the learning rate or look at the batch's texts"
            )
        return total

    def _batch(
        self, vectors: Mapping[str, Tensor], inputs: Mapping[str, Any], layers: int
    ) -> VectorBatch:
        if self.live is not None:
            batch = self.live.batch(vectors["query"], inputs["ids"]["query"], cosine=self.cosine)
            return replace(batch, weights=inputs["weights"])
        own = self.loss.batch(vectors, inputs)
        if own is not None:
            return own
        targets = {
            "labels": inputs["labels"],
            "mask": inputs["mask"],
            "positives": inputs["positives"],
            "owners": inputs["owners"],
            "weights": inputs["weights"],
            "teacher": inputs["teacher"],
            "cosine": self.cosine,
            "scoring": self.scoring,
            "features": inputs["features"],
            "ids": inputs["ids"],
            "chunk": self.chunk,
            "source": inputs["source"],
        }
        if "pairs" in vectors:
            labels = inputs["labels"]
            matrix = torch.zeros_like(labels).masked_scatter(inputs["places"], vectors["pairs"])
            empty = vectors["pairs"].new_zeros((0, 1))
            sides = vectors.get("query", empty), vectors.get("document", empty)
            return VectorBatch(*sides, matrix=matrix, **targets)
        queries, documents = vectors["query"], vectors["document"]
        if isinstance(self.scoring, TokenScoring) and self.scoring.retrieved and not self._checked:
            self._checked = True
            warn_of_all(self.scoring, documents)
        stacked: Sequence[tuple[Tensor, Tensor]] = ()
        if layers > 1:
            stacked = list(
                zip(queries.chunk(layers, dim=1), documents.chunk(layers, dim=1), strict=True)
            )
            queries, documents = stacked[0]
        further = {}  # the places and the last layer's vectors of what else is encoded as queries
        for name, places in (("answered", "answered_columns"), ("negative_query", "negative_rows")):
            if name in vectors:
                further[name] = inputs[places], vectors[name].chunk(max(1, layers), dim=1)[0]
        taught = inputs.get("teacher_vectors")
        return VectorBatch(
            queries,
            documents,
            layers=tuple(stacked),
            answered=further.get("answered"),
            negative_queries=further.get("negative_query"),
            teacher_vectors=None if taught is None else (taught["query"], taught["document"]),
            **targets,
        )

    def _penalties(self, batch: VectorBatch) -> dict[str, Tensor]:
        if self.regulariser is None:
            return {}
        penalties = self.regulariser(batch.queries, batch.documents, batch.owners)
        for side, penalty in penalties.items():
            self.note(f"loss_sparsity_{side}", penalty)
        for side, vectors in (("query", batch.queries), ("document", batch.documents)):
            if len(vectors):  # live candidates have no documents, masked texts no queries
                self.note(f"active_terms_{side}", active_terms(vectors))
        return penalties

    def note(self, name: str, value: Tensor) -> None:
        """Add to the mean that the next log line reports."""
        total, count = self.parts.get(name, (torch.zeros((), device=value.device), 0))
        self.parts[name] = (total + value.detach(), count + 1)

    def report(self) -> dict[str, float]:
        """Return the means since the last call, and the notes of the loss and the regulariser."""
        means = {name: float(total) / count for name, (total, count) in self.parts.items()}
        self.parts = {}
        means |= {name: float(value) for name, value in self.loss.notes().items()}
        if self.regulariser is not None:
            means |= self.regulariser.notes()
        return means


def warn_of_all(scoring: TokenScoring, documents: Tensor) -> None:
    """Log a warning where each query token finds all of a batch's document tokens."""
    count = int(tokens_of(documents).sum())
    if count <= scoring.retrieved:
        log.warning(
            "scoring: xtr: each token finds %s tokens and the first batch's documents have %s, so "
            "all are found and this is mean_max_sim; set xtr_top_k below, or enlarge the batch",
            f"{scoring.retrieved:,}", f"{count:,}",
        )  # fmt: skip


def _device(outputs: Mapping[str, Tensor]) -> str:
    return next(iter(outputs.values())).device.type
