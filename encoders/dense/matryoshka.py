"""Vectors cut to their first dimensions (Matryoshka), in memory and in a model folder."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sluice.encoders.dense.projection import Projection
from sluice.encoders.foundation.errors import ConfigError, ModelError


class Cut(NamedTuple):
    """A projection, if any is left, and the number of dimensions kept where none does it."""

    projection: Projection | None
    shortened: int | None


def cut_vectors(
    projection: Projection | None, hidden: int, dim: int | None, noted: dict[str, Any]
) -> Cut:
    """Return how vectors of a folder are cut to ``dim`` (None: as its ``sluice.json`` noted).

    A projection loses rows, whose activation is of each dimension alone. The one that
    ``as_projection`` wrote is known again. Raises ``ConfigError`` for more than there are.
    """
    shortened = noted.get("dim")
    if shortened is not None and (type(shortened) is not int or shortened < 1):
        raise ModelError(f"sluice.json: dim is {shortened!r}, expected a number of dimensions")
    if shortened is not None and projection is not None and _only_cuts(projection, shortened):
        projection = None
    else:
        shortened = None
    width = hidden if projection is None else projection.linear.out_features
    width = shortened or width
    if dim is None:
        return Cut(projection, shortened)
    if isinstance(dim, bool) or not 1 <= dim <= width:
        raise ConfigError(f"dim: {dim!r}; the model's vectors have {width}, expected 1 to {width}")
    if projection is None:
        return Cut(None, dim if dim < hidden else None)
    return Cut(_first_rows(projection, dim), None)


def as_projection(hidden: int, dim: int) -> Projection:
    """Return the projection to the first ``dim`` dimensions, for tools that know no shortening."""
    made = Projection(hidden, dim, bias=False)
    with torch.no_grad():
        made.linear.weight.copy_(torch.eye(dim, hidden))
    return made


def _only_cuts(projection: Projection, dim: int) -> bool:
    linear = projection.linear
    if projection.activation_name != "Identity" or "bias" in dict(linear.named_parameters()):
        return False
    return linear.out_features == dim and torch.equal(
        linear.weight.detach().cpu(), torch.eye(dim, linear.in_features)
    )


def _first_rows(projection: Projection, dim: int) -> Projection:
    linear = projection.linear
    made = Projection(
        linear.in_features,
        dim,
        bias=linear.bias is not None,
        activation=projection.activation_name,
    )
    with torch.no_grad():
        made.linear.weight.copy_(linear.weight[:dim])
        if linear.bias is not None:
            made.linear.bias.copy_(linear.bias[:dim])
    return made
