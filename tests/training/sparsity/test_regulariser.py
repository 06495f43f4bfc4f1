"""FLOPS, L1 and the ramp against hand values."""

import logging
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.sparsity.controller import Control, Sparsity
from sluice.training.sparsity.regulariser import Regulariser, active_terms, flops, l1


def test_hand_values() -> None:
    x = torch.tensor([1.0, 2.0, 0.0])
    assert flops(x.expand(4, 3)).item() == pytest.approx(5.0)  # equal rows: the squared norm
    assert flops(torch.eye(4)).item() == pytest.approx(1 / 4)  # one-hot rows: 1 / B
    assert flops(torch.tensor([[1.0, 0.0]] * 4)).item() == pytest.approx(1.0)
    assert l1(torch.eye(4)).item() == l1(torch.tensor([[1.0, 0.0]] * 4)).item() == 1.0
    assert flops(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).item() == pytest.approx(1.5**2 + 1.5**2)
    assert active_terms(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).item() == 1.5


def test_ramp() -> None:
    regulariser = Regulariser(Sparsity(ramp=10))
    found = []
    for _ in range(21):
        found.append(regulariser.strength)
        regulariser.advance()
    assert [found[t] for t in (0, 5, 10, 20)] == [0.0, 0.25, 1.0, 1.0]
    assert Regulariser(Sparsity(ramp=0)).strength == 1.0


def test_strength_counts_steps_of_a_share_or_steps() -> None:
    share = Regulariser(Sparsity.from_config({"ramp": 0.5}))
    share.begin(20)
    steps = Regulariser(Sparsity.from_config({"ramp": 10}))
    steps.begin(20)
    for _ in range(5):
        share.advance()
        steps.advance()
    assert share.strength == steps.strength == 0.25
    again = Regulariser(share.sparsity)
    again.restore(share.state())
    assert again.strength == 0.25


def test_penalty_of_both_sides() -> None:
    config = {"query": {"type": "l1", "weight": 2.0}, "document": {"type": "flops", "weight": 3.0}}
    regulariser = Regulariser(Sparsity.from_config({**config, "ramp": 0}))
    values = regulariser(torch.eye(2), torch.eye(4))
    assert {side: value.item() for side, value in values.items()} == {
        "query": 2.0,
        "document": 0.75,
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"querry": {}}, "did you mean 'query'"),
        ({"query": {"type": "flop", "weight": 1.0}}, "did you mean 'flops'"),
        ({"query": {"type": "flops"}}, "sparsity.query"),
        ({"document": {"type": "flops", "weight": "1e-4"}}, "sparsity.document.weight"),
        ({"ramp": -1}, "sparsity.ramp"),
        ({"ramp": 2.5}, "sparsity.ramp"),
        ({"target_doc_terms": 0.5}, "sparsity.document.target_terms"),
        ({"target_doc_term": 150}, "did you mean 'target_doc_terms'"),
        ({"document": {"type": "flops", "weight": 1.0, "threshold": 0}}, "document.threshold"),
        (
            {"document": {"type": "flops", "target_terms": 9}, "target_doc_terms": 9},
            "given twice",
        ),
    ],
)
def test_bad_settings(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sparsity.from_config(config)


def test_threshold_spares_short_vectors() -> None:
    config = {"document": {"type": "flops", "weight": 1.0, "threshold": 2}, "ramp": 0}
    regulariser = Regulariser(Sparsity.from_config(config))
    rows = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]], requires_grad=True)
    value = regulariser(torch.zeros(1, 4), rows)["document"]
    assert value.item() == pytest.approx(3 * 0.5**2)  # the second row counts as silent
    value.backward()
    assert rows.grad is not None
    assert (rows.grad[1] == 0).all()
    assert (rows.grad[0, :3] > 0).all()


def test_anti_zero() -> None:
    regulariser = Regulariser(Sparsity.from_config({"anti_zero": 2.0}))
    value = regulariser(torch.eye(2), torch.eye(4))["anti_zero"]
    assert value.item() == pytest.approx(2 * (1 / 4 + 1 / 16))


def test_postings_cost_is_what_an_index_multiplies() -> None:
    torch.manual_seed(0)
    queries = torch.rand(7, 20) * (torch.rand(7, 20) < 0.3)
    documents = torch.rand(11, 20) * (torch.rand(11, 20) < 0.4)
    regulariser = Regulariser(Sparsity())
    regulariser(queries[:3], documents[:4])
    regulariser(queries[3:], documents[4:])
    counted = sum(
        int(((q != 0) & (d != 0)).sum()) for q in queries for d in documents
    )  # fmt: skip
    notes = regulariser.notes()
    assert notes["postings_cost"] == pytest.approx(counted / (7 * 11))
    assert notes["index_mb_per_million"] == pytest.approx(10 * float((documents != 0).sum()) / 11)
    assert "postings_cost" not in regulariser.notes()  # told once


