"""Training an encoder of token vectors: the same loop, cache, resume and refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training import fit
from sluice.training.batches.scoring import TokenScoring
from sluice.training.loop.parts import choose_parts
from sluice.training.losses import LOSSES
from sluice.training.losses.composed.matryoshka import Matryoshka
from sluice.training.losses.composed.sum_of_losses import WeightedSum
from sluice.training.losses.contrastive.pairs import BCE, PSL
from sluice.training.losses.contrastive.softmax import DecoupledSoftmax, InfoNCE
from sluice.training.losses.distillation.scores import KLDiv, MarginMSE
from sluice.training.rules import losses_for


def job(tiny: ModuleType, **trainer: Any) -> dict[str, Any]:
    return {"trainer": {**tiny.JOB["trainer"], **trainer}}


SCORINGS = [
    TokenScoring(), TokenScoring("mean_max_sim"), TokenScoring("xtr", 5), TokenScoring("xtr", 400),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("scoring", SCORINGS, ids=lambda s: f"{s.name}-{s.top_k}")
@pytest.mark.parametrize("bf16", [False, True])
def test_it_learns(tiny: ModuleType, tmp_path: Path, scoring: TokenScoring, bf16: bool) -> None:
    encoder = tiny.Tokens()
    settings = job(tiny, num_train_epochs=6, bf16=bf16)
    report = fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, scoring=scoring, **settings)
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert json.loads((tmp_path / "training.json").read_text())["scoring"] == scoring.facts


@pytest.mark.thorough
@pytest.mark.parametrize("scoring", SCORINGS, ids=lambda s: f"{s.name}-{s.top_k}")
def test_the_cache_changes_nothing(tiny: ModuleType, tmp_path: Path, scoring: TokenScoring) -> None:
    """Chunks of short texts are narrower than the whole batch."""
    ends = []
    settings = job(tiny, optim="sgd", learning_rate=0.1)
    for cache in (None, 3):
        encoder = tiny.Tokens(dropout=0.0)
        output = tmp_path / str(cache)
        fit(
            encoder, tiny.examples(), InfoNCE(), output=output, scoring=scoring,
            gradient_cache=cache, **settings,
        )  # fmt: skip
        ends.append(tiny.weights_of(encoder))
    start = tiny.weights_of(tiny.Tokens())
    assert not torch.allclose(ends[0]["projection.weight"], start["projection.weight"], atol=1e-3)
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=2e-6), name


def test_a_resumed_training_is_the_undisturbed_one(tiny: ModuleType, tmp_path: Path) -> None:
    scoring = TokenScoring("xtr", 5)
    source, copy = tmp_path / "source", tmp_path / "copy"
    whole = tiny.Tokens()
    loss = WeightedSum([{"type": "info_nce"}, {"type": "star", "weight": 0.5}])
    settings: dict[str, Any] = {**job(tiny), "scoring": scoring}
    fit(whole, tiny.examples(), loss, output=source, **settings)
    shutil.copytree(source, copy)
    shutil.rmtree(copy / "checkpoint-6")
    resumed = tiny.Tokens(seed=9)
    report = fit(resumed, tiny.examples(), loss, output=copy, **settings)
    assert report.resumed_step == 4
    for name, value in tiny.weights_of(whole).items():
        assert torch.equal(value, tiny.weights_of(resumed)[name]), name
    settings["scoring"] = TokenScoring("xtr", 6)
    with pytest.raises(ConfigError, match="differs in scoring"):
        fit(resumed, tiny.examples(), loss, output=copy, **settings)


@pytest.mark.parametrize(("top_k", "warned"), [(5, False), (400, True)])
def test_a_warning_where_xtr_leaves_no_token_out(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture, top_k: int, warned: bool
) -> None:
    scoring = TokenScoring("xtr", top_k)
    fit(tiny.Tokens(), tiny.examples(), InfoNCE(), output=tmp_path, scoring=scoring, **job(tiny))
    assert caplog.text.count("so all are found and this is mean_max_sim") == warned


def test_no_such_warning_of_another_scoring(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = tiny.Tokens()
    embed = encoder.embed
    encoder.embed = lambda features, side: 0 * embed(features, side)  # no text has a token
    fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, **job(tiny, max_steps=1))
    assert "xtr" not in caplog.text


def test_the_head_may_learn_faster(tiny: ModuleType, tmp_path: Path) -> None:
    ends = []
    for rate in (None, 1e-9):
        encoder = tiny.Tokens()
        output = tmp_path / str(rate)
        fit(
            encoder, tiny.examples(), InfoNCE(), output=output, head_learning_rate=rate, **job(tiny)
        )
        ends.append(tiny.weights_of(encoder)["projection.weight"])
    start = tiny.weights_of(tiny.Tokens())["projection.weight"]
    assert (ends[0] - start).abs().max() > 1e-3
    assert (ends[1] - start).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("scoring", "temperature"),
    [("max_sim", 1.0), ("mean_max_sim", 1 / 32), ("xtr", 1 / 32)],
)
def test_default_temperatures(tiny: ModuleType, scoring: Any, temperature: float) -> None:
    drawn = torch.Generator().manual_seed(1)
    scores, labels = torch.randn(4, 6, generator=drawn), torch.eye(4, 6)
    teacher = torch.randn(4, 6, generator=drawn)
    for kind in (InfoNCE, KLDiv, DecoupledSoftmax):
        chosen = choose_parts(
            tiny.Tokens(), kind(), live=False, sparse=False, seed=1, scoring=TokenScoring(scoring)
        )
        value = chosen.loss(scores, labels, None, None, teacher)
        expected = kind(temperature=temperature)(scores, labels, None, None, teacher)
        assert torch.equal(value, expected)
        assert chosen.cosine  # tokens have length 1


def test_matryoshka_is_of_each_token(tiny: ModuleType) -> None:
    """The loss of the prefixes, each token's made of length 1 again."""
    examples = tiny.examples(5)
    encoder = tiny.Tokens(dropout=0.0)
    loss = Matryoshka(dims=[8, 3], weights=[1.0, 0.5])
    chosen = choose_parts(encoder, loss, live=False, sparse=False, seed=1)
    chosen.loss.bind(encoder, 1)
    inputs = chosen.collator(examples)
    outputs = chosen.module(**inputs["features"])
    value = chosen.objective(None, None)(outputs, inputs, layers=1, step=1)
    expected = 0.0
    for dim, weight in ((8, 1.0), (3, 0.5)):
        parts = [outputs[side][..., :dim].double() for side in ("query", "document")]
        queries, documents = (torch.nn.functional.normalize(p, dim=2) for p in parts)
        products = torch.einsum("bqd,nld->bqnl", queries, documents)
        products = products.masked_fill(~(documents != 0).any(2), -torch.inf)
        scores = products.amax(3).masked_fill(~(queries != 0).any(2)[..., None], 0.0).sum(1)
        plain = InfoNCE(temperature=1.0)(scores, inputs["labels"], inputs["mask"])
        expected += weight * plain.item()
    assert value.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in losses_for("tokens") if name != "adore"])
