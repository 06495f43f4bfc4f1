"""Gives an index a new query encoder, and measures whether its searches are better."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.disk.generations import (
    MANIFEST,
    pin_generation,
    replaced_folder,
    settle,
)
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.objects import EncoderLike, as_encoder
from sluice.encoders.table import traits_of
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.evaluation.measures import Measure, depth_of, parse_measure
from sluice.retrieval.evaluation.scores import Scores, evaluate
from sluice.retrieval.evaluation.significance import Effect, effect, paired_t_test
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.retrievers.candidate_lists import asked
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    HEAD,
    INDEX,
    copy_part,
    open_placed_encoder,
    place_encoder,
    refuse_foreign,
    write_head,
)
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.queries import DEPTH

if TYPE_CHECKING:
    from sluice.encoders.towers import TowerEncoder


UPGRADE = "upgrade"  # in `origin`: whose queries and whose documents these are


def joined_encoder(old: Retriever, new: EncoderLike) -> TowerEncoder:
    """Return the encoder of a retriever's documents with the queries of ``new``.

    ``new`` is an encoder, or a model's folder or name; of one with two towers, that of queries is
    taken. The encoders in use are left as they are. Raises ``ConfigError`` where the vectors could
    not be compared: by kind, dimensions, similarity or vocabulary.
    """
    from sluice.encoders.towers import TowerEncoder

    given = as_encoder(new)
    query = hooks_of(given).towers.get("query", given)
    own = open_placed_encoder(old.path, old.head, allow=old.state.allow)
    document = hooks_of(own).towers.get("document", own)
    width, dim = old.index.width, hooks_of(query).dim if _one_vector(query) else None
    if _one_vector(document) and dim is not None and width not in (None, dim):
        raise ConfigError(
            f"{old.path / INDEX / MANIFEST}: encoder_fingerprint: the index has vectors of "
            f"{width:,} dimensions, and the new encoder's have {dim:,}; train it with "
            f"encoder.projection: {width}, or rebuild the index"
        )
    if not isinstance(new, str | Path):
        query = copy.deepcopy(query)
    try:
        return TowerEncoder(query, document)
    except ConfigError as error:
        raise ConfigError(
            f"{old.path / HEAD}: encoder_fingerprint: {error}: the index takes the queries of no "
            "such encoder; rebuild it with the new one"
        ) from None


def _one_vector(encoder: Any) -> bool:
    """Whether an encoder makes one dense vector of a text, by whose width others may differ."""
    traits = traits_of(encoder)
    return traits is not None and traits.learns == ("dense",) and not traits.opens_alone


def save_with(old: Retriever, encoder: TowerEncoder, path: str | Path) -> Retriever:
    """Write a copy of a retriever that asks the same index by ``encoder``, in one step; open it.

    ``encoder`` is what ``joined_encoder`` returns. Files of the index and the documents are linked
    where the file system can; documents that are added later are encoded as those before.
    """
    target, head = Path(path), old.head
    if head.shards is not None:
        raise ConfigError(
            f"{old.path}: is in shards, whose indexes are bound to one encoder each; build it "
            "without shards, upgrade that, and sluice reshard it"
        )
    if target.resolve() == old.path.resolve():
        raise ConfigError(f"{path}: is the old retriever's own folder; choose another")
    refuse_foreign(target)
    settle(target)
    with replaced_folder(target, markers=(HEAD,)) as draft:
        copy_part(old.path / DOCUMENTS, draft / DOCUMENTS, head.documents_generation)
        copy_part(old.path / INDEX, draft / INDEX, head.index_generation)
        pin_generation(draft / INDEX, head.index_generation)
        for folder in (draft / INDEX / head.index_generation, draft / INDEX):
            manifest = read_json(folder / MANIFEST)
            facts = {**manifest, "encoder_fingerprint": str(encoder.fingerprint)}
            write_json(folder / MANIFEST, facts)
        noted: dict[str, Any] = {
            "query_encoder": str(encoder.query.fingerprint),
            "index_encoder": head.encoder_fingerprint,
        }
        placed = place_encoder(draft, encoder)
        write_head(draft, replace(head, origin={**head.origin, UPGRADE: noted}, **placed))
    return Retriever.open(target, allow=old.state.allow)


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