@pytest.mark.parametrize(("start", "weight"), [(3000.0, None), (3000.0, 1e-8), (20.0, 1.0)])
def test_control_meets_its_target(start: float, weight: float | None) -> None:
    """A plant whose terms fall with the weight, a fifth of the way each step."""
    control = Control(150.0, weight)
    terms = start
    for step in range(400):
        control.observe(terms, 1.0)
        control.advance(min(1.0, (step + 1) / 130))
        aim = min(20_000.0, 40.0 * (control.weight + 1e-12) ** -0.5)
        terms *= (aim / terms) ** 0.2
    assert terms == pytest.approx(150, rel=0.05)


@pytest.mark.parametrize("weight", [None, 1.0])
def test_control_is_at_hand_after_a_target_out_of_reach(weight: float | None) -> None:
    """Far below the target for long the weight vanishes, and is soon back when terms rise."""
    control = Control(150.0, weight)
    terms = 20.0
    for step in range(3300):
        value = terms**2 * 1e-3
        control.observe(terms, value)
        control.advance(min(1.0, (step + 1) / 500))
        if step == 2999:
            assert control.weight * value < 1e-4
        wanted = 20.0 if step < 3000 else 800.0
        aim = wanted / (1 + 30 * control.weight * value) ** 0.5
        terms *= (aim / terms) ** 0.05
    assert terms == pytest.approx(150, rel=0.05)


def test_a_state_without_controls_leaves_them_as_they_begin() -> None:
    sparsity = Sparsity.from_config({"target_doc_terms": 20})
    regulariser = Regulariser(sparsity)
    regulariser.restore({"step": 3, "total": 9})
    assert (regulariser.step, regulariser.total) == (3, 9)
    assert regulariser.controls["document"].weight == 0.0


def test_control_goes_on_from_its_state() -> None:
    one, other = Control(30.0, None), Control(30.0, None)
    for step in range(6):
        one.observe(100.0 - step, 2.0)
        one.advance(step / 10)
        if step == 3:
            other.restore(one.state())
        elif step > 3:
            other.observe(100.0 - step, 2.0)
            other.advance(step / 10)
    assert other.weight == one.weight
    assert one.begun == 100.0
    assert Control(30.0, None).weight == 0.0  # before anything was seen
    first = Control(30.0, None)
    first.observe(50.0, 2.0)
    assert first.weight == pytest.approx(0.03 / 2.0)
    assert math.isfinite(first.weight)


@pytest.mark.parametrize(
    ("rows", "state"), [(torch.ones(2, 40), "every"), (torch.zeros(2, 40), "no")]
)
def test_collapse_is_said_once(
    rows: torch.Tensor, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    regulariser = Regulariser(Sparsity.from_config({"target_doc_terms": 5, "ramp": 0}))
    with caplog.at_level(logging.WARNING, logger="sluice"):
        for _ in range(3):
            regulariser(torch.eye(2, 40), rows)
            regulariser.advance()
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert f"almost {state}thing is active in a document" in said[0]


def test_an_empty_beginning_is_no_collapse(caplog: pytest.LogCaptureFixture) -> None:
    regulariser = Regulariser(Sparsity.from_config({"target_doc_terms": 5, "ramp": 100}))
    said = []
    with caplog.at_level(logging.WARNING, logger="sluice"):
        for step in range(1, 31):
            regulariser(torch.eye(2, 40), torch.zeros(2, 40))
            regulariser.advance()
            said += [step] * len(caplog.records)
            caplog.clear()
    assert said == [20]


@pytest.mark.thorough
def test_training_by_target(tiny: ModuleType, tmp_path: Path) -> None:
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE

    job: dict[str, Any] = {
        "trainer": {
            "max_steps": 80, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
            "save_strategy": "no", "logging_steps": 5,
        },
        "sparsity": {"target_doc_terms": 8, "target_query_terms": 4, "ramp": 0.4},
    }  # fmt: skip
    report = fit(tiny.Splade(dropout=0.0), tiny.examples(), InfoNCE(), output=tmp_path, **job)
    lines = [line for line in report.history if "loss" in line]
    assert lines[0]["active_terms_document"] > 12  # where it began
    assert sum(line["active_terms_document"] for line in lines[-4:]) / 4 == pytest.approx(
        8, rel=0.35
    )
    assert sum(line["active_terms_query"] for line in lines[-4:]) / 4 == pytest.approx(4, rel=0.35)
    assert {"sparsity_weight_document", "postings_cost"} <= lines[-1].keys()
