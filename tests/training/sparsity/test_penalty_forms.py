"""FLOPS by rank, and penalties by idf: against plain float64 formulas, and in training."""

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training import Example, fit
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Text
from sluice.training.sparsity.controller import Sparsity
from sluice.training.sparsity.regulariser import (
    Regulariser,
    document_idf,
    flops,
    flops_by_rank,
    term_costs,
)


def plain_by_rank(rows: np.ndarray, groups: list[int]) -> float:
    """Group by group, in loops: the mean of each rank's documents, squared and summed."""
    total, starts = 0.0, np.cumsum([0, *groups])
    for rank in range(max(groups)):
        members = [rows[s + rank] for s, size in zip(starts, groups, strict=False) if rank < size]
        mean = sum(np.abs(row) for row in members) / len(members)
        total += float((mean**2).sum()) * len(members) / len(rows)
    return total


@pytest.mark.parametrize("groups", [[2, 2, 2], [3, 1, 2], [1], [1, 1], [5]])
def test_flops_by_rank(groups: list[int]) -> None:
    rng = np.random.default_rng(sum(groups))
    rows = rng.random((sum(groups), 7)) * (rng.random((sum(groups), 7)) < 0.5)
    vectors = torch.tensor(rows, requires_grad=True)
    owners = torch.tensor(np.repeat(np.arange(len(groups)), groups))
    value = flops_by_rank(vectors, owners)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(plain_by_rank(rows, groups), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: flops_by_rank(x, owners), vectors.detach().abs()
                                    .add(0.1).requires_grad_())  # fmt: skip
    if set(groups) == {1}:
        assert value.item() == pytest.approx(flops(vectors).item())


def test_a_term_of_positives_alone_is_dearer_by_rank() -> None:
    rows = torch.tensor([[1.0, 1.0], [0.0, 1.0]] * 4)  # the first term: in positives alone
    owners = torch.arange(8) // 2
    assert flops(rows).item() == pytest.approx(0.25 + 1)
    assert flops_by_rank(rows, owners).item() == pytest.approx(0.5 + 1)


def test_term_costs() -> None:
    idf = torch.tensor([0.0, 0.4, 2.0, 8.0], dtype=torch.float64)
    for power in (0.5, 1.0, 2.0):
        expected = [10**power, 10**power, 4**power, 1.0]  # of idf 0.8 and below alike
        assert term_costs(idf, power).tolist() == pytest.approx(expected, rel=1e-12)
    assert term_costs(torch.full((3,), 2.0), 1.0).tolist() == [1.0] * 3  # ties


@pytest.mark.parametrize("kind", ["flops", "l1"])
def test_penalty_by_idf(kind: str) -> None:
    torch.manual_seed(1)
    idf = torch.rand(9) * 5 + 1
    rows = torch.rand(6, 9) * (torch.rand(6, 9) < 0.6)
    queries = torch.rand(2, 9)
    penalty = {"type": kind, "weight": 3.0, "idf_power": 1.5}
    config = {"document": penalty, "query": penalty, "ramp": 0}
    values = Regulariser(Sparsity.from_config(config), lambda size: idf[:size])(queries, rows)
    costs = (idf.numpy().astype(np.float64).max() / idf.numpy().astype(np.float64)) ** 1.5
    for side, vectors in (("query", queries), ("document", rows)):
        dear = np.abs(vectors.numpy().astype(np.float64)) * costs
        plain = (dear.mean(0) ** 2).sum() if kind == "flops" else dear.sum(1).mean()
        assert values[side].item() == pytest.approx(3 * plain, rel=1e-5)


def test_idf_is_counted_once() -> None:
    asked: list[int] = []

    def count(size: int) -> torch.Tensor:
        asked.append(size)
        return torch.ones(size)

    config = {"document": {"type": "flops", "weight": 1.0, "idf_power": 1.0}}
    regulariser = Regulariser(Sparsity.from_config(config), count)
    for _ in range(3):
        regulariser(torch.eye(2), torch.eye(2))
    assert asked == [2]


def test_by_rank_goes_with_threshold_and_idf() -> None:
    penalty = {"type": "flops", "weight": 1.0, "by_rank": True, "threshold": 1, "idf_power": 1.0}
    regulariser = Regulariser(
        Sparsity.from_config({"document": penalty, "ramp": 0}), lambda _: torch.tensor([1.0, 2.0])
    )
    rows = torch.tensor([[1.0, 1.0], [0.0, 3.0]])  # the second has one term: spared
    value = regulariser(torch.zeros(1, 2), rows, torch.tensor([0, 0]))["document"]
    assert value.item() == pytest.approx((2.0**2 + 1.0**2) / 2)


