"""The loss csr: its formula in float64, sentence-transformers' value, whole trainings."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sparse_encoder.losses import CSRReconstructionLoss
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder
from sparse_codes import save_csr
from torch import Tensor
from vector_batches import examples, made, random_batch

from sluice.encoders import CsrEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.own.csr import SparseAutoencoder
from sluice.training import fit
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.own.csr import CSR

INPUTS, LATENTS, K, K_AUX = 6, 20, 2, 3
INFO = {"type": "info_nce", "temperature": 0.7}
MADE = examples(4, negatives=1)


def head_of(*, normalize: bool = False, **others: int) -> SparseAutoencoder:
    """An autoencoder in float64, of whose 20 latents 12 are dead."""
    rng = torch.Generator().manual_seed(5)
    state = {
        "encoder.weight": torch.randn(LATENTS, INPUTS, generator=rng).double(),
        "pre_bias": torch.randn(INPUTS, generator=rng).double() / 3,
        "latent_bias": torch.randn(LATENTS, generator=rng).double() / 3,
        "stats_last_nonzero": torch.arange(LATENTS),
    }
    others = {"k_aux": K_AUX, "dead_threshold": 7, **others}
    return SparseAutoencoder(state, top_k=K, normalize=normalize, others=others).eval()


def loss_of(head: SparseAutoencoder, **settings: Any) -> CSR:
    loss: CSR = made("csr", **{"loss": INFO, **settings})
    loss.bind(SimpleNamespace(kind="csr", autoencoder=head), 1)
    return loss


def vectors_of(seed: int = 3) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    sides = (torch.randn(rows, INPUTS, generator=rng).double() for rows in (4, 8))
    one, other = (side.requires_grad_() for side in sides)
    return one, other


def batch_of(head: SparseAutoencoder, sides: tuple[Tensor, ...], **changes: Any) -> VectorBatch:
    packed = [torch.cat([plain_codes(head, side), side], dim=1) for side in sides]
    return random_batch(MADE, cosine=False).with_vectors(*packed, **changes)


def plain_codes(head: SparseAutoencoder, vectors: Tensor) -> Tensor:
    latents = head.latents(head.scaled(vectors)[0])
    least = latents.detach().sort(dim=1).values[:, [-head.top_k]]
    return torch.relu(latents) * (latents.detach() >= least)


def plain_parts(head: SparseAutoencoder, vectors: Any) -> dict[str, float]:
    """The three errors by their words, a text at a time."""
    matrix, before, bias = (
        part.detach().numpy() for part in (head.weight, head.pre_bias, head.latent_bias)
    )
    near, far, residuals, silent = [], [], [], []
    dead = head.idle.numpy() > 7
    for x in vectors:
        mean, spread = (x.mean(), x.std(ddof=1)) if head.normalize else (0.0, 1.0)
        scaled = (x - mean) / (spread + 1e-5) if head.normalize else x
        latents = [float(row @ (scaled - before)) + b for row, b in zip(matrix, bias, strict=True)]

        def decoded(limit: int, among: Any, values: list[float] = latents) -> Any:
            chosen = sorted((j for j in range(LATENTS) if among[j]), key=lambda j: -values[j])
            return sum((max(values[j], 0.0) * matrix[j] for j in chosen[:limit]), np.zeros(INPUTS))

        every = [True] * LATENTS
        near.append((decoded(K, every) + before) * spread + mean - x)
        far.append((decoded(4 * K, every) + before) * spread + mean - x)
        residuals.append(-near[-1])
        silent.append(decoded(K_AUX, dead) * spread)
    # Where a bias times the spread is added to both, the variance is that of the sum.
    spreads = vectors.std(axis=1, ddof=1, keepdims=True) if head.normalize else 1.0
    targets = np.array(residuals) + before * spreads
    variance = ((targets - targets.mean(0)) ** 2).mean()
    missed = ((np.array(silent) - np.array(residuals)) ** 2).mean() / variance
    return {
        "reconstruction": float((np.array(near) ** 2).mean()),
        "reconstruction_4k": float((np.array(far) ** 2).mean()),
        "auxiliary": float(missed),
    }


@pytest.mark.parametrize("normalize", [False, True])
def test_the_value_is_the_formula(normalize: bool) -> None:
    head, sides = head_of(normalize=normalize), vectors_of()
    loss = loss_of(head, beta=0.3, gamma=0.6)
    value = loss.over(batch_of(head, sides)).item()
    parts = plain_parts(head, torch.cat(sides).detach().numpy())
    inner = made("info_nce", temperature=0.7).over(
        random_batch(MADE, cosine=False).with_vectors(*(plain_codes(head, each) for each in sides))
    )
    expected = parts["reconstruction"] + parts["reconstruction_4k"] / 8 + 0.3 * parts["auxiliary"]
    assert value == pytest.approx(expected + 0.6 * inner.item(), rel=1e-9)
    notes = loss.notes()
    assert {name: notes[name] for name in parts} == pytest.approx(parts, rel=1e-5)
    assert notes["dead_latents"] == pytest.approx(12 / 20)


@pytest.mark.parametrize("normalize", [False, True])
def test_value_and_gradient_are_those_of_sentence_transformers(normalize: bool) -> None:
    head, sides = head_of(normalize=normalize), vectors_of()
    texts = torch.cat(sides)
    ours = loss_of(head, beta=0.3)._reconstruction(head, texts)
    theirs = SparseAutoEncoder(INPUTS, LATENTS, k=K, k_aux=K_AUX, normalize=normalize,
                               dead_threshold=7).double().eval()  # fmt: skip
    with torch.no_grad():
        theirs.encoder.weight.copy_(head.weight)
        theirs.pre_bias.copy_(head.pre_bias)
        theirs.latent_bias.copy_(head.latent_bias)
        theirs.stats_last_nonzero.copy_(head.idle)
    made_of = theirs({"sentence_embedding": texts})
    parts = CSRReconstructionLoss(None, beta=0.3).compute_loss_from_embeddings([made_of])
    expected = sum(parts.values())
    assert ours.item() == pytest.approx(expected.item(), rel=1e-12)
    own = torch.autograd.grad(
        ours, [head.weight, head.pre_bias, head.latent_bias, *sides], retain_graph=True
    )
    other = torch.autograd.grad(
        expected, [theirs.encoder.weight, theirs.pre_bias, theirs.latent_bias, *sides]
    )
    for one, two in zip(own, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
        assert one.any()


@pytest.mark.parametrize("normalize", [False, True])
def test_the_gradient_is_that_of_finite_differences(normalize: bool) -> None:
    """Without the auxiliary part, whose residual is held constant."""
    head, sides = head_of(normalize=normalize), vectors_of()
    loss, leaves = loss_of(head, beta=0), [*sides, *head.parameters()]
    gradients = torch.autograd.grad(loss.over(batch_of(head, sides)), leaves)
    rng = torch.Generator().manual_seed(2)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        move, ends = torch.randn(leaf.shape, generator=rng).double(), []
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                leaf += step * move
            ends.append(loss.over(batch_of(head, sides)).item())
        slope = (ends[0] - ends[1]) / 2e-6
        assert (gradient * move).sum().item() == pytest.approx(slope, rel=1e-5)


def test_latents_die_and_come_back() -> None:
    head, sides = head_of(), vectors_of()
    loss, batch = loss_of(head), batch_of(head, sides)
    before = head.idle.clone()
    loss.over(batch)
    assert torch.equal(head.idle, before)  # measured, not trained
    head.train()
    loss.over(batch)
    used = (torch.cat([plain_codes(head, side) for side in sides]) > 1e-5).any(0)
    assert 0 < used.sum() < LATENTS
    assert torch.equal(head.idle, torch.where(used, 1, before + 1))
    for _ in range(8):
        loss.over(batch)
    assert torch.equal(head.dead(), ~used)


def test_few_latents_empty_texts_and_one_text() -> None:
    head, (queries, documents) = head_of(k_aux=50), vectors_of()
    head.top_k = 7  # four times as many are more than there are
    loss = loss_of(head)
    plain = loss._reconstruction(head, documents)
    empty = torch.zeros(3, INPUTS, dtype=torch.float64)
    assert loss._reconstruction(head, torch.cat([documents, empty])).item() == plain.item()
    assert loss._reconstruction(head, empty).item() == 0
    same = queries[:1].expand(3, -1)
    value = loss._reconstruction(head, queries[:1])  # no variance: over 1
    assert value.isfinite()
    assert loss._reconstruction(head, same).item() == pytest.approx(value.item(), rel=1e-9)
    head.idle.zero_()  # none is dead: nothing is made of the residual
    with torch.no_grad():
        loss._reconstruction(head, documents)
    assert loss.notes()["dead_latents"] == 0


def test_losses_inside_see_codes_alone() -> None:
    head, sides = head_of(), vectors_of()
    wrong = torch.randn(2, INPUTS, dtype=torch.float64)
    further = torch.tensor([0, 2]), torch.cat([plain_codes(head, wrong), wrong], dim=1)
    inside = {"type": "misfits", "loss": INFO, "weight": 0.4}
    batch = batch_of(head, sides, negative_queries=further)
    ours = loss_of(head, loss=inside)
    codes = random_batch(MADE, cosine=False).with_vectors(
        *(plain_codes(head, each) for each in sides),
        negative_queries=(further[0], plain_codes(head, wrong)),
    )
    expected = made("misfits", loss=INFO, weight=0.4).over(codes)
    rest = ours._reconstruction(head, torch.cat([*sides, wrong]))
    assert ours.over(batch).item() == pytest.approx((expected + rest).item(), rel=1e-12)


@pytest.mark.parametrize("other", [{"beta": 0.7}, {"gamma": 0.4}, {"loss": {"type": "star"}}])
def test_every_setting_is_heard(other: dict[str, Any]) -> None:
    head, sides = head_of(), vectors_of()
    values = [loss_of(head, **each).over(batch_of(head, sides)).item() for each in ({}, other)]
    assert abs(values[0] - values[1]) > 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": {"type": "matryoshka"}}, "csr.loss: Matryoshka trains dense, tokens"),
        ({"loss": {"type": "localized_softmax"}}, "LocalizedSoftmax trains cross_encoder"),
        ({"loss": {"type": "masked_language"}}, "learns from texts alone"),
        ({"loss": {"type": "csr"}}, "csr.loss: csr reads the dense vectors below the codes"),
    ],
)
def test_what_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        made("csr", **settings)


def test_it_is_around_other_losses_and_for_csr_alone(bert: Path, tmp_path: Path) -> None:
    for kind, inside in (
        ("sum", {"losses": [{"type": "csr"}]}),
        ("mixing", {"loss": {"type": "csr"}}),
    ):
        with pytest.raises(ConfigError, match="put it around them"):
            made(kind, **inside)
    none = save_csr(bert, tmp_path / "none")
    file = none / "2_SparseAutoEncoder" / "config.json"
    file.write_text(file.read_text().replace('"k_aux": 16', '"k_aux": null'))
    assert CsrEncoder.from_pretrained(none).autoencoder.auxiliary == 0
    with pytest.raises(ConfigError, match="csr: the batch is of no encoder with an autoencoder"):
        made("csr").over(random_batch(MADE, cosine=False))
    with pytest.raises(ConfigError, match=r"beta: 0.2 does nothing: the model's k_aux is 0"):
        made("csr", beta=0.2).bind(SimpleNamespace(kind="csr", autoencoder=head_of(k_aux=0)), 1)
    with pytest.raises(ConfigError, match="csr trains csr; a dense encoder takes"):
        fit(DenseEncoder.from_pretrained(bert), MADE, made("csr"), output=tmp_path / "out",
            trainer={"max_steps": 1})  # fmt: skip


@pytest.fixture(scope="module")
def folder(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_csr(bert, tmp_path_factory.mktemp("csr") / "m", normalize=True)


def opened(folder: Path) -> CsrEncoder:
    encoder = CsrEncoder.from_pretrained(folder)
    for part in encoder.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return encoder


def trained(folder: Path, output: Path, **settings: Any) -> tuple[CsrEncoder, Any]:
    encoder = opened(folder)
    report = fit(
        encoder, examples(8, negatives=1), made("csr", loss={"type": "info_nce"}), output=output,
        trainer={"max_steps": 5, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
                 "logging_steps": 1, "save_strategy": "no", "optim": "sgd"},
        head_learning_rate=2e-2, **settings,
    )  # fmt: skip
    return encoder, report


@pytest.mark.thorough
def test_five_steps_also_by_a_gradient_cache(
    folder: Path, tmp_path: Path, tiny: ModuleType
) -> None:
    before = tiny.weights_of(opened(folder))
    encoder, report = trained(folder, tmp_path / "plain")
    lines = [line for line in report.history if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["reconstruction"] < lines[0]["reconstruction"]
    assert {"reconstruction_4k", "auxiliary", "dead_latents"} <= set(lines[0])
    after = tiny.weights_of(encoder)
    for part in ("autoencoder.weight", "autoencoder.pre_bias", "model.embeddings"):
        changed = [name for name in before if name.startswith(part)]
        assert any(not torch.equal(before[name], after[name]) for name in changed), part
    cached, _ = trained(folder, tmp_path / "cached", gradient_cache=3)
    for name, weight in tiny.weights_of(cached).items():
        torch.testing.assert_close(weight, after[name], rtol=1e-4, atol=1e-6)
    # Codes are as ever after training, and what was counted is saved with the weights.
    encoder.save_pretrained(tmp_path / "saved")
    again = CsrEncoder.from_pretrained(tmp_path / "saved")
    assert torch.equal(again.autoencoder.idle, encoder.autoencoder.idle)
    assert encoder.autoencoder.idle.min() == 1
    features = again.tokenize(["query 1"], "query")
    assert again.embed(features, "query").shape == (1, again.dim)
    both = again.embed_layers(features, "query", (0,))
    assert both.shape == (1, again.dim + 32)
    with pytest.raises(ConfigError, match=r"layers \(2, 1\), and a CSR encoder has codes"):
        again.embed_layers(features, "query", (2, 1))
    with pytest.raises(ConfigError, match="csr reconstructs the dense vectors of both sides"):
        trained(folder, tmp_path / "sparse", sparsity={"document": {"type": "flops", "weight": 1}})


def test_what_was_counted_is_resumed(folder: Path, tmp_path: Path) -> None:
    def run(output: Path) -> tuple[CsrEncoder, Any]:
        encoder = CsrEncoder.from_pretrained(folder)
        report = fit(
            encoder, examples(4), made("csr"), output=output,
            trainer={"max_steps": 2, "per_device_train_batch_size": 4, "save_steps": 1},
        )  # fmt: skip
        return encoder, report

    whole, _ = run(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-2")
    resumed, report = run(tmp_path / "killed")
    assert report.resumed_step == 1
    again = resumed.module.state_dict()
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, again[name]), name
    assert whole.autoencoder.idle.max() == 95 + 2
