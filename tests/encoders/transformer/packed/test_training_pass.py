"""Training without padding against the models' own pass: values, gradients, dropout."""

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.transformer.packed.model import TrainingPass
from sluice.encoders.transformer.packed.packing import Packing, packing_of
from sluice.encoders.transformer.packed.training_layers import (
    Dropout,
    added_norm,
    attended,
    layout_of,
    linear,
    product,
    weight_gradient,
)
from sluice.training.batches.forward import BiEncoderModule

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 600, "pad_token_id": 0,
}  # fmt: skip
DISTIL = {
    "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 600,
    "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": SMALL,
    "Roberta": {**SMALL, "hidden_act": "gelu_new"},
    "XLMRoberta": SMALL,
    "Camembert": {**SMALL, "hidden_act": "relu"},
    "Electra": {**SMALL, "embedding_size": 16},
    "MPNet": SMALL,
    "DistilBert": DISTIL,
}
STILL = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout": 0.0,
    "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
}  # fmt: skip
BATCH = [
    "", "the", "river gold", "gold " * 40, "water of the sluice " * 9, "river gold", "a b c d e",
    *(" ".join(["stone", "rank", "deep"] * n)[: 3 * n] for n in range(1, 24)),
]  # fmt: skip
Measured = tuple[Tensor, dict[str, Tensor]]


def model_of(family: str, kind: str, tokenizer: Any, still: bool = True, **more: Any) -> Any:
    settings = {**FAMILIES[family], "initializer_range": 0.1, **(STILL if still else {}), **more}
    torch.manual_seed(3)
    config = getattr(transformers, family + "Config")(vocab_size=len(tokenizer), **settings)
    model = getattr(transformers, family + kind)._from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:  # they begin at zero, where a lost one would not show
                parameter.normal_(std=0.1)
    return model.train()


def gradients(encoder: Any, packed: bool, call: Callable[[Any], Tensor]) -> Measured:
    encoder.packed_training = packed
    encoder.module.zero_grad()
    out = call(encoder)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward()  # type: ignore[no-untyped-call]
    found = {
        name: parameter.grad.clone()
        for name, parameter in encoder.module.named_parameters()
        if parameter.grad is not None
    }
    return out.detach(), found


def check_both(encoder: Any, call: Callable[[Any], Tensor], rows: Any = slice(None)) -> None:
    theirs = gradients(encoder, False, call)
    ours = gradients(encoder, True, call)
    assert encoder.packed_training, "the packed pass was not used"
    torch.testing.assert_close(ours[0][rows], theirs[0][rows], atol=1e-5, rtol=1e-5)
    # The pooler that no output uses has a gradient from neither.
    assert ours[1].keys() == theirs[1].keys()
    scale = max(float(gradient.norm()) for gradient in theirs[1].values())
    for name, gradient in ours[1].items():
        distance = (gradient - theirs[1][name]).norm()
        assert distance <= 1e-4 * theirs[1][name].norm() + 1e-6 * scale, name


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_dense_values_and_gradients_are_those_of_the_padded_pass(
    family: str, pooling: Any, tokenizer: Any
) -> None:
    encoder = DenseEncoder(model_of(family, "Model", tokenizer), tokenizer, pooling=pooling)
    features = encoder.tokenize(BATCH, "document")
    assert encoder.training_pass(features) is not None
    check_both(encoder, lambda e: e.embed(features, "document"))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "Camembert"])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_splade_values_and_gradients_are_those_of_the_padded_pass(
    family: str, pooling: Any, tokenizer: Any
) -> None:
    encoder = SpladeEncoder(model_of(family, "ForMaskedLM", tokenizer), tokenizer, pooling=pooling)
    features = encoder.tokenize(BATCH[:12], "document")
    assert encoder.training_pass(features) is not None
    check_both(encoder, lambda e: e.embed(features, "document"))


@pytest.mark.parametrize("family", FAMILIES)
def test_cross_encoder_values_and_gradients_are_those_of_the_padded_pass(
    family: str, tokenizer: Any
) -> None:
    model = model_of(family, "ForSequenceClassification", tokenizer, num_labels=1)
    encoder = CrossEncoder(model, tokenizer)
    features = encoder.tokenize_pairs(list(zip(BATCH[::-1], BATCH, strict=True)))
    assert encoder.training_pass(features) is not None
    check_both(encoder, lambda e: e.logits(features))


def test_a_row_without_tokens_is_zeros(tokenizer: Any) -> None:
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer, normalize=False)
    features = encoder.tokenize(["river gold", "x", "stone"], "document")
    features["attention_mask"][1] = 0
    vectors = encoder.embed(features, "document")
    assert not vectors[1].any()
    vectors.sum().backward()  # type: ignore[no-untyped-call]
    assert all(
        bool(torch.isfinite(p.grad).all())
        for p in encoder.module.parameters()
        if p.grad is not None
    )
    check_both(encoder, lambda e: e.embed(features, "document"), rows=[0, 2])


