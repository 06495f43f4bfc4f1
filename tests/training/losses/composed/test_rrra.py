"""Stage 3 of RRRA: the joint loss against a formula, and what it begins with and leaves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from vector_batches import INFO, Sixteen, agree, examples, made, random_batch

from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.heads import RRRA


@pytest.mark.parametrize("weighted", [True, False])
def test_rrra_is_the_formula(weighted: bool) -> None:
    weights = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64) if weighted else None
    batch = random_batch(examples(3, 2), 16, weights=weights)
    loss: RRRA = made("rrra", loss=INFO, adapter_weight=0.7, top=2)
    loss.bind(Sixteen(), 3)
    head: Any = loss.head
    torch.nn.init.normal_(head.outer.weight)
    head.double()
    sums: dict[tuple[bool, bool], list[Any]] = {}
    for row in range(3):
        q = batch.queries[row] / batch.queries[row].norm()
        cosines = [(q @ c / c.norm()).item() for c in batch.documents]
        for column in range(9):
            if not batch.mask[row, column]:
                continue
            counted = [cosines[k] for k in range(9) if batch.mask[row, k]]
            found = sum(other > cosines[column] for other in counted) < 2
            a = head(batch.queries[row : row + 1], batch.documents[column : column + 1])[0]
            p = torch.sigmoid(head.scale * (q @ a / a.norm()) + head.shift)
            relevant = bool(batch.labels[row, column] > 0)
            cell = -(p if relevant else 1 - p).log()
            share = 1.0 if weights is None else float(weights[row])
            sums.setdefault((relevant, found), []).append((share * cell, share))
    assert len(sums) >= 3
    means = [sum(c for c, _ in cells) / sum(s for _, s in cells) for cells in sums.values()]
    theirs = InfoNCE(temperature=0.1).over(batch) + 0.7 * sum(means) / len(means)
    agree(loss.over(batch), theirs, batch.queries, batch.documents, *head.parameters())


def test_rrra_begins_with_a_fitted_adapter(tmp_path: Path) -> None:
    adapter = ErrorAdapter(16, 4)
    torch.nn.init.normal_(adapter.inner.weight)
    adapter.save(tmp_path)
    loss: RRRA = made("rrra", adapter=str(tmp_path))
    with pytest.raises(ConfigError, match="no adapter yet"):
        loss.parameters()
    loss.bind(Sixteen(), 3)
    assert loss.head is not None
    assert torch.equal(loss.head.inner.weight, adapter.inner.weight)
    other: RRRA = made("rrra")
    other.bind(Sixteen(), 4)
    assert other.head is not None
    assert other.head.hidden == 16
    ErrorAdapter(9, 4).save(tmp_path)
    with pytest.raises(ConfigError, match="vectors of 9 dimensions, and the encoder's have 16"):
        loss.bind(Sixteen(), 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"adapter": "nowhere"}, "nowhere has no error_adapter"),
        ({"head_learning_rate": 0.0}, "expected above 0"),
        ({"loss": {"type": "info_nce", "same_side": True}}, "same_side"),
    ],
)
def test_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made("rrra", **options)
