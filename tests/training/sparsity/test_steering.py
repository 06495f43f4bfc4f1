"""Sparsity by target: terms are counted without dropout, and a head that is short is raised."""

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.training import fit
from sluice.training.loop.checkpoint import sealed_state
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.sparsity.controller import LIFTED, Control, Sparsity
from sluice.training.sparsity.regulariser import EVERY, Regulariser, Steering, active_terms


def _terms(encoder: Any, texts: list[str], side: str) -> float:
    encoder.module.eval()
    with torch.no_grad():
        return float(active_terms(encoder.embed(encoder.tokenize(texts, side), side)))


def test_a_head_that_is_short_is_raised_to_the_target() -> None:
    """Logits above the threshold fall off exponentially, as measured heights assume."""
    control, bias, weight = Control(150.0, None), -3.0, 0.0
    for _ in range(100):
        terms = 1000 * math.exp(bias / 0.8) / (1 + weight)
        control.observe(terms, terms * 1e-3, 0.8)
        control.advance(1.0)
        weight, lift = control.weight * terms * 1e-3, control.lift
        control.lift_by(lift)
        bias += lift
    assert terms == pytest.approx(150, rel=0.12)
    assert 0 < control.lifted < LIFTED


def test_a_head_is_not_raised_without_end() -> None:
    control = Control(150.0, None)
    for _ in range(300):
        control.observe(2.0, 1.0, 0.5)
        control.advance(1.0)
        control.lift_by(control.lift)
    assert control.lifted == pytest.approx(LIFTED)
    assert control.lift == 0.0


def test_terms_above_the_target_raise_nothing() -> None:
    control = Control(150.0, None)
    for _ in range(20):
        control.observe(160.0, 1.0, 0.5)
        control.advance(1.0)
        assert control.lift == 0.0


def test_dropout_corrects_every_count_after_it_was_measured() -> None:
    control = Control(150.0, None)
    found = []
    for dropout in (0.8, None, None, 1.25, None):
        control.observe(100.0, 1.0, 0.5)
        control.advance(1.0, dropout)
        found.append(control.terms)
    assert found == pytest.approx([80.0, 80.0, 80.0, 125.0, 125.0])


def test_dropout_is_measured_and_leaves_no_trace(tiny: ModuleType) -> None:
    encoder = tiny.Splade(dropout=0.4)
    encoder.module.train()
    frozen = next(part for part in encoder.module.modules() if not list(part.children()))
    frozen.training = False  # as in a frozen tower
    regulariser = Regulariser(Sparsity.from_config({"target_doc_terms": 8}))
    steering = Steering(encoder, regulariser, tiny.examples(), nullcontext)
    before = torch.get_rng_state()
    (share,) = steering._dropout().values()
    assert torch.equal(torch.get_rng_state(), before)
    assert not frozen.training
    assert encoder.module.training
    assert 0.5 < share < 2
    assert share != 1.0
    still = tiny.Splade(dropout=0.0)
    assert Steering(still, regulariser, tiny.examples(1), nullcontext)._dropout() == {
        "document": 1.0
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("document", "query"), [(24, 12), (8, 4)])
def test_targets_hold_without_dropout(
    document: int, query: int, tiny: ModuleType, tmp_path: Path
) -> None:
    encoder, examples = tiny.Splade(dropout=0.3), tiny.examples()
    texts = {
        "document": [text.text for e in examples for text in e.documents],
        "query": [e.query.text for e in examples],
    }
    job: dict[str, Any] = {
        "trainer": {
            "max_steps": 6 * EVERY, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
            "save_strategy": "no",
        },
        "sparsity": {"target_doc_terms": document, "target_query_terms": query, "ramp": 0.3},
    }  # fmt: skip
    fit(encoder, examples, InfoNCE(), output=tmp_path, **job)
    assert _terms(encoder, texts["document"], "document") == pytest.approx(document, rel=0.3)


@pytest.mark.thorough
def test_a_resumed_training_steers_as_the_undisturbed(tiny: ModuleType, tmp_path: Path) -> None:
    """Over a measurement of dropout and raised heads: all of it is in the checkpoint."""
    job: dict[str, Any] = {
        "trainer": {
            "max_steps": EVERY + 8, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
            "save_steps": EVERY - 2, "save_total_limit": 10, "logging_steps": 1,
        },
        "sparsity": {"target_doc_terms": 48, "ramp": 4},
    }  # fmt: skip
    whole, again = tiny.Splade(dropout=0.3), tiny.Splade(dropout=0.3)
    fit(whole, tiny.examples(), InfoNCE(), output=tmp_path / "whole", **job)
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / f"checkpoint-{EVERY + 8}")
    report = fit(again, tiny.examples(), InfoNCE(), output=tmp_path / "again", **job)
    assert report.resumed_step == EVERY - 2
    for name, value in tiny.weights_of(whole).items():
        assert torch.equal(value, tiny.weights_of(again)[name]), name
    state = sealed_state(tmp_path / "again" / f"checkpoint-{EVERY + 8}")
    control = state["regulariser"]["controls"]["document"]
    assert control["lifted"] > 0
    assert control["dropout"] != 1.0
