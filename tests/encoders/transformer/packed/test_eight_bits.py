"""Products of bytes and the kernels around them, against the same in floats."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel
from sluice.encoders.transformer.packed.eight_bits import ByteProduct, multiplies_bytes
from sluice.encoders.transformer.packed.kernels import softmax_halves
from sluice.encoders.transformer.tokens import side_by_side

SMALL = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.05, "pad_token_id": 0,
}  # fmt: skip
WIDE = {**SMALL, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 600}
SETTINGS: dict[str, dict[str, Any]] = {
    "Bert": WIDE,
    "Roberta": {**WIDE, "hidden_act": "gelu_new"},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "pad_token_id": 0},
}
TEXTS = ["", "the", "river gold", "gold " * 40, "water of the sluice " * 9, "query " * 700] + [
    " ".join(["stone", "rank", "deep"] * n)[: 3 * n] for n in range(1, 30)
]

pytestmark = pytest.mark.skipif(not multiplies_bytes(), reason="torch has no product of bytes here")


def made(family: str, tokenizer: Any) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, family + "Config")(vocab_size=len(tokenizer), **SETTINGS[family])
    return getattr(transformers, family + "Model")._from_config(config).eval()


def off(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.fixture
def bytewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_ARITHMETIC", "int8")


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 3), (32, 1), (384, 400), (96, 1000)])
@pytest.mark.parametrize("gelu", [False, True])
def test_products_are_those_of_floats(inputs: int, outputs: int, gelu: bool) -> None:
    torch.manual_seed(2)
    weight, bias, x = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(9, inputs)
    expected = x @ weight.T + bias
    product = ByteProduct(weight, bias, gelu=gelu)
    assert off(product(x), functional.gelu(expected) if gelu else expected) < 0.02
    assert product(x[:0]).shape == (0, outputs)
    assert torch.equal(product(x[3:4])[0], product(x)[3])
    if not gelu:
        assert torch.allclose(product.rows(slice(1, None))(x), product(x)[:, 1:])
    assert torch.isfinite(product(torch.zeros(1, inputs))).all()


def test_inputs_that_stand_out_cost_the_others_nothing() -> None:
    torch.manual_seed(2)
    weight, x = torch.randn(64, 128), torch.randn(50, 128)
    plain = off(ByteProduct(weight, None)(x), x @ weight.T)
    x[:, [5, 77, 120]] *= 1000
    weight[:, [5, 77, 120]] /= 1000
    assert off(ByteProduct(weight, None)(x), x @ weight.T) < 1.5 * plain


@pytest.mark.parametrize("scale", [1.0, 32**-0.5])
@pytest.mark.parametrize("length", [1, 7, 200])
def test_the_softmax_of_halves_is_torchs(length: int, scale: float) -> None:
    torch.manual_seed(2)
    scores = (4 * torch.randn(5, 3, length)).bfloat16()
    scores[0, 0], scores[1, 0, 1:] = -70, float("-inf")
    scores[2] += 300
    expected = torch.softmax(scale * scores.float(), dim=-1)
    softmax_halves(scores.view(torch.int16).numpy().view(np.uint16).reshape(-1, length), scale)
    assert torch.allclose(scores.float(), expected, atol=1e-6, rtol=2**-8)


@pytest.mark.parametrize("family", SETTINGS)
def test_vectors_stay_close(family: str, tokenizer: Any, bytewise: None) -> None:
    model = made(family, tokenizer)
    full = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    encoder = DenseEncoder(model, tokenizer, dtype="int8", batch_tokens=300)
    assert encoder.dtype is torch.int8
    assert (encoder.encode_documents(TEXTS) * full).sum(1).min() > 0.999
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS])
    assert (alone * full).sum(1).min() > 0.999


def test_rotated_and_gated_layers_and_pairs(tokenizer: Any, bytewise: None) -> None:
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, pad_token_id=0, num_labels=1, local_attention=8,
    )  # fmt: skip
    torch.manual_seed(4)
    model = transformers.ModernBertForSequenceClassification._from_config(config).eval()
    pairs = [("river gold", text or "a") for text in TEXTS[:30]]
    full = CrossEncoder(model, tokenizer).score(pairs)
    scores = CrossEncoder(model, tokenizer, dtype="int8").score(pairs)
    assert np.abs(full - scores).max() < 0.03 * np.abs(full).max()


def test_a_model_that_is_far_off_in_bytes_runs_in_floats(
    tokenizer: Any, bytewise: None, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setitem(SETTINGS["Bert"], "initializer_range", 0.2)
    model = made("Bert", tokenizer)
    full = DenseEncoder(model, tokenizer, dtype="float32").encode_documents(TEXTS)
    real = ByteProduct.__call__
    monkeypatch.setattr(ByteProduct, "__call__", lambda self, x: real(self, x) * 0.66)
    encoder = DenseEncoder(model, tokenizer, dtype="int8")
    assert (encoder.encode_documents(TEXTS) * full).sum(1).min() > 0.998
    assert "dtype: int8: BertModel is" in caplog.text


def test_what_has_no_packed_pass_says_so(
    tokenizer: Any, bytewise: None, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = DenseEncoder(made("Bert", tokenizer), tokenizer, dtype="int8")
    encoder.packed = False
    encoder.encode_documents(["gold"])
    assert "dtype: int8: BertModel has no packed pass; " in caplog.text
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)
    writer = transformers.GPT2LMHeadModel._from_config(config)
    with pytest.raises(ConfigError, match="dtype: int8 is for encoders and cross-encoders"):
        LocalLanguageModel(writer, tokenizer, dtype="int8")
    assert LocalLanguageModel(writer, tokenizer, dtype="auto").dtype is not torch.int8
    assert DenseEncoder(made("Bert", tokenizer), tokenizer, dtype="auto").dtype is torch.int8


def test_threads_have_items_of_their_own_in_order() -> None:
    before, seen = torch.get_num_threads(), []
    done: list[int] = []
    work = done.append
    for item in side_by_side(work, range(20), 3):
        assert item in done
        seen.append(item)
    assert seen == list(range(20))
    assert sorted(done) == seen
    assert torch.get_num_threads() == before

    def fails(item: int) -> None:
        if item == 4:
            raise ValueError("four")

    passed = side_by_side(fails, range(20), 3)
    with pytest.raises(ValueError, match="four"):
        seen.extend(passed)
    assert seen[20:] == [0, 1, 2, 3]
