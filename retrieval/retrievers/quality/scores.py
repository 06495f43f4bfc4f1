"""Quality scores of a corpus, the head that gives them, the corpus without its worst share."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.evaluation.scores import Qrels
from sluice.training.rankers.quality_head import Loss, QualityHead, fit_quality_head

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.retriever import Retriever


FORMAT = b"sluice.quality"
COLUMNS = ("id", "quality")


class QualityScores:
    """A number for each document, in the order of its corpus: the higher, the worthier to keep.

    ``by`` names what scored, ``facts`` tell more of it. Ids are held as a pyarrow array. Raises
    ``DataError`` for a score that is not finite.
    """

    def __init__(
        self,
        ids: Any,
        scores: ArrayLike,
        *,
        by: str = "quality",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        import pyarrow as pa

        self.ids = ids if isinstance(ids, pa.Array) else pa.array(list(ids), pa.string())
        self.scores: NDArray[np.float32] = np.asarray(scores, np.float32)
        self.by = by
        self.facts = dict(facts or {})
        if self.scores.shape != (len(self.ids),):
            raise DataError(
                f"quality: {len(self.ids):,} ids and scores of shape {self.scores.shape}; expected "
                "one score per document"
            )
        if self.ids.null_count:
            raise DataError("quality: a document has no id; expected one for each score")
        bad = np.flatnonzero(~np.isfinite(self.scores))
        if len(bad):
            raise DataError(
                f"quality: document {self.ids[int(bad[0])].as_py()!r} has {self.scores[bad[0]]}; "
                "expected finite numbers"
            )

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        return f"QualityScores({self.by!r}, {len(self):,} documents)"

    def best(self, share: float) -> NDArray[np.bool_]:
        """Return for each document whether it stays when the worst ``share`` goes.

        Of n documents floor(share n) go, whatever the ties: of equal ones that with the smaller id
        goes first, as in a ranking.
        """
        if not is_number(share) or not 0 <= share < 1:
            raise ConfigError(f"share: {share!r}; expected the share to drop, 0 up to below 1")
        import pyarrow as pa

        count = int(share * len(self) + 1e-9)  # 0.3 of 10 is 3, though 0.3 * 10 may fall short
        if count == 0:
            return np.ones(len(self), dtype=np.bool_)
        edge = np.partition(self.scores, count - 1)[count - 1]
        kept: NDArray[np.bool_] = self.scores > edge
        tied = np.flatnonzero(self.scores == edge)
        names = self.ids.take(pa.array(tied)).to_pylist()
        order = sorted(range(len(tied)), key=names.__getitem__, reverse=True)
        kept[tied[order[: len(self) - count - int(kept.sum())]]] = True
        return kept

    def save(self, path: str | Path) -> None:
        """Write a parquet file with the columns ``id`` and ``quality``, in one step."""
        import pyarrow as pa
        from pyarrow import parquet

        file = Path(path)
        facts = json.dumps({"by": self.by, "facts": self.facts}, default=str)
        schema = pa.schema(
            [(COLUMNS[0], pa.string()), (COLUMNS[1], pa.float32())], {FORMAT: facts.encode()}
        )
        table = pa.table([self.ids.cast(pa.string()), pa.array(self.scores)], schema=schema)
        with replaced_file(file) as stream:
            parquet.write_table(table, stream, compression="zstd")

    @classmethod
    def load(cls, path: str | Path) -> QualityScores:
        """Read a parquet file with columns ``id`` and ``quality``, ours or another tool's."""
        import pyarrow as pa
        from pyarrow import parquet

        file = expanded(path)
        if not file.is_file():
            raise DataError(f"{file}: no such file; sluice fit quality makes one")
        try:
            names = parquet.read_schema(file).names
            if not set(COLUMNS) <= set(names):
                raise DataError(
                    f"{file}: columns {', '.join(names)}; expected {' and '.join(COLUMNS)}"
                )
            table = parquet.read_table(file, columns=list(COLUMNS)).combine_chunks()
            ids = table.column(COLUMNS[0]).cast(pa.string()).combine_chunks()
            values = table.column(COLUMNS[1]).cast(pa.float32()).to_numpy()
            noted = dict(json.loads((table.schema.metadata or {}).get(FORMAT, b"{}")))
            by, facts = str(noted.get("by", file.stem)), dict(noted.get("facts") or {})
        except (pa.ArrowException, OSError, TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{file}: not a file of quality scores ({error}); sluice fit quality writes one"
            ) from None
        try:
            return cls(ids, values, by=by, facts=facts)
        except DataError as error:
            raise DataError(f"{file}: {error}") from None


class PrunedCorpus:
    """A corpus without the ``share`` of its documents whose quality is lowest.

    Iterates as often as the corpus does. ``share=0`` is the corpus. The scores must be of these
    documents in this order: ``DataError`` where they part.
    """

    def __init__(self, corpus: Iterable[Document], scores: QualityScores, share: float) -> None:
        self.corpus, self.scores = corpus, scores
        self._kept = scores.best(share)

    def __len__(self) -> int:
        return int(self._kept.sum())

    def __iter__(self) -> Iterator[Document]:
        entries = self._entries()
        for number, document in enumerate(self.corpus, 1):
            entry = next(entries, None)
            if entry is None:
                raise self._parted(f"the corpus has more documents than the {number - 1:,} scored")
            name, keep = entry
            if document.id != name:
                raise self._parted(
                    f"document {number:,} of the corpus is {document.id!r}, and that of the scores "
                    f"is {name!r}"
                )
            if keep:
                yield document
        if (entry := next(entries, None)) is not None:
            raise self._parted(f"document {entry[0]!r} of the scores is not in the corpus")

    def _parted(self, found: str) -> DataError:
        return DataError(
            f"quality scores ({self.scores.by}): {found}; they belong to another corpus: score "
            "this one (sluice fit quality)"
        )

    def _entries(self) -> Iterator[tuple[str, bool]]:
        for start in range(0, len(self.scores), 8192):
            names: Sequence[str] = self.scores.ids.slice(start, 8192).to_pylist()
            yield from zip(names, self._kept[start : start + 8192].tolist(), strict=True)


