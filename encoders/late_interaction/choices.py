"""What a folder's settings and a caller's arguments together make of a token encoder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.encoder import Side
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.late_interaction.layout import TokenLayout, know_markers, usual_markers
from sluice.encoders.model_files.loading import lengths_of as model_lengths
from sluice.encoders.transformer.added_tokens import make_tokens
from sluice.encoders.transformer.projection import (
    as_projection,
    begins_as_inputs,
    cut_vectors,
    draw_projection,
)
from sluice.encoders.transformer.vector_layers import VectorLayer, linear_projection, read_layers

log = logging.getLogger("sluice")
DIM = 128  # of a new projection
SEED = 13  # of what is drawn, where none is given


class Given(NamedTuple):
    """What a caller says of the parts that a model may lack; None is as the folder says."""

    projection: int | bool | dict[str, Any] | None
    dim: int | None
    query_marker: str | None
    document_marker: str | None
    seed: int | None


def new_parts(
    layout: TokenLayout, folder: Path, model: Any, tokenizer: Any, given: Given
) -> tuple[VectorLayer | None, dict[str, Any]]:
    """Return the projection and both markers, and make tokens of the markers.

    A projection drawn at random is warned of, and a ``seed`` that draws nothing is refused.
    """
    seed = SEED if given.seed is None else whole_number(given.seed, "seed", 0)
    known = layout.trained or layout.projections or layout.linear is not None
    drawn = not known if given.projection is None else given.projection is not False
    words = len(tokenizer)
    head = head_of(layout, int(model.config.hidden_size), given.projection, given.dim, seed)
    markers = markers_of(layout, model, tokenizer, given.query_marker, given.document_marker, seed)
    if drawn and head is not None and not begins_as_inputs(head):
        log.warning(
            "%s: a new projection to %s dimensions was drawn at random; train it before it is "
            "searched with",
            folder,
            head.outputs,
        )
    if given.seed is not None and not drawn and len(tokenizer) == words:
        raise ConfigError(
            f"seed: {given.seed}: draws a new projection or marker, and {folder} gets none; leave "
            "seed out, or give projection: 128, to be trained"
        )
    return head, markers


def head_of(
    layout: TokenLayout, hidden: int, spec: int | bool | dict[str, Any] | None, dim: int | None,
    seed: int,
) -> VectorLayer | None:  # fmt: skip
    """Return the projection over states of ``hidden`` dimensions: new, the folder's, or none."""
    if spec is True:
        raise ConfigError("projection: true; expected a number of dimensions, or false for none")
    if spec is not None:
        if dim is not None:
            raise ConfigError(
                "dim: beside projection, which has its own number of dimensions; remove one of them"
            )
        return draw_projection(hidden, spec, seed, bias=False) if spec is not False else None
    if dim is not None:
        whole_number(dim, "dim", 1)
    if layout.linear is not None:
        head: VectorLayer | None = linear_projection(layout.linear, hidden)
    elif layout.projections or layout.trained:
        head = read_layers(layout.projections, hidden)
    else:
        return draw_projection(hidden, DIM if dim is None else dim, seed, bias=False)
    cut = cut_vectors(head, hidden, dim, {})
    return cut.projection if cut.shortened is None else as_projection(hidden, cut.shortened)


def markers_of(
    layout: TokenLayout, model: Any, tokenizer: Any, query: str | None, document: str | None,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the markers of both sides, and make tokens of them."""
    markers = layout.markers if layout.trained else usual_markers(tokenizer)
    new: dict[Side, str] = {}
    sides: tuple[tuple[Side, str | None], ...] = (("query", query), ("document", document))
    for side, marker in sides:
        if marker is not None:
            new[side] = marker
    if layout.trained:
        know_markers(tokenizer, markers)
    both = {**markers, **new}
    make_tokens(model, tokenizer, (new if layout.trained else both).values(), seed)
    return {f"{side}_marker": both.get(side, "") for side, _ in sides}


def lengths_of(
    layout: TokenLayout, model: Any, tokenizer: Any, query: int | None, document: int | None
) -> dict[str, int]:
    """Return the length of each side in tokens: as given, as noted, or as long as texts may be."""
    usual, limit = model_lengths(tokenizer, model.config, layout.max_length)
    lengths = {}
    for name, given, noted in (
        ("query_length", query, layout.query_length),
        ("document_length", document, layout.document_length),
    ):
        length = min(noted or usual, limit) if given is None else given
        lengths[name] = whole_number(length, name, 4, limit)
    return lengths


def expansion_of(layout: TokenLayout, length: int, given: bool | int | None) -> int:
    """Return the number of tokens that queries are filled up to."""
    if given is None:
        noted = length if layout.expand_to is None else layout.expand_to
        # A length given anew goes for both, where queries were of one length.
        return length if noted and noted == layout.query_length else min(noted, length)
    if isinstance(given, bool):
        return length if given else 0
    return whole_number(given, "expand_queries", 1)


def check_words(tokenizer: Any, words: Sequence[str]) -> None:
    """Log a warning that names the words without a token of their own."""
    known = tokenizer.get_vocab()
    unknown = [word for word in words if word not in known]
    if unknown:
        log.warning(
            "skip_words: %s: not one token each in the model's vocabulary; they keep their vectors",
            " ".join(unknown),
        )
