"""Checks training runs of identifiers, and assigns them: what a DSI encoder learns to write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.generative.identifiers import FILE
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import ENCODERS
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.config.components import DENSE_ENCODERS, make_encoder
from sluice.retrieval.documents.document import document_input

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.experiments.training.parts import Part

log = logging.getLogger("sluice")

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