Labels = Literal["share", "any"]
MOST = 50_000  # documents that a head learns from
CHUNK = 16_384  # vectors scored at a time


def train_quality_head(
    retriever: Retriever,
    qrels: Qrels,
    *,
    labels: Annotated[
        Labels, "A document's target: its share of the queries, or any (relevant to some query)."
    ] = "share",
    loss: Annotated[Loss, "bce or pairwise."] = "bce",
    l2: Annotated[float, "Weight of the L2 penalty."] = 1.0,
    seed: int = 13,
) -> QualityHead:
    """Learn from judgements which documents are relevant to anything, by their vectors.

    ``qrels`` are those of train queries, never of the test. With the labels ``share`` each
    query shares one unit among its relevant documents, and a document's target is the sum of what
    it gets (for ``bce`` divided by the largest). ``any`` is 1 for a document relevant to some
    query, 0 for the others: not for collections where next to all are (NFCorpus), and where what
    is relevant to no train query is so to another. Counting queries instead would prefer what a few
    broad queries with hundreds of relevant documents find.

    At most 50,000 documents are used, half of them relevant if there are enough.
    The vectors are those in the retriever's index.
    """
    if labels not in get_args(Labels):
        near = suggest(str(labels), get_args(Labels))
        raise ConfigError(f"labels: {labels!r}; expected share or any{near}")
    _check_retriever(retriever)
    shares = query_shares(qrels)
    places = retriever.store.rows(list(shares))
    targets = np.zeros(retriever.store.rows_total)
    known = places >= 0
    targets[places[known]] = np.array(list(shares.values()))[known]
    if not known.any():
        raise DataError(
            f"{retriever.path}: none of the {len(shares):,} relevant documents of the qrels is in "
            "it; do they belong to this corpus?"
        )
    rows = _chosen(_rows(retriever), targets, seed)
    wanted = targets[rows]
    if labels == "any":
        wanted = (wanted > 0).astype(np.float64)
    elif wanted.any():
        wanted = wanted / wanted.max()
    facts = {
        "fingerprint": retriever.head.encoder_fingerprint,
        "labels": labels,
        "documents": len(rows),
        "relevant": int((targets[rows] > 0).sum()),
    }
    vectors = _vectors(retriever, rows)
    return fit_quality_head(vectors, wanted, loss=loss, l2=l2, seed=seed, facts=facts)


def query_shares(qrels: Qrels) -> dict[str, float]:
    """Return what each relevant document gets when every query shares one unit among its own."""
    shares: dict[str, float] = defaultdict(float)
    for grades in qrels.values():
        relevant = [doc for doc, grade in grades.items() if grade > 0]
        for doc in relevant:
            shares[doc] += 1 / len(relevant)
    return dict(shares)


def score_retriever(retriever: Retriever, head: QualityHead) -> QualityScores:
    """Score a retriever's documents from the vectors in its index; nothing is encoded.

    In the order of its documents, which is that of the corpus it was built of.
    """
    _check_retriever(retriever)
    known = head.facts.get("fingerprint")
    if known not in (None, retriever.head.encoder_fingerprint):
        raise ConfigError(
            f"{retriever.path}: the head was fitted on vectors of the encoder {known}, and these "
            f"are of {retriever.head.encoder_fingerprint}; fit a head for them"
        )
    ids: list[str] = []
    found: list[NDArray[np.float32]] = []
    for rows in _parted(_rows(retriever)):
        ids += retriever.store.ids(rows)
        found.append(head.quality(_vectors(retriever, rows)))
    scores = np.concatenate(found) if found else np.zeros(0, np.float32)
    return QualityScores(ids, scores, by="head", facts=head.facts)


def _check_retriever(retriever: Retriever) -> None:
    if retriever.head.passages is not None:
        raise ConfigError(
            f"{retriever.path}: its vectors are of passages, and quality is scored by document; "
            "use a retriever without passages"
        )


def _rows(retriever: Retriever) -> NDArray[np.int64]:
    """Return the rows of the documents that are not deleted."""
    store = retriever.store
    return np.setdiff1d(np.arange(store.rows_total), store.deleted, assume_unique=True)


def _chosen(rows: NDArray[np.int64], targets: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Return at most ``MOST`` rows, relevant ones first, in ascending order."""
    if len(rows) <= MOST:
        return rows
    draw = np.random.default_rng(seed)
    relevant, others = (rows[targets[rows] > 0], rows[targets[rows] <= 0])
    first = draw.permutation(relevant)[: max(MOST // 2, MOST - len(others))]
    return np.sort(np.append(first, draw.permutation(others)[: MOST - len(first)]))


def _vectors(retriever: Retriever, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    vectors = retriever.index.documents(rows)
    if not isinstance(vectors, np.ndarray):
        kind = "of tokens" if isinstance(vectors, TokenVectors) else "sparse"
        raise ConfigError(
            f"{retriever.path}: its vectors are {kind}, and a quality head reads dense ones; use a "
            "retriever with a dense encoder"
        )
    return vectors


def _parted(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
