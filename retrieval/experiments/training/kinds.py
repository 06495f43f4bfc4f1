"""Training runs of two kinds of their own: identifiers (DSI), live negatives (ADORE)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.generative.identifiers import FILE
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import ENCODERS
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.config.components import DENSE_ENCODERS, make_encoder, make_index
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import document_input
from sluice.training.protocol import BiEncoder

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.experiments.training.parts import Part
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


TOGETHER = 4_096  # documents encoded at a time


def check_identifiers(
    section: TrainingSection, prefix: str, allow: Allow, *, with_dataset: bool
) -> None:
    """Raise ``ConfigError`` where identifiers could not be assigned."""
    if "identifiers" not in learning_of(str(section.encoder.get("type"))).learns:
        return
    if not with_dataset:
        raise ConfigError(
            f"{prefix}dataset: missing: a dsi encoder learns the identifiers of a corpus's "
            "documents; name the dataset that has them"
        )
    spec = section.encoder
    _check_branches(spec, f"{prefix}encoder")
    by = spec.get("ids_by")
    if by is None:
        folder = local_folder(str(spec.get("model")))
        if spec.get("ids") == "semantic" and folder is not None and not (folder / FILE).exists():
            raise ConfigError(
                f"{prefix}encoder.ids_by: missing: semantic ids are made of documents' vectors; "
                "name an encoder (ids_by: {type: dense, model: ...})"
            )
        return
    known = {name: ENCODERS[name] for name in DENSE_ENCODERS}
    if not isinstance(by, dict):
        raise ConfigError(
            f"{prefix}encoder.ids_by: {by!r:.60}; expected an encoder of single vectors, such as "
            "{type: dense, model: ...}"
        )
    check(by, known, where=f"{prefix}encoder.ids_by", allow=allow)
    if spec.get("ids") != "semantic":
        raise ConfigError(
            f"{prefix}encoder.ids_by: is for ids: semantic, and these are "
            f"{spec.get('ids', 'string')}; leave it out"
        )


def _check_branches(spec: Mapping[str, Any], where: str) -> None:
    branches = spec.get("branches")
    if branches is None:
        return
    whole_number(branches, f"{where}.branches", 2)
    if spec.get("ids") not in (None, "semantic"):  # None: what the folder says
        raise ConfigError(
            f"{where}.branches: is for ids: semantic, and these are {spec['ids']}; leave it out"
        )


def assign_identifiers(
    encoder: Any, parts: Sequence[Part], seed: int, where: str, model: Callable[[str], str]
) -> None:
    """Give the documents of the corpus identifiers, of an encoder that learns them.

    ``where`` is the key of the section's encoder, ``model`` maps names of models to folders.
    """
    identifiers = hooks_of(encoder).identifiers
    if identifiers is None:
        return
    place = where.removesuffix("encoder")
    if len(parts) > 1:
        raise ConfigError(
            f"{place}dataset: {len(parts)} datasets, and identifiers are of one corpus; train a "
            "dsi encoder on one"
        )
    data = parts[0].data
    if data.left_out:
        raise ConfigError(
            f"{place}evaluate: holds out documents, whose identifiers would not be learnt; take a "
            "dataset with judged dev queries, or leave evaluate out"
        )
    documents = list(data.train.corpus)
    vectors = None
    if identifiers.ids_by is not None:
        by = make_encoder(identifiers.ids_by, where=f"{where}.ids_by", model=model)
        inputs = [document_input(by, each) for each in documents]
        blocks = range(0, len(inputs), TOGETHER)
        encoded = [by.encode_documents(inputs[at : at + TOGETHER]) for at in blocks]
        vectors = np.concatenate([np.asarray(each, np.float32) for each in encoded])
    try:
        named = [document_input(encoder, each) for each in documents]
        identifiers.assign_ids(named, vectors, seed)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None
    log.info("%s: %s assigned identifiers", where, plural(len(documents), "document"))
