"""Checks that a training run's loss fits its encoder, its teacher and its negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.build import types_listed
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.config.components import Allow, make_loss, towers_in, trained_kind
from sluice.retrieval.config.other_names import losses_for
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.training_data.files.corpus_examples import check_texts_alone
from sluice.retrieval.training_data.teachers.batch_teacher import check_batch_teacher
from sluice.training.losses.base import WRITERS

if TYPE_CHECKING:
    from sluice.training.losses.base import LossBase


def check_loss(section: TrainingSection, prefix: str, allow: Allow) -> LossBase:
    """Return the loss; check that it fits the encoder, and has something to beat a positive."""
    loss = make_loss(section.loss, where=f"{prefix}loss", allow=allow)
    kind, name = trained_kind(section.encoder), section.loss["type"]
    own = section.encoder.get("type")
    _check_kind(loss, kind, str(kind if own == "towers" else own), name, prefix)
    _check_taught(section, loss, prefix)
    _check_layers(section, loss, prefix)
    if (section.negatives or {}).get("type") == "live":
        if section.sparsity is not None:
            raise ConfigError(f"{prefix}sparsity: live candidates are frozen vectors; leave it out")
    elif loss.ranks == "columns":
        raise ConfigError(
            f"{prefix}loss: {name} counts places in a retrieved list; give negatives: {{type: "
            "live}, or ranks: scores"
        )
    named = listed((section.negatives or {}).get("retriever"))
    if kind in ("cross_encoder", "listwise") and SELF in named:
        raise ConfigError(
            f"{prefix}negatives.retriever: self: a {kind} cannot retrieve; name a retriever"
        )
    if check_texts_alone(section, loss, prefix):
        return loss
    if section.negatives is not None or section.examples is not None:  # files are read later
        return loss
    if loss.teacher_vectors:  # which every text has
        return loss
    if kind == "cross_encoder":
        alone = "a cross_encoder learns from each query's own documents"
    elif loss.negatives == "own":
        alone = f"{name} compares a positive with the query's own documents only"
    elif section.trainer.get("per_device_train_batch_size") == 1:
        alone = "a batch of 1 has no other documents"
    else:
        return loss
    raise ConfigError(
        f"{prefix}negatives: missing: {alone}, so nothing would be learnt without negatives"
    )


def _check_kind(loss: LossBase, kind: str | None, own: str, name: str, prefix: str) -> None:
    """Check that the loss trains this type of encoder."""
    encoders = loss.encoders
    if encoders is None and kind in WRITERS:  # which have no vectors to score
        encoders = ("encoders of vectors",)
    if encoders is None and kind == "three_heads":  # one head, and the others share its network
        encoders = ("dense", "splade", "tokens")
    if encoders is None or kind not in (*ENCODERS, *RERANKERS):
        return
    if kind not in encoders and own not in encoders:
        called = f"{own} encoder" if own == kind else f"{own} encoder, trained as {kind},"
        raise ConfigError(
            f"{prefix}loss: {name} trains {', '.join(encoders)}; a {called} takes "
            f"{types_listed(losses_for(kind, own))}"
        )


def _check_layers(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that a loss over the vectors of layers gets one of each."""
    if loss.layers is None:
        return
    for place, encoder in {"": section.encoder, **towers_in(section.encoder)}.items():
        if encoder.get("top_layers", 1) != 1:
            where = ".".join(filter(None, [f"{prefix}encoder", place, "top_layers"]))
            raise ConfigError(
                f"{where}: {encoder['top_layers']} layers make one vector, and "
                f"{section.loss['type']} learns from a vector of each; leave it out"
            )


def _check_taught(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that the loss has the teacher it learns from."""
    name = section.loss["type"]
    if loss.needs_teacher and section.teacher is None and section.examples is None:
        raise ConfigError(
            f"{prefix}teacher: missing: {name} learns from a teacher's scores; name a reranker or "
            "a file that `sluice teach distil` wrote"
        )
    if loss.teacher_matrix or loss.teacher_vectors:
        if section.teacher is None:
            raise ConfigError(
                f"{prefix}teacher: missing: {name} asks a teacher batch by batch; name an encoder "
                "(dense, splade, tokens, bm25)"
            )
        check_batch_teacher(section.teacher, f"{prefix}teacher", vectors=loss.teacher_vectors)
