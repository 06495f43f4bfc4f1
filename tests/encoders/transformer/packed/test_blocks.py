"""Packed passes of ModernBERT, NomicBERT, T5 and decoders against the models' own."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.transformer.decoder_attention import set_attention
from sluice.encoders.transformer.packed import model as packed_model
from sluice.encoders.transformer.packed.model import PackedTransformer

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 900, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
T5 = {
    "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 3, "num_heads": 4, "pad_token_id": 0,
}  # fmt: skip
GEMMA = {
    **GROUPED, "head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
BLOCKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ModernBERT": ("ModernBert", "Model", {
        **SMALL, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 8,
        "global_attn_every_n_layers": 2,
    }),
    "NomicBERT": ("NomicBert", "Model", SMALL),
    "T5": ("T5", "EncoderModel", T5),
    "T5, gated": ("T5", "EncoderModel", {**T5, "feed_forward_proj": "gated-gelu"}),
    "Llama": ("Llama", "Model", {**GROUPED, "rope_parameters": LINEAR}),
    "Qwen2": ("Qwen2", "Model", GROUPED),
    "Qwen3": ("Qwen3", "Model", {
        **GROUPED, "head_dim": 16, "use_sliding_window": True, "sliding_window": 6,
        "max_window_layers": 1,
    }),
    "Mistral": ("Mistral", "Model", {**GROUPED, "sliding_window": 7}),
    "Gemma 3": ("Gemma3Text", "Model", {**GEMMA, "use_bidirectional_attention": True}),
    "Gemma 3, causal": ("Gemma3Text", "Model", GEMMA),
}  # fmt: skip
TEXTS = [
    "", "the", "river gold", "gold " * 40, "water of the sluice " * 9, "river gold", "a b c d e",
    *("stone rank deep " * n for n in range(1, 12)), "query " * 300,
]  # fmt: skip


def made(family: str, size: int, head: str | None = None, **more: Any) -> Any:
    name, kind, settings = BLOCKS[family]
    torch.manual_seed(3)
    config = getattr(transformers, name + "Config")(vocab_size=size, **settings, **more)
    model = getattr(transformers, name + (head or kind))._from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms begin at one, where a lost one would not show
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def models(tokenizer: Any) -> dict[str, Any]:
    return {family: made(family, len(tokenizer)) for family in BLOCKS}


def both(encoder: Any) -> tuple[Any, Any]:
    assert encoder.network() is not None
    packed = encoder.encode_documents(TEXTS)
    encoder.packed = False
    return packed, encoder.encode_documents(TEXTS)


@pytest.mark.thorough
@pytest.mark.parametrize("family", BLOCKS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_those_of_the_ordinary_pass(
    family: str, pooling: Any, models: Any, tokenizer: Any
) -> None:
    options = {"pooling": pooling, "batch_tokens": 200, "document_length": 280}
    encoder = DenseEncoder(models[family], tokenizer, **options)
    packed, padded = both(encoder)
    np.testing.assert_allclose(packed, padded, atol=1e-5)
    encoder.packed = True
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS[:-1]])
    np.testing.assert_allclose(packed[:-1], alone, atol=1e-5)
    backwards = encoder.encode_documents(TEXTS[::-1])[::-1]
    np.testing.assert_allclose(packed, backwards, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("family", BLOCKS)
def test_bfloat16_stays_close_to_float32(family: str, models: Any, tokenizer: Any) -> None:
    full = DenseEncoder(models[family], tokenizer).encode_documents(TEXTS)
    packed, padded = both(DenseEncoder(models[family], tokenizer, dtype="bfloat16"))
    if packed.dtype == np.float32 and np.array_equal(packed, full):
        pytest.skip("this processor has no bfloat16 arithmetic")
    least = (packed * full).sum(1).min()
    assert least > 0.99
    assert least > (padded * full).sum(1).min() - 0.005


@pytest.mark.parametrize("family", BLOCKS)
def test_texts_that_end_in_tokens_nobody_sees(family: str, models: Any) -> None:
    model = models[family]
    network = PackedTransformer.from_model(model, torch.float32)
    assert network is not None
    lengths, seen = [12, 12, 5], [9, 5, 5]
    ids = torch.arange(sum(lengths)) % 50 + 4
    with torch.inference_mode():
        found = network.states(ids, lengths, seen=seen)
        for text, states in enumerate(torch.split(found, lengths)):
            row = torch.split(ids, lengths)[text][None]
            mask = (torch.arange(lengths[text]) < seen[text]).long()[None]
            one = model(input_ids=row, attention_mask=mask).last_hidden_state[0]
            torch.testing.assert_close(
                states[: seen[text]], one[: seen[text]], atol=1e-5, rtol=1e-5
            )
            assert bool(torch.isfinite(states).all())


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["ModernBERT", "NomicBERT", "T5", "Qwen3", "Gemma 3"])
def test_several_top_layers(family: str, models: Any, tokenizer: Any) -> None:
    packed, padded = both(DenseEncoder(models[family], tokenizer, top_layers=2))
    np.testing.assert_allclose(packed, padded, atol=1e-5)


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Mistral"])
def test_decoders_that_look_ahead(family: str, tokenizer: Any) -> None:
    model = made(family, len(tokenizer))
    causal = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    set_attention(model, "bidirectional")
    encoder = DenseEncoder(model, tokenizer)
    packed, padded = both(encoder)
    np.testing.assert_allclose(packed, padded, atol=1e-5)
    assert np.abs(packed - causal).max() > 0.01


def test_segments_reach_the_embedding(models: Any) -> None:
    model = models["NomicBERT"]
    network = PackedTransformer.from_model(model, torch.float32)
    assert network is not None
    ids, types = torch.arange(4, 13), torch.tensor([0, 0, 1, 1, 1, 0, 0, 0, 1])
    with torch.inference_mode():
        found = network.states(ids, [5, 4], types)
        for part in (slice(0, 5), slice(5, 9)):
            one = model(input_ids=ids[None, part], token_type_ids=types[None, part])
            torch.testing.assert_close(found[part], one.last_hidden_state[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["ModernBERT", "T5", "Qwen3"])
def test_training_sees_what_encoding_sees(family: str, tokenizer: Any) -> None:
    encoder = DenseEncoder(made(family, len(tokenizer)), tokenizer)
    optimizer = torch.optim.SGD(encoder.module.parameters(), lr=0.1)
    features = encoder.tokenize(TEXTS[:8], "document")
    before = encoder.encode_documents(TEXTS[:8])
    vectors = encoder.embed(features, "document")
    np.testing.assert_allclose(before, vectors.detach(), atol=1e-5)
    weights = torch.linspace(-1, 1, vectors.numel()).view_as(vectors)
    (vectors * weights).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    after = encoder.encode_documents(TEXTS[:8])
    assert np.abs(after - before).max() > 1e-4
    with torch.no_grad():
        np.testing.assert_allclose(after, encoder.embed(features, "document"), atol=1e-5)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
UNKNOWN = [
    ("angles by the longest text of a batch", "Llama", {"rope_parameters": DYNAMIC}),
    ("both directions twice over", "Gemma 3", {"is_causal": False}),
    ("capped scores", "Gemma 3, causal", {"attn_logit_softcapping": 20.0}),
]


@pytest.mark.parametrize(("what", "family", "settings"), UNKNOWN)
def test_settings_unknown_here_run_the_ordinary_pass(
    what: str, family: str, settings: Any, tokenizer: Any
) -> None:
    name, kind, usual = BLOCKS[family]
    config = getattr(transformers, name + "Config")(
        vocab_size=len(tokenizer), **{**usual, **settings}
    )
    model = getattr(transformers, name + kind)._from_config(config).eval()
    assert PackedTransformer.from_model(model, torch.float32) is None, what


def test_hooks_and_other_layers_run_the_ordinary_pass(tokenizer: Any) -> None:
    class Adapter(torch.nn.Linear):
        pass

    model = made("Qwen3", len(tokenizer))
    handle = model.layers[0].register_forward_hook(lambda *_: None)
    assert PackedTransformer.from_model(model, torch.float32) is None
    handle.remove()
    assert PackedTransformer.from_model(model, torch.float32) is not None
    model.layers[1].mlp.up_proj = Adapter(32, 48)
    assert PackedTransformer.from_model(model, torch.float32) is None


@pytest.mark.parametrize("family", ["ModernBERT", "NomicBERT"])
def test_splade_weights_are_those_of_the_ordinary_pass(family: str, tokenizer: Any) -> None:
    encoder = SpladeEncoder(made(family, len(tokenizer), "ForMaskedLM"), tokenizer)
    assert encoder.network() is not None
    packed = encoder.encode_documents(TEXTS).toarray()
    encoder.packed = False
    np.testing.assert_allclose(packed, encoder.encode_documents(TEXTS).toarray(), atol=2e-5)
    assert packed.max() > 0.1


@pytest.mark.parametrize(
    ("family", "pooling", "packs"),
    [("ModernBERT", "cls", True), ("ModernBERT", "mean", False), ("NomicBERT", None, True)],
)
def test_cross_encoder_scores_are_those_of_the_ordinary_pass(
    family: str, pooling: str | None, packs: bool, tokenizer: Any
) -> None:
    settings = {"num_labels": 1, **({"classifier_pooling": pooling} if pooling else {})}
    model = made(family, len(tokenizer), "ForSequenceClassification", **settings)
    encoder = CrossEncoder(model, tokenizer)
    assert (encoder.network() is not None) == packs
    pairs = list(zip(TEXTS[::-1], TEXTS, strict=True))
    packed = encoder.score(pairs)
    encoder.packed = False
    np.testing.assert_allclose(packed, encoder.score(pairs), atol=2e-5)
    assert np.ptp(packed) > 0.01


def test_a_model_that_does_not_fit_twice_runs_the_ordinary_pass(
    models: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    linears = [part for part in models["Qwen3"].modules() if isinstance(part, torch.nn.Linear)]
    size = 4 * sum(part.weight.numel() for part in linears)
    monkeypatch.setattr(packed_model, "_SMALL", 0)
    for free, fits in ((2 * size, True), (2 * size - 1, False), (None, True)):
        monkeypatch.setattr(packed_model, "free_memory_bytes", lambda free=free: free)
        with caplog.at_level("INFO", "sluice"):
            packed = PackedTransformer.from_model(models["Qwen3"], torch.float32)
        assert (packed is not None) == fits
        assert ("needs a copy of the weights" in caplog.text) != fits
        caplog.clear()


def test_windows_read_otherwise_are_noticed(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = packed_model.blocks_of

    def wider(model: Any) -> Any:
        blocks = right(model)
        assert blocks is not None
        sights = {kind: sight._replace(window=None) for kind, sight in blocks.sights.items()}
        sights["sliding_attention"] = blocks.sights["sliding_attention"]._replace(window=5)
        return blocks._replace(sights=sights)

    monkeypatch.setattr(packed_model, "blocks_of", wider)
    encoder = DenseEncoder(made("ModernBERT", len(tokenizer)), tokenizer)  # its window is 4
    assert encoder.network() is None
    assert "differs from the ordinary one" in caplog.text
