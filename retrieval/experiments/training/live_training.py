"""Live negatives: trains queries against the results of a frozen index (ADORE)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.config.components import make_index
from sluice.retrieval.datasets.dataset import Dataset
from sluice.training.protocol import BiEncoder

if TYPE_CHECKING:
    from sluice.training import Example
    from sluice.training.loop.objective import LiveCandidates

log = logging.getLogger("sluice")

KEYS = ("type", "depth", "append", "index")


def frozen_documents(encoder: Any, *, where: str) -> Any:
    """Return the encoder as two towers, with the document tower frozen."""
    from sluice.encoders.towers import TowerEncoder

    if isinstance(encoder, TowerEncoder):
        if encoder.freeze != "document":
            raise ConfigError(
                f"{where}negatives: live candidates come from a frozen index, so the document "
                "tower must not change: set encoder.freeze: document"
            )
        return encoder
    encodes_apart = isinstance(encoder, BiEncoder)
    if not encodes_apart:
        raise ConfigError(f"{where}negatives: live candidates are for encoders of queries alone")
    log.info("%snegatives: live: the document encoder is frozen, and saved as a tower", where)
    return TowerEncoder(encoder, copy.deepcopy(encoder), freeze="document")


def live_examples(examples: list[Example], train: Dataset) -> list[Example]:
    """Return one example per query; the index supplies its documents.

    Queries without a relevant document in the corpus are left out, with a warning; raises
    ``DataError`` if none is left.
    """
    corpus = {document.id for document in train.corpus}
    first: dict[str, Example] = {}
    for example in examples:
        first.setdefault(example.query.id, example)
    kept = [each for each in first.values() if not _relevant(each, train).keys().isdisjoint(corpus)]
    absent = [query for query, each in first.items() if each not in kept]
    if not kept:
        raise DataError(
            f"{train.name}: live candidates are documents of the corpus, and none of "
            f"{len(first):,} queries (such as {absent[0]!r}) has a relevant one there; name "
            "documents by the corpus' ids, or mine the negatives: negatives: {type: mined, ...}"
        )
    if absent:
        log.warning(
            "%s: left out %s of %s training queries: no relevant document in the corpus (such as "
            "%s)", train.name, f"{len(absent):,}", f"{len(first):,}", absent[0],
        )  # fmt: skip
    return kept


def _relevant(example: Example, train: Dataset) -> dict[str, float]:
    """Return the grades of an example's relevant documents, the dataset's judgements first."""
    judged = train.qrels.get(example.query.id, {}) if train.split is not None else {}
    grades = {doc: float(grade) for doc, grade in judged.items() if grade > 0}
    return grades or dict.fromkeys(sorted(example.relevant), 1.0)


def live_candidates(
    encoder: Any, train: Dataset, examples: list[Example], spec: Mapping[str, Any], *, where: str
) -> LiveCandidates:
    """Encode and index the corpus of a train split once, for the queries of ``examples``.

    ``spec`` is ``{type: live, depth: 200, append: none_found, index: {type: flat}}``. The
    documents' vectors are held in memory beside the index, so that scores are exact with any index.
    """
    import scipy.sparse as sp

    from sluice.indexing import FlatIndex, InvertedIndex
    from sluice.training.loop.objective import LiveCandidates

    ids, texts = [], []
    for document in train.corpus:
        ids.append(document.id)
        texts.append(document.full_text)
    vectors = encoder.encode_documents(texts)
    index = make_index(spec.get("index"), where=f"{where}negatives.index")
    if index is None:
        index = InvertedIndex() if sp.issparse(vectors) else FlatIndex()
    index.train(vectors)
    index.add(vectors)
    row_of = {name: row for row, name in enumerate(ids)}
    relevant = {
        each.query.id: {
            row_of[doc]: grade for doc, grade in _relevant(each, train).items() if doc in row_of
        }
        for each in examples
    }

    def gather(rows: np.ndarray) -> np.ndarray:
        chosen = vectors[rows]
        return np.asarray(chosen.toarray() if isinstance(chosen, sp.csr_array) else chosen)

    return LiveCandidates(
        index,
        gather,
        relevant,
        depth=spec.get("depth", 200),
        append=spec.get("append", "none_found"),
        sparse=sp.issparse(vectors),
    )


def check_live(spec: Mapping[str, Any], where: str) -> None:
    """Check the keys of a section ``negatives`` of type live."""
    from sluice.indexing.index import Recipe
    from sluice.training.loop.objective import check_append

    for key in spec:
        if key not in KEYS:
            raise ConfigError(
                f"{where}.{key}: live negatives take {', '.join(KEYS)}{suggest(str(key), KEYS)}"
            )
    whole_number(spec.get("depth", 200), f"{where}.depth", 2)
    check_append(spec.get("append", "none_found"), f"{where}.append")
    if isinstance(make_index(spec.get("index"), where=f"{where}.index"), Recipe):
        raise ConfigError(f"{where}.index: auto chooses for searching; name an index type")
