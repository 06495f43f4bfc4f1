"""Measures what a new query encoder does to old indexes, and gives an index a new one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Compatibility:
    """``matrix[i][j]``: the measure with query encoder i on the document index of retriever j.

    A cell is None if the two do not fit; ``impossible`` has the reasons by (query encoder, index).
    ``average`` is AC, the share of pairs i > j with M[i][j] > M[j][j].
    """

    names: tuple[str, ...]
    measure: str
    matrix: tuple[tuple[float | None, ...], ...]
    average: float
    impossible: Mapping[tuple[str, str], str]

    def table(self) -> Table:
        """Return the matrix, a row for each query encoder and a column for each index."""
        table = Table(columns={f"on {name}": ".4f" for name in self.names})
        table.rows = {
            name: {f"on {other}": value for other, value in zip(self.names, row, strict=True)}
            for name, row in zip(self.names, self.matrix, strict=True)
        }
        reasons = [
            f"{query} on {index}: {reason}" for (query, index), reason in self.impossible.items()
        ]
        table.caption = "; ".join(
            [
                f"{self.measure} of query encoders (rows) on document indexes (columns), oldest "
                f"first; average compatibility {self.average:.2f}",
                *reasons,
            ]
        )
        return table


def compatibility_matrix(
    retrievers: Mapping[str, Retriever], dataset: Dataset, measure: str | Measure = "nDCG@10"
) -> Compatibility:
    """Search every retriever's index with every retriever's query encoder, and score.

    ``retrievers`` go from the oldest model to the newest. Encoder i > j is compatible with index j
    if it does better there than encoder j itself, M[i][j] > M[j][j] (Shen et al., 2020); AC, the
    average compatibility, is the share of such pairs that are (Biondi et al., 2023). Identical
    models have AC 0, because the inequality is strict.

    A cell is None, and its pair not compatible, if the query vectors differ in kind or width from
    those of the index's own encoder. Vectors of the same width are taken to be comparable; whether
    they are is what is measured. Each encoder encodes the queries once.
    """
    if len(retrievers) < 2:
        raise ConfigError(
            "compatibility_matrix: expected at least two retrievers, the oldest first"
        )
    parsed = parse_measure(measure)
    depth = max(DEPTH, depth_of([parsed]) or DEPTH)
    names = tuple(retrievers)
    states = {name: retriever.state for name, retriever in retrievers.items()}
    texts = [name for name, text in dataset.queries.items() if text.strip()]
    vectors: dict[str, Any] = {
        name: state.encoder.encode_queries([dataset.queries[query] for query in texts])
        for name, state in states.items()
    }
    impossible: dict[tuple[str, str], str] = {}
    matrix: list[tuple[float | None, ...]] = []
    for encoder in names:
        row: list[float | None] = []
        for index in names:
            reason = _misfit(vectors[encoder], vectors[index])
            if reason:
                impossible[encoder, index] = reason
                row.append(None)
                continue
            queries = asked(dataset, retrievers[index])
            run = states[index].nearest(queries, texts, vectors[encoder], depth)
            row.extend(evaluate(run, dataset, [parsed]).mean.values())
        matrix.append(tuple(row))
    pairs = [(matrix[i][j], matrix[j][j]) for i in range(len(names)) for j in range(i)]
    better = [new is not None and old is not None and new > old for new, old in pairs]
    return Compatibility(names, str(parsed), tuple(matrix), sum(better) / len(better), impossible)


def _misfit(vectors: Any, own: Any) -> str:
    """Return why query vectors do not fit an index whose own encoder produces ``own``, or ""."""
    if type(vectors) is not type(own):
        return f"{type(vectors).__name__} for an index of {type(own).__name__}"
    widths = [getattr(each, "shape", (0, 0))[1] for each in (vectors, own)]
    return "" if widths[0] == widths[1] else f"width {widths[0]:,} for {widths[1]:,}"


UPGRADE = "upgrade"  # in `origin`: whose queries and whose documents these are


def joined_encoder(old: Retriever, new: EncoderLike) -> TowerEncoder:
    """Return the encoder of a retriever's documents with the queries of ``new``.

    ``new`` is an encoder, or a model's folder or name; of one with two towers, that of queries is
    taken. The encoders in use are left as they are. Raises ``ConfigError`` where the vectors could
    not be compared: by kind, dimensions, similarity or vocabulary.
    """
    from sluice.encoders.towers import TowerEncoder

    encoder = as_encoder(new)
    query = hooks_of(encoder).towers.get("query", encoder)
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
