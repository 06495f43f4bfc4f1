"""Random batches of vectors in float64, as the collator would lay them out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.build import build
from sluice.training.batches.vector_batch import VectorBatch, matrix_targets
from sluice.training.losses import LOSSES
from sluice.training.protocol import Example, Text

INFO = {"type": "info_nce", "temperature": 0.1}


class Sixteen:
    """Stands for an encoder of 16 dimensions."""

    dim = 16

    def __init__(self) -> None:
        self.module = nn.Linear(1, 1)


def made(kind: str, **options: Any) -> Any:
    return build({"type": kind, **options}, LOSSES, where="loss")


def examples(count: int, negatives: int = 0, positives: int = 1) -> list[Example]:
    return [
        Example(
            Text(f"q{i}", f"query {i}"),
            (
                *(Text(f"d{i}{j}", f"document {i} {j}") for j in range(positives)),
                *(Text(f"n{i}{j}", f"negative {i} {j}") for j in range(negatives)),
            ),
            labels=(1.0,) * positives + (0.0,) * negatives,
        )
        for i in range(count)
    ]


def random_batch(
    made: list[Example],
    dim: int = 8,
    *,
    cosine: bool = True,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> VectorBatch:
    torch.manual_seed(seed)
    targets = matrix_targets(made, **(options or {}))
    owners = torch.tensor([row for row, e in enumerate(made) for _ in e.documents])
    return VectorBatch(
        torch.randn(len(made), dim, dtype=torch.float64, requires_grad=True),
        torch.randn(len(owners), dim, dtype=torch.float64, requires_grad=True),
        labels=targets.labels,
        mask=targets.mask,
        positives=targets.positives,
        owners=owners,
        cosine=cosine,
        ids={
            "query": tuple(e.query.id for e in made),
            "document": tuple(d.id for e in made for d in e.documents),
        },
        **changes,
    )


def gradients(value: Tensor, *leaves: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(leaf) if one is None else one
        for one, leaf in zip(found, leaves, strict=True)
    ]


def agree(ours: Tensor, theirs: Tensor, *leaves: Tensor, within: float = 1e-10) -> None:
    assert abs((ours - theirs).item()) < within
    for one, other in zip(gradients(ours, *leaves), gradients(theirs, *leaves), strict=True):
        assert (one - other).abs().max() < within
