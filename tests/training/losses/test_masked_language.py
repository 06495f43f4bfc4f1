"""Masked-language training: masks, loss and gradient against transformers, resuming, learning."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from forks import run_forked
from hypothesis import given, settings, strategies as st
from masked_texts import JOB, WORDS, equal, texts, trained
from places import SUPPORT
from transformers import BertForMaskedLM

import sluice.training.batches.forward as masked_pass
from sluice.encoders import SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.training import Example, fit
from sluice.training.batches.forward import IGNORED, Masking, MaskRates
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.loop.objective import Objective
from sluice.training.losses.sequences import MaskedLanguage
from sluice.training.protocol import Text
from sluice.training.sparsity.controller import Sparsity
from sluice.training.sparsity.regulariser import Regulariser, flops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("mlm"), "ForMaskedLM")


@pytest.fixture
def encoder(folder: Path) -> SpladeEncoder:
    return SpladeEncoder.from_pretrained(folder, device="cpu")


def parts(encoder: SpladeEncoder, loss: MaskedLanguage, sparse: bool = True) -> Any:
    module, collator = loss.own_pass(encoder, seed=3, sparse=sparse)
    return module.eval(), collator


def masking(encoder: SpladeEncoder, **changes: Any) -> Masking:
    given = {"probability": 0.15, "whole_words": False, "keep": 0.1, "random": 0.1, **changes}
    return Masking(encoder.tokenizer, MaskRates(**given), seed=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [7, 1024])
def test_value_and_gradient_are_those_of_transformers(
    folder: Path,
    encoder: SpladeEncoder,
    dtype: torch.dtype,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masked_pass, "CHUNK", chunk)
    loss = MaskedLanguage()
    module, collator = parts(encoder, loss, sparse=False)
    module.to(dtype)
    batch = collator(texts(8))
    features = batch["features"]["document"]
    value = loss.over(loss.batch(module(**batch["features"]), batch))
    value.backward()
    theirs = BertForMaskedLM.from_pretrained(folder).to(dtype).eval()
    wanted = theirs(**features).loss
    wanted.backward()
    close = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-10}
    torch.testing.assert_close(value, wanted, **close)
    own = dict(encoder.model.named_parameters())
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(own[name].grad, parameter.grad, **close)


def test_terms_are_those_of_the_masked_texts_in_one_pass(encoder: SpladeEncoder) -> None:
    loss = MaskedLanguage()
    module, collator = parts(encoder, loss)
    batch = collator(texts(8))
    passes = 0
    forward = encoder.hidden

    def counted(features: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(features)

    encoder.hidden = counted  # type: ignore[method-assign]
    made = module(**batch["features"])
    assert passes == 1
    features = {k: v for k, v in batch["features"]["document"].items() if k != "labels"}
    vectors = encoder.embed(features, "document")
    laid = loss.batch(made, batch)
    torch.testing.assert_close(laid.documents, vectors)
    regulariser = Regulariser(Sparsity.from_config({**JOB["sparsity"], "ramp": 0}))
    objective = Objective(loss, cosine=False, regulariser=regulariser)
    total = objective(made, batch, layers=1, step=1)
    torch.testing.assert_close(total, loss.over(laid) + 1e-3 * flops(vectors))
    told = objective.report()
    assert told["loss_masked_language"] == pytest.approx(loss.over(laid).item())
    assert told["active_terms_document"] == pytest.approx(
        float((vectors != 0).sum(1).float().mean())
    )
    assert "active_terms_query" not in told
    assert told["index_mb_per_million"] > 0


def test_positions_that_are_not_masked_have_no_gradient(encoder: SpladeEncoder) -> None:
    loss = MaskedLanguage()
    module, collator = parts(encoder, loss, sparse=False)
    batch = collator(texts(6))
    held = []
    forward = encoder.hidden

    def kept(features: Any) -> Any:
        held.append(forward(features).detach().requires_grad_())
        return held[-1]

    encoder.hidden = kept  # type: ignore[method-assign]
    loss.over(loss.batch(module(**batch["features"]), batch)).backward()
    moved = held[0].grad.abs().sum(-1) > 0
    assert torch.equal(moved, batch["features"]["document"]["labels"] != IGNORED)


@pytest.mark.thorough
@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    length=st.integers(0, 40),
    probability=st.floats(0.01, 1.0),
    whole_words=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_share_and_places_of_masks(
    folder: Path, length: int, probability: float, whole_words: bool, seed: int
) -> None:
    tokenizer = SpladeEncoder.from_pretrained(folder, device="cpu").tokenizer
    rates = MaskRates(probability, whole_words, 0.1, 0.1)
    hide = Masking(tokenizer, rates, seed)
    chance = np.random.default_rng(seed)
    words = [WORDS[i] + "xy"[: int(i) % 3] for i in chance.integers(0, len(WORDS), length)]
    ids = np.array([*tokenizer(" ".join(words))["input_ids"], tokenizer.pad_token_id])
    masked, labels = hide(ids, "d1", 0)
    special = np.isin(ids, tokenizer.all_special_ids)
    hidden = labels != IGNORED
    assert not (hidden & special).any()
    assert (labels[hidden] == ids[hidden]).all()
    assert (masked[~hidden] == ids[~hidden]).all()
    assert not np.isin(masked[hidden & (masked != hide.mask_id)], tokenizer.all_special_ids).any()
    free = int((~special).sum())
    wanted = max(1, round(probability * free)) if free else 0
    if not whole_words:
        assert hidden.sum() == wanted
        return
    assert (hidden.sum() <= wanted) or hidden.sum() <= 3
    assert (hidden.sum() > 0) == (free > 0)
    continues = [t.startswith("##") for t in tokenizer.convert_ids_to_tokens(ids.tolist())]
    for place in np.flatnonzero(continues):  # a word is hidden as a whole
        assert hidden[place] == hidden[place - 1]


def test_split_between_mask_random_and_kept(encoder: SpladeEncoder) -> None:
    hide = masking(encoder, probability=1.0)
    ids = np.full(40_000, encoder.tokenizer.convert_tokens_to_ids("river"))
    masked, labels = hide(ids, "d", 0)
    assert (labels == ids).all()
    shares = [(masked == hide.mask_id).mean(), (masked == ids).mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.01)
    drawn = masked[(masked != hide.mask_id) & (masked != ids)]
    assert set(drawn.tolist()) <= set(hide.ordinary.tolist())
    assert len(set(drawn.tolist())) > 0.9 * len(hide.ordinary)


def test_masks_are_a_function_of_seed_epoch_and_text(encoder: SpladeEncoder) -> None:
    ids = np.array(encoder.tokenizer(" ".join(WORDS))["input_ids"])
    hide, again = masking(encoder), masking(encoder)
    same = [
        np.array_equal(a, b) for a, b in zip(hide(ids, "d", 1), again(ids, "d", 1), strict=True)
    ]
    assert all(same)
    for name, epoch in (("d", 2), ("e", 1)):
        assert not np.array_equal(hide(ids, "d", 1)[1], hide(ids, name, epoch)[1])
    other = Masking(encoder.tokenizer, hide.rates, seed=6)
    assert not np.array_equal(hide(ids, "d", 1)[1], other(ids, "d", 1)[1])
    padded = np.append(ids, [encoder.tokenizer.pad_token_id] * 4)
    assert np.array_equal(hide(padded, "d", 1)[0][: len(ids)], hide(ids, "d", 1)[0])


@pytest.mark.thorough
def test_resumed_training_ends_as_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    whole, wanted = trained(folder, tmp_path / "whole")
    cut = tmp_path / "cut"
    trained(folder, cut)
    shutil.rmtree(cut / "checkpoint-6")  # as a kill at the fifth step leaves it
    report, found = trained(folder, cut)
    assert (report.resumed_step, report.steps) == (4, 6)
    assert equal(found, wanted)
    kept = ("loss", "loss_masked_language", "active_terms_document")
    assert [[line.get(k) for k in kept] for line in report.history] == [
        [line.get(k) for k in kept] for line in whole.history
    ]


@pytest.mark.thorough
def test_gradient_caching_changes_nothing(folder: Path, tmp_path: Path) -> None:
    settings = {**JOB["trainer"], "save_strategy": "no", "optim": "sgd"}
    del settings["save_steps"]
    _, whole = trained(folder, tmp_path / "a", trainer=settings)
    _, cached = trained(folder, tmp_path / "b", trainer=settings, gradient_cache=3)
    # dropout is drawn in other shapes, so without it
    for name, value in whole.items():
        assert value.shape == cached[name].shape
    plain = tiny_models.save_model(
        tmp_path / "plain", "ForMaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    _, whole = trained(plain, tmp_path / "c", trainer=settings)
    _, cached = trained(plain, tmp_path / "d", trainer=settings, gradient_cache=3)
    for name, value in whole.items():
        torch.testing.assert_close(cached[name], value, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_training_lowers_the_loss(folder: Path, tmp_path: Path) -> None:
    job = {"max_steps": 60, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
    trainer = {**job, "logging_steps": 10, "save_strategy": "no"}
    report, _ = trained(folder, tmp_path, trainer=trainer, sparsity=None)
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert "loss_masked_language" not in report.history[0]  # without penalties it is the loss


@pytest.mark.thorough
def test_more_flops_weight_means_fewer_terms(folder: Path, tmp_path: Path) -> None:
    terms = []
    for weight in (0.0, 1.0):
        sparsity = {"document": {"type": "flops", "weight": weight}, "ramp": 0}
        job = {"max_steps": 20, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
        trainer = {**job, "logging_steps": 5, "save_strategy": "no"}
        report, _ = trained(folder, tmp_path / str(weight), trainer=trainer, sparsity=sparsity)
        lines = [line for line in report.history if "loss" in line]
        terms.append(lines[-1]["active_terms_document"])
    assert terms[1] < 0.8 * terms[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": 0.6, "random": 0.6}, "add up to more than 1"),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MaskedLanguage(**settings)  # type: ignore[arg-type]


def test_what_it_cannot_train_is_refused(encoder: SpladeEncoder, tmp_path: Path) -> None:
    query = {"query": {"type": "flops", "weight": 1e-3}}
    with pytest.raises(ConfigError, match=r"sparsity.query: this training has no query vectors"):
        fit(encoder, texts(), MaskedLanguage(), output=tmp_path, sparsity=query)
    with pytest.raises(ConfigError, match="trains a splade encoder, not a Linear"):
        MaskedLanguage().own_pass(torch.nn.Linear(1, 1), seed=0, sparse=False)
    encoder.tokenizer.mask_token = None
    with pytest.raises(ModelError, match="no mask token"):
        masking(encoder)


def test_text_without_a_word_teaches_nothing(encoder: SpladeEncoder) -> None:
    loss = MaskedLanguage()
    module, collator = parts(encoder, loss, sparse=False)
    batch = collator([Example(Text("d", ""), (Text("d", "!"),))])
    assert (batch["features"]["document"]["labels"] == IGNORED).all()  # an unknown token
    value = loss.over(loss.batch(module(**batch["features"]), batch))
    value.backward()
    assert value == 0
    assert all(p.grad is None or not p.grad.isnan().any() for p in encoder.module.parameters())


def test_ranking_batches_are_refused() -> None:
    batch = VectorBatch(
        torch.ones(2, 3), torch.ones(2, 3), torch.eye(2), torch.ones(2, 2).bool(),
        torch.arange(2), torch.arange(2),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be combined with ranking"):
        MaskedLanguage().over(batch)


@pytest.mark.thorough
def test_masks_do_not_depend_on_who_makes_the_batches(folder: Path, tmp_path: Path) -> None:
    # In a process of its own: torch watches over the workers by a signal handler that stays.
    assert run_forked(SUPPORT / "masked_texts.py", folder, tmp_path) == 0


@pytest.mark.thorough
def test_bfloat16_trains_in_float32_weights(folder: Path, tmp_path: Path) -> None:
    plain = {**JOB["trainer"], "save_strategy": "no"}
    del plain["save_steps"]
    exact, _ = trained(folder, tmp_path / "a", trainer=plain)
    fast, found = trained(folder, tmp_path / "b", trainer={**plain, "bf16": True})
    assert all(
        value.dtype == torch.float32 for value in found.values() if value.is_floating_point()
    )
    name = "loss_masked_language"
    assert fast.history[0][name] == pytest.approx(exact.history[0][name], rel=0.02)
    assert fast.history[0][name] != exact.history[0][name]
