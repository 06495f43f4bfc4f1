"""Measures whether a new encoder's queries search an old index better than the old one's do."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.given import EncoderLike
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.evaluation.measures import Measure, depth_of, parse_measure
from sluice.retrieval.evaluation.scores import Scores, evaluate
from sluice.retrieval.evaluation.significance import Effect, effect, paired_t_test
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.retrievers.dataset_runs import asked
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.studies.upgraded_folder import joined_encoder, save_with

if TYPE_CHECKING:
    from sluice.encoders.towers import TowerEncoder

log = logging.getLogger("sluice")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an index gains by a new query encoder, before anything is encoded again.

    ``old`` and ``new`` are the means of the measure over ``queries`` queries with the old and the
    new encoder's queries, ``p_value`` that of the paired t-test of their difference (``change``,
    with its 95 % interval). ``save`` writes the index with the new query encoder.
    """

    measure: str
    queries: int
    old: float
    new: float
    p_value: float
    change: Effect
    retriever: Retriever = field(repr=False)
    encoder: TowerEncoder = field(repr=False)

    @property
    def holds(self) -> bool:
        """Whether the new encoder is compatible: better on the old index than the old encoder."""
        return self.new > self.old

    def table(self) -> Table:
        """Return both means, and the difference with its test in the caption."""
        rows: dict[str, Any] = {
            "old queries, old index": {self.measure: self.old, "over old": None},
            "new queries, old index": {self.measure: self.new, "over old": self.change.difference},
        }
        table = Table(columns={self.measure: ".4f", "over old": "+.4f"}, rows=rows)
        between = (
            f"95 % between {self.change.low:+.4f} and {self.change.high:+.4f}, "
            if self.queries > 1
            else ""
        )
        table.caption = f"{self.queries:,} queries; {between}paired t-test p = {self.p_value:.3g}"
        return table

    def verdict(self) -> str:
        """Say in a sentence whether the inequality holds, and what follows."""
        if not self.holds:
            return (
                "not compatible: the new queries do no better on the old index than its own; train "
                "the new encoder with the old one as teacher (loss: hoc or alignment), or encode "
                "the documents again"
            )
        sure = "" if self.p_value < 0.05 else ", by a difference that chance may have made"
        return f"compatible: the new queries do better on the old index than its own{sure}"

    def save(self, path: str | Path) -> Retriever:
        """Write the old index with the new query encoder as a retriever, and open it."""
        return save_with(self.retriever, self.encoder, path)


def upgrade(
    old: Retriever | str | Path,
    new: EncoderLike,
    dataset: Dataset,
    measure: str | Measure = "nDCG@10",
) -> Upgrade:
    """Search an old index with its own queries and with a new encoder's, and compare.

    The inequality that decides is M[new][old] > M[old][old] (Shen et al. 2020, Towards
    Backward-Compatible Representation Learning), on the queries of ``dataset``, which is not the
    test split. Raises ``ConfigError`` where ``new`` cannot ask this index, and ``DataError`` where
    none of the relevant documents is in it.
    """
    retriever = old if isinstance(old, Retriever) else Retriever.open(old)
    parsed = parse_measure(measure)
    _check_documents(retriever, dataset)
    encoder = joined_encoder(retriever, new)
    depth = max(DEPTH, depth_of([parsed]) or DEPTH)
    queries = asked(dataset, retriever)
    names = [name for name, text in queries.items() if text.strip()]
    texts = [queries[name] for name in names]

    def scored(vectors: Any) -> Scores:
        run = retriever.state.nearest(queries, names, vectors, depth)
        return evaluate(run, dataset, [parsed])

    before = scored(retriever.encoder.encode_queries(texts))
    after = scored(encoder.encode_queries(texts))
    (name,) = before.mean
    ids = list(before.per_query[name])
    one = np.array([after.per_query[name][query] for query in ids])
    other = np.array([before.per_query[name][query] for query in ids])
    return Upgrade(
        name, len(ids), before.mean[name], after.mean[name], paired_t_test(one, other),
        effect(one, other), retriever, encoder,
    )  # fmt: skip


def _check_documents(retriever: Retriever, dataset: Dataset) -> None:
    """Refuse an index of another corpus; warn where relevant documents are missing from it."""
    relevant = {d for grades in dataset.qrels.values() for d, grade in grades.items() if grade > 0}
    missing = sum(document not in retriever.store for document in relevant)
    if missing == len(relevant):
        raise DataError(
            f"{retriever.path}: none of the {len(relevant):,} relevant documents of {dataset.name} "
            "is in it; name the dataset that it was built of"
        )
    if missing:
        log.warning(
            "%s: %s of %s relevant documents of %s are not in it and count as not found",
            retriever.path, f"{missing:,}", f"{len(relevant):,}", dataset.name,
        )  # fmt: skip
