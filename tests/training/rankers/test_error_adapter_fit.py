"""Stage 2 of RRRA: what an adapter learns from a bi-encoder's decisions."""

from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.negatives.audit import auc
from sluice.training.rankers.error_adapter import (
    Decisions,
    adapter_loss,
    fit_error_adapter,
)

OPTIONS: dict[str, Any] = {"hidden": 16, "steps": 60, "batch": 128, "learning_rate": 1e-2}


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def world() -> tuple[np.ndarray, np.ndarray, Decisions]:
    """Documents are relevant by their first half alone; the cosine looks at the second too."""
    draw = np.random.default_rng(0)
    queries, documents = (unit(draw.normal(size=(n, 8))) for n in (30, 60))
    q, d = np.repeat(np.arange(30), 60), np.tile(np.arange(60), 30)
    relevant = (queries[q, :4] * documents[d, :4]).sum(1) > 0.25
    return queries, documents, Decisions(q, d, relevant, (queries[q] * documents[d]).sum(1) > 0.3)


def test_an_adapter_learns_what_the_cosine_misses() -> None:
    queries, documents, decisions = world()
    q, d, relevant, _ = decisions
    own = auc((queries[q] * documents[d]).sum(1), relevant)
    fitted = fit_error_adapter(queries, documents, decisions, **OPTIONS)
    both, alone = (auc(fitted.scores(queries[q], documents[d], w), relevant) for w in (1.0, None))
    assert alone > both > own + 0.02
    again = fit_error_adapter(queries, documents, decisions, **OPTIONS)
    for ours, theirs in zip(fitted.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert set(decisions.kinds.tolist()) == {0, 1, 2, 3}


def test_the_loss_is_cross_entropy_and_a_pull_to_the_segment() -> None:
    torch.manual_seed(1)
    adapter = ErrorAdapter(3, 4).double()
    torch.nn.init.normal_(adapter.outer.weight)
    q, c = (torch.nn.functional.normalize(torch.randn(5, 3).double(), dim=1) for _ in range(2))
    goal = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    a = adapter(q, c).detach()
    terms, pulls = [], []
    for row in range(5):
        share = float(((a[row] - c[row]) @ (q[row] - c[row])) / ((q[row] - c[row]) ** 2).sum())
        share = min(max(share, 0.0), 1.0)
        pulls.append(((a[row] - share * q[row] - (1 - share) * c[row]) ** 2).sum())
        cosine = q[row] @ a[row] / a[row].norm()
        p = torch.sigmoid(adapter.scale * cosine + adapter.shift)
        terms.append(-(goal[row] * p.log() + (1 - goal[row]) * (1 - p).log()))
    expected = torch.stack(terms).mean() + 0.3 * torch.stack(pulls).mean()
    found = adapter_loss(adapter, q, c, goal, pull=0.3)
    assert found.item() == pytest.approx(expected.item(), abs=1e-10)


def test_nothing_to_learn_from() -> None:
    queries, documents, decisions = world()
    for value, said in ((False, "not relevant"), (True, "relevant")):
        alike = decisions._replace(relevant=np.full(len(decisions.relevant), value))
        with pytest.raises(DataError, match=f"pairs are {said}; there is nothing"):
            fit_error_adapter(queries, documents, alike)
    with pytest.raises(ConfigError, match="steps"):
        fit_error_adapter(queries, documents, decisions, steps=0)