def test_document_idf_counts_what_the_encoder_reads(tiny: ModuleType) -> None:
    encoder = tiny.Splade()
    texts = ["one two two", "one three", "one two two", "four"]  # the third is the first again
    examples = [
        Example(Text("q", "one"), tuple(Text(f"d{i}", text) for i, text in enumerate(texts)))
    ]
    found = document_idf(encoder, examples, 64)
    seen: Counter[int] = Counter()
    for text in dict.fromkeys(texts):
        row = encoder.tokenize([text], "document")
        seen.update(set(row["input_ids"][0][row["attention_mask"][0] > 0].tolist()))
    expected = [np.log(1 + (3 - seen[i] + 0.5) / (seen[i] + 0.5)) for i in range(64)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_a_large_training_is_counted_in_part(
    tiny: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.training.sparsity.regulariser.SAMPLED", 2)
    examples = [Example(Text(f"q{i}", "one"), (Text(f"d{i}", f"word{i}"),)) for i in range(5)]
    found = document_idf(tiny.Splade(), examples, 64)
    assert float(found.max()) == pytest.approx(np.log(1 + 2.5 / 0.5))  # of 2 texts, 0 have it


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        ({"document": {"type": "l1", "weight": 1.0, "by_rank": True}}, "l1 is the same"),
        ({"query": {"type": "flops", "weight": 1.0, "by_rank": True}}, "alone in its group"),
        ({"document": {"type": "flops", "weight": 1.0, "by_rank": "yes"}}, "true or false"),
        ({"document": {"type": "flops", "weight": 1.0, "idf_power": 0}},
         "idf_power: 0, expected a number above 0, at most 8; 0 is the plain penalty: leave it"),
        ({"document": {"type": "flops", "weight": 1.0, "idf_power": "1"}}, "idf_power: '1', expec"),
        ({"document": {"type": "flops", "weight": 1.0, "idf_power": 400}}, "above 0, at most 8$"),
        ({"document": {"type": "flops", "weight": 1.0, "idf_power": -1}}, "above 0, at most 8$"),
    ],
)  # fmt: skip
def test_bad_settings(penalty: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sparsity.from_config(penalty)


def test_penalties_that_lack_what_they_need() -> None:
    ranked = Sparsity.from_config({"document": {"type": "flops", "weight": 1.0, "by_rank": True}})
    with pytest.raises(ConfigError, match="no groups"):
        Regulariser(ranked)(torch.eye(2), torch.eye(2))
    dear = Sparsity.from_config({"document": {"type": "flops", "weight": 1.0, "idf_power": 1.0}})
    with pytest.raises(ConfigError, match="no texts to count"):
        Regulariser(dear)(torch.eye(2), torch.eye(2))


def test_by_rank_without_negatives_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    sparsity = {"document": {"type": "flops", "weight": 1.0, "by_rank": True}}
    with pytest.raises(ConfigError, match="one document, so all are of one rank"):
        fit(tiny.Splade(), tiny.examples(negatives=0), InfoNCE(), output=tmp_path,
            sparsity=sparsity)  # fmt: skip


@pytest.mark.parametrize("extra", [{"by_rank": True}, {"idf_power": 1.0}])
def test_the_gradient_cache_changes_nothing(
    extra: dict[str, Any], tiny: ModuleType, tmp_path: Path
) -> None:
    trained = []
    for cache in (None, 3):
        encoder = tiny.Splade(dropout=0.0)
        job: dict[str, Any] = {
            "trainer": {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
                        "save_strategy": "no"},
            "sparsity": {"document": {"type": "flops", "weight": 1.0, **extra}, "ramp": 0},
            "gradient_cache": cache,
        }  # fmt: skip
        fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path / str(cache), **job)
        trained.append(tiny.weights_of(encoder))
    plain = tiny.Splade(dropout=0.0)
    job["sparsity"] = {"document": {"type": "flops", "weight": 1.0}, "ramp": 0}
    fit(plain, tiny.examples(), InfoNCE(), output=tmp_path / "plain", **job)
    for name, value in trained[0].items():
        torch.testing.assert_close(value, trained[1][name], rtol=1e-4, atol=1e-5)
    moved = tiny.weights_of(plain)
    assert any((trained[0][name] - moved[name]).abs().max() > 1e-4 for name in moved)
