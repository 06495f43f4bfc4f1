"""Matrices and straight-line helpers for the tests of losses over scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

NAN = float("nan")


def leaf(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def drawn(seed: int, rows: int = 4, width: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, grades 0 to 3, mask and a teacher with gaps; the last row is masked but for one."""
    torch.manual_seed(seed)
    scores = torch.randn(rows, width, dtype=torch.float64).mul(2).requires_grad_()
    labels = torch.randint(0, 4, (rows, width)).double()
    mask = torch.rand(rows, width) < 0.8
    mask[-1] = False
    mask[-1, 1] = True
    teacher = torch.randn(rows, width, dtype=torch.float64) * 3
    return scores, labels, mask, teacher.masked_fill(torch.rand(rows, width) < 0.2, NAN)


def cells(mask: Tensor, teacher: Tensor | None = None) -> Iterator[tuple[int, list[int]]]:
    """Each row with its columns that take part."""
    for row in range(len(mask)):
        columns = [
            column
            for column in range(mask.shape[1])
            if mask[row, column] and (teacher is None or not teacher[row, column].isnan())
        ]
        yield row, columns


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]


def same(ours: Tensor, straight: Tensor, scores: Tensor) -> None:
    """Compare value and gradient."""
    assert abs((ours - straight).item()) < 1e-10
    assert (gradient(ours, scores) - gradient(straight, scores)).abs().max() < 1e-10


def mean_of(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows).mean()


def theirs(make: Callable[[Any], Any], scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """What a sentence-transformers cross-encoder loss gives for scores, groups cut by the mask."""
    places = [[c for c in range(scores.shape[1]) if mask[r, c]] for r in range(len(scores))]

    class Given(torch.nn.Module):
        num_labels = 1
        device = torch.device("cpu")

        def preprocess(self, pairs: Any, prompt: Any = None, task: Any = None) -> dict[str, Tensor]:
            return {"place": torch.tensor([int(document) for _, document in pairs])}

        def forward(self, tokens: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"scores": scores.flatten()[tokens["place"]]}

    documents = [[str(r * scores.shape[1] + c) for c in row] for r, row in enumerate(places)]
    grades = [labels[r, row] for r, row in enumerate(places)]
    return make(Given())([["q"] * len(documents), documents], grades)
