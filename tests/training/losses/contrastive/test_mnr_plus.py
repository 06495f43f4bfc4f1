"""MNR+ against plain loops in float64, and what it becomes with sharp targets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from vector_batches import examples, made, random_batch


def unit(vectors: Any) -> Any:
    values = vectors.detach().double().numpy()
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def softmax(values: Any) -> Any:
    raised = np.exp(values - values.max())
    return raised / raised.sum()


@pytest.mark.parametrize("weights", [None, [1.0, 2.5, 0.5, 0.0]])
def test_the_formula(weights: Any) -> None:
    batch = random_batch(examples(4, negatives=0))
    share = [1.0] * 4 if weights is None else weights
    batch = replace(batch, weights=None if weights is None else torch.tensor(weights))
    q, p = unit(batch.queries), unit(batch.documents)[batch.positives]
    total = 0.0
    for left, right in ((q, p), (p, q)):
        for i in range(4):
            goals = softmax(np.array([(q[i] @ q[j] + p[i] @ p[j]) / 2 / 0.2 for j in range(4)]))
            logs = np.log(softmax(np.array([left[i] @ right[j] / 0.1 for j in range(4)])))
            total -= share[i] * float(goals @ logs) / sum(share) / 2
    loss = made("mnr_plus", temperature=0.1, target_temperature=0.2)
    value = loss.over(batch)
    assert value.item() == pytest.approx(total, rel=1e-6)
    sharp = made("mnr_plus", temperature=0.1, target_temperature=1e-4).over(batch)
    plain = made("info_nce", temperature=0.1, symmetric=True, similarity="cosine").over(
        replace(batch, cosine=True)
    )
    assert sharp.item() == pytest.approx(plain.item(), rel=1e-5)  # the pair itself alone
