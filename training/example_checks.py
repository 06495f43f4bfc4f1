"""Checks the examples of a training run, and the weights and prompts of their sources."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import prompted
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.training.protocol import Example

if TYPE_CHECKING:
    from sluice.training.batches.stream import Examples
    from sluice.training.losses.base import LossBase

log = logging.getLogger("sluice")


def check_examples(loss: LossBase, examples: Sequence[Example]) -> None:
    """Check that examples have what the loss, or that of their source, learns from."""
    from sluice.training.losses.composed.by_source import loss_of

    for source in dict.fromkeys(example.source for example in examples):
        own = [example for example in examples if example.source == source]
        its = loss_of(loss, source)
        _check_teacher(its, own)
        _check_answered(its, own)
        _check_negative_queries(its, own)


def check_streamed(examples: Examples, loss: LossBase, given: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for streamed examples with what needs all of them in memory."""
    from sluice.training.batches.stream import Mixture
    from sluice.training.losses.base import type_name

    at_once = {f"loss: {type_name(loss)}": "all_examples" in loss.wants or None, **given}
    for name, value in at_once.items():
        if value is not None and isinstance(examples, Mixture):
            raise ConfigError(
                f"{name}: needs all examples in memory, and these are streamed; leave it out, or "
                "give a list (examples.buffer: left out)"
            )


def check_sources(
    known: Sequence[str],
    encoder: Any,
    weights: Mapping[str, float] | None,
    prompts: Mapping[str, Mapping[str, str]] | None,
    temperature: float | None,
) -> None:
    """Raise ``ConfigError`` for weights or prompts of sources that are not there or are wrong."""
    for name in {**(weights or {}), **(prompts or {})}:
        if name not in known:
            raise ConfigError(
                f"weights and prompts: {name!r} is not a source of the examples, which are "
                f"{', '.join(map(repr, known))}{suggest(name, known)}"
            )
    for name, weight in (weights or {}).items():
        if not 0 < weight < math.inf:
            raise ConfigError(f"weights: {weight} for {name!r}, expected a number above 0")
    for name, own in (prompts or {}).items():
        if not own.keys() <= {"query", "document"}:
            raise ConfigError(f"prompts: {name!r} has {', '.join(own)}, expected query, document")
        prompted(encoder, own)
    if temperature is not None and not 0 < temperature < math.inf:
        raise ConfigError(f"sampling_temperature: {temperature}, expected a number above 0")
    if temperature is not None and (len(known) == 1 or weights is not None):
        raise ConfigError(
            "sampling_temperature: weighs several datasets, and the examples are of one or have "
            "weights; leave it out"
        )


def _check_teacher(loss: LossBase, examples: Sequence[Example]) -> None:
    if not loss.needs_teacher:
        return
    unscored = [e.query.id for e in examples if not any(map(math.isfinite, e.scores))]
    if len(unscored) == len(examples):
        raise DataError(
            "loss: learns from a teacher's scores, but no training example has any; make them "
            "with `sluice teach distil` and set teacher: to that file"
        )
    if unscored:
        log.warning(
            "teacher: %s of %s training examples have no score (such as query %s) and are "
            "ignored", f"{len(unscored):,}", f"{len(examples):,}", unscored[0],
        )  # fmt: skip


def _check_answered(loss: LossBase, examples: Sequence[Example]) -> None:
    if "answered" not in loss.wants:
        return
    negatives = sum(label <= 0 for example in examples for label in example.labels)
    answering = sum(
        bool(text) and label <= 0
        for example in examples if example.answered
        for text, label in zip(example.answered, example.labels, strict=True)
    )  # fmt: skip
    if answering:
        log.info(
            "loss: %s of %s negatives answer another query", f"{answering:,}", f"{negatives:,}"
        )
        return
    log.warning(
        "loss: clp draws negatives to queries that they answer, and none of %s negatives is known "
        "to answer one, so its penalty changes nothing; name a file of queries for documents "
        "(answered: FILE, as `sluice teach generate` writes it), or train without clp",
        f"{negatives:,}",
    )


def _check_negative_queries(loss: LossBase, examples: Sequence[Example]) -> None:
    from sluice.training.losses.base import type_name

    asked = sum(bool(example.negative_queries) for example in examples)
    if ("negative_queries" in loss.wants) == bool(asked):
        if asked:
            log.info(
                "loss: %s of %s examples have queries that their positives do not answer",
                f"{asked:,}", f"{len(examples):,}",
            )  # fmt: skip
        return
    if asked:
        raise ConfigError(
            f"loss: {type_name(loss)} reads no negative_queries, which {asked:,} of "
            f"{len(examples):,} training examples have; train with misfits around it (loss: "
            f"{{type: misfits, loss: {{type: {type_name(loss)}}}}}), or leave them out (examples: "
            "{negative_queries: 0, ...})"
        )
    raise DataError(
        f"loss: misfits learns from queries that a positive does not answer, and none of "
        f"{len(examples):,} training examples has any; give rows negative_queries (neg_queries are "
        "those that negatives answer), as `sluice teach describe` writes them"
    )