@pytest.mark.parametrize("family", ["Bert", "MPNet"])
def test_a_batch_in_several_groups_is_the_same(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DenseEncoder(model_of(family, "Model", tokenizer), tokenizer)
    features = encoder.tokenize(BATCH, "document")
    for tokens in (1, 50):
        monkeypatch.setattr("sluice.encoders.transformer.packed.model.TOKENS", tokens)
        check_both(encoder, lambda e: e.embed(features, "document"))


@pytest.mark.parametrize("family", ["Bert", "MPNet"])
def test_double_precision_agrees_to_the_last_digits(family: str, tokenizer: Any) -> None:
    encoder = DenseEncoder(model_of(family, "Model", tokenizer).double(), tokenizer)
    features = encoder.tokenize(BATCH, "document")
    real = features["attention_mask"].bool()
    theirs = gradients(encoder, False, lambda e: e.hidden(features)[real])
    ours = gradients(encoder, True, lambda e: e.hidden(features)[real])
    assert ours[0].dtype is torch.float64
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-11, rtol=1e-10)
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, theirs[1][name], atol=1e-10, rtol=1e-9)


def test_frozen_parts_get_no_gradient(tokenizer: Any) -> None:
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer)
    for name, parameter in encoder.module.named_parameters():
        frozen = "embeddings" in name or "layer.0" in name
        parameter.requires_grad_(
            not frozen and ("bias" in name or "layer.1" in name or "key" in name)
        )
    features = encoder.tokenize(BATCH, "document")
    check_both(encoder, lambda e: e.embed(features, "document"))
    assert encoder.model.encoder.layer[0].output.dense.weight.grad is None


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_close(family: str, tokenizer: Any) -> None:
    model = model_of(family, "Model", tokenizer, initializer_range=0.05)
    encoder = DenseEncoder(model, tokenizer)
    features = encoder.tokenize(BATCH, "document")

    def half(e: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            vectors: Tensor = e.embed(features, "document")
        return vectors

    full = gradients(encoder, True, lambda e: e.embed(features, "document"))
    ours, theirs = gradients(encoder, True, half), gradients(encoder, False, half)
    assert ours[0].dtype is torch.float32
    assert (ours[0] * full[0]).sum(1).min() > 0.999
    errors = [_distance(found[1], full[1]) for found in (ours, theirs)]
    assert errors[0] < max(0.02, 1.5 * errors[1])


def _distance(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the relative distance of two gradients, all parameters together."""
    ours, theirs = (torch.cat([part[name].flatten() for name in right]) for part in (found, right))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("family", ["Bert", "MPNet", "DistilBert"])
def test_dropout_is_a_function_of_the_random_state(family: str, tokenizer: Any) -> None:
    encoder = DenseEncoder(model_of(family, "Model", tokenizer, still=False), tokenizer)
    features = encoder.tokenize(BATCH, "document")

    def seeded(seed: int) -> Measured:
        torch.manual_seed(seed)
        return gradients(encoder, True, lambda e: e.embed(features, "document"))

    first, again, other = seeded(1), seeded(1), seeded(2)
    assert torch.equal(first[0], again[0])
    assert all(torch.equal(first[1][name], again[1][name]) for name in first[1])
    assert not torch.equal(first[0], other[0])
    torch.manual_seed(1)
    with torch.no_grad():  # the first pass of gradient caching
        assert torch.equal(encoder.embed(features, "document"), first[0])
    encoder.module.eval()
    torch.manual_seed(1)
    still = encoder.embed(features, "document")
    torch.testing.assert_close(still, encoder.embed(features, "document"), rtol=0, atol=0)


def test_dropout_has_the_variance_of_the_padded_pass(tokenizer: Any) -> None:
    model = model_of("Bert", "Model", tokenizer, still=False)
    encoder = DenseEncoder(model, tokenizer, normalize=False)
    features = encoder.tokenize(["river gold stone", "a b c d e"] * 200, "document")
    spread = {}
    for packed in (True, False):
        encoder.packed_training = packed
        torch.manual_seed(5)
        with torch.no_grad():
            vectors = encoder.embed(features, "document").view(200, 2, -1)
        spread[packed] = vectors.mean(0), vectors.std(0)
    middle = (spread[True][0] - spread[False][0]).abs() / spread[False][1]
    assert float(middle.mean()) < 3 / 200**0.5
    ratio = spread[True][1] / spread[False][1]
    assert 0.9 < float(ratio.mean()) < 1.1


def test_dropout_drops_its_share() -> None:
    torch.manual_seed(3)
    for p in (0.1, 0.25, 0.9):
        dropout = Dropout(nn.Dropout(p))
        kept = dropout.kept((1000, 201))
        assert kept is not None
        assert abs(float(kept.float().mean()) - (1 - p)) < 0.005
        assert dropout.scale == pytest.approx(1 / (1 - p), rel=1e-3)
        assert set(kept.unique().tolist()) == {0, 1}
        # neighbours are independent, and so is what is drawn next
        whole = kept.float() - kept.float().mean()
        assert abs(float((whole[:, 1:] * whole[:, :-1]).mean())) < 2e-3
        after = dropout.kept((1000, 201))
        assert after is not None
        assert abs(float((whole * (after.float() - after.float().mean())).mean())) < 2e-3
    assert Dropout(nn.Dropout(0.5).eval()).kept((2,)) is None
    assert Dropout(nn.Dropout(0.0)).kept((2,)) is None
    assert Dropout(None).kept((2,)) is None
    everything = Dropout(nn.Dropout(1.0)).kept((4, 4))
    assert everything is not None
    assert not everything.any()


def test_parts_pass_the_numerical_check_of_gradients() -> None:
    torch.manual_seed(4)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    layers = [nn.Linear(3, 4).double(), nn.Linear(3, 2, bias=True).double()]
    assert torch.autograd.gradcheck(lambda x: linear(x, layers, torch.float64), random(5, 3))
    norm = nn.LayerNorm(4).double()
    still, dropping = Dropout(None), Dropout(nn.Dropout(0.4))

    def summed(residual: Tensor, branch: Tensor) -> Tensor:
        torch.manual_seed(6)
        return added_norm(residual, branch, dropping, norm)

    assert torch.autograd.gradcheck(summed, (random(3, 4), random(3, 4)))
    mask, present = [[1, 1, 0], [1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0], [1, 1, 0]]
    whole = packing_of(torch.tensor(present))
    partly = packing_of(torch.tensor(mask), torch.tensor(present))
    assert whole is not None
    assert partly is not None
    assert (partly.lengths, partly.seen) == ([3, 2, 2], [2, 2, 1])

    def attending(dropout: Dropout, runs: Packing) -> Callable[[Tensor, Tensor], Tensor]:
        def attend(projected: Tensor, bias: Tensor) -> Tensor:
            torch.manual_seed(7)
            return attended(projected, bias, layout_of(runs.lengths, runs.seen), 2, dropout)

        return attend

    for dropout, runs in itertools.product((still, dropping), (whole, partly)):
        inputs = random(7, 12), random(2, 3, 3)
        assert torch.autograd.gradcheck(attending(dropout, runs), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 511, 1500])
def test_products_are_right_in_every_size(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    x, weight, gradient = torch.randn(rows, 48), torch.randn(96, 48), torch.randn(rows, 96)
    bias = torch.randn(96)
    close = {"atol": 1e-3 if dtype is torch.float32 else 2.0, "rtol": 1e-3}
    found = product(x.to(dtype), weight.to(dtype), bias.to(dtype)).float()
    torch.testing.assert_close(found, x @ weight.T + bias, **close)
    found = weight_gradient(gradient.to(dtype), x.to(dtype)).float()
    torch.testing.assert_close(found, gradient.T @ x, **close)


def test_without_onednn_it_is_as_exact(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sluice.encoders.transformer.packed.training_layers.onednn", lambda *_: None
    )
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer)
    features = encoder.tokenize(BATCH, "document")
    check_both(encoder, lambda e: e.embed(features, "document"))


def test_what_it_does_not_know_runs_the_padded_pass(tokenizer: Any) -> None:
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer)
    features = encoder.tokenize(BATCH, "document")
    assert TrainingPass.from_batch(encoder.model, features) is not None
    left = {name: values.flip(1) for name, values in features.items()}
    assert TrainingPass.from_batch(encoder.model, left) is None
    assert (
        TrainingPass.from_batch(encoder.model, {**features, "position_ids": features["input_ids"]})
        is None
    )
    BiEncoderModule(encoder).activation_checkpointing_enable()
    assert TrainingPass.from_batch(encoder.model, features) is None
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer)
    handle = encoder.model.encoder.layer[0].register_forward_hook(lambda *_: None)
    assert TrainingPass.from_batch(encoder.model, features) is None
    handle.remove()
    encoder.model.encoder.layer[1].output.dropout = nn.AlphaDropout(0.1)
    assert TrainingPass.from_batch(encoder.model, features) is None


def test_a_model_that_differs_is_trained_by_its_own_pass(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = DenseEncoder(model_of("Bert", "Model", tokenizer), tokenizer)
    encoder.model.encoder.layer[1].attention.self.scaling = 0.9  # which no layer's part tells
    features = encoder.tokenize(BATCH, "document")
    with caplog.at_level(logging.WARNING, logger="sluice"):
        encoder.embed(features, "document")
    assert "differs from the ordinary one" in caplog.text
    assert not encoder.packed_training
    encoder.embed(features, "document")