def test_every_loss_that_is_offered_trains(tiny: ModuleType, tmp_path: Path, name: str) -> None:
    """``adore`` counts places in a list that is searched live, which token encoders have not."""
    spec: dict[str, Any] = {"type": name}
    if name == "sum":
        spec["losses"] = [{"type": "info_nce"}, {"type": "star", "weight": 0.5}]
    examples = [
        replace(each, scores=(5.0 + number % 3, 1.0, 2.0))
        for number, each in enumerate(tiny.examples(negatives=2))
    ]
    scoring = TokenScoring("mean_max_sim") if name == "psl" else None
    encoder = tiny.Tokens(dropout=0.0)
    fit(encoder, examples, build(spec, LOSSES, where="loss"), output=tmp_path, scoring=scoring,
        **job(tiny, max_steps=1, optim="sgd", learning_rate=0.1, warmup_steps=0))  # fmt: skip
    start = tiny.weights_of(tiny.Tokens(dropout=0.0))["projection.weight"]
    assert not torch.equal(start, encoder.module["projection"].weight)


@pytest.mark.parametrize(
    ("loss", "scoring", "message"),
    [
        (InfoNCE(same_side=True), None, "same_side: true"),
        (InfoNCE(similarity="dot"), None, "similarity: dot, and scoring is max_sim"),
        (InfoNCE(similarity="cosine"), None, "similarity: cosine, and scoring is max_sim"),
        (PSL(), TokenScoring("max_sim"), "set scoring: mean_max_sim"),
    ],
)
def test_settings_that_do_not_fit(
    tiny: ModuleType, tmp_path: Path, loss: Any, scoring: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(tiny.Tokens(), tiny.examples(), loss, output=tmp_path, scoring=scoring, **job(tiny))


def test_psl_refuses_vectors_of_any_length(tiny: ModuleType) -> None:
    encoder = tiny.Tokens()
    encoder.normalize = False
    scoring = TokenScoring("mean_max_sim")
    with pytest.raises(ConfigError, match="loss: psl needs scores from -1 to 1"):
        choose_parts(encoder, PSL(), live=False, sparse=False, seed=1, scoring=scoring)
    choose_parts(encoder, InfoNCE(), live=False, sparse=False, seed=1, scoring=scoring)


def test_other_encoders_refuse_a_scoring(tiny: ModuleType, tmp_path: Path) -> None:
    for kind in (tiny.Dense, tiny.Splade, tiny.Cross):
        loss = BCE() if kind is tiny.Cross else InfoNCE()
        with pytest.raises(ConfigError, match="scoring: max_sim: is for encoders of token vectors"):
            fit(kind(), tiny.examples(), loss, output=tmp_path, scoring=TokenScoring(), **job(tiny))
    with pytest.raises(ConfigError, match="sparsity: is for splade; a tokens encoder has no terms"):
        fit(tiny.Tokens(), tiny.examples(), InfoNCE(), output=tmp_path / "s", **tiny.JOB)


def test_psl_and_margin_mse_have_what_they_need(tiny: ModuleType, tmp_path: Path) -> None:
    scoring = TokenScoring("mean_max_sim")
    fit(tiny.Tokens(), tiny.examples(), PSL(), output=tmp_path, scoring=scoring, **job(tiny))
    bound = choose_parts(tiny.Tokens(), MarginMSE(), live=False, sparse=False, seed=1).loss
    scores, labels = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    value = bound(scores, labels, None, None, torch.tensor([[5.0, 4.5]]))
    assert value.item() == pytest.approx((2.0 - 0.5) ** 2)
