"""Encoders that are changed, copied, shared by threads, or given odd texts."""

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.identity import modules_of, parameters_of
from sluice.encoders.transformer.tokens import TokenBatch, tokenized
from sluice.encoders.vectors.cache import VectorCache

TEXTS = ["river gold", "the water of", "a b c d e f g", "gold"]
KINDS = ("dense", "splade", "cross_encoder")


@pytest.fixture(params=KINDS)
def encoder(request: Any, bert: Path, masked_bert: Path, pair_bert: Path) -> Any:
    if request.param == "dense":
        return DenseEncoder.from_pretrained(bert)
    if request.param == "splade":
        return SpladeEncoder.from_pretrained(masked_bert)
    return CrossEncoder.from_pretrained(pair_bert)


def test_modules_and_parameters_are_those_of_torch_in_its_order(encoder: Any) -> None:
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared, nn.LayerNorm(2)))
    odd = nn.ModuleDict({"a": inner, "b": shared, "c": nn.Linear(2, 2, bias=False)})
    odd["c"].weight = shared.weight
    odd.register_module("none", None)
    for module in (odd, encoder.module):
        modules = modules_of(module)
        assert list(map(id, modules)) == list(map(id, module.modules()))
        assert list(map(id, parameters_of(modules))) == list(map(id, module.parameters()))


def outputs(encoder: Any) -> np.ndarray:
    if isinstance(encoder, CrossEncoder):
        return encoder.score([(text, "gold") for text in TEXTS])
    found = encoder.encode_documents(TEXTS)
    return found if isinstance(found, np.ndarray) else found.toarray()


def ordinary(encoder: Any) -> np.ndarray:
    encoder.packed = False
    found = outputs(encoder)
    encoder.packed = True
    return found


def shaken(encoder: Any) -> None:
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)


def test_weights_replaced_where_older_ones_were_are_seen(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    layer = encoder.model.encoder.layer[0].output.dense
    for _ in range(20):
        before = outputs(encoder), encoder.fingerprint
        for _ in range(2):  # the second is often put where the first encoded ones were
            layer.weight = nn.Parameter(torch.randn(layer.weight.shape))
        assert encoder.fingerprint != before[1]
        after = outputs(encoder)
        assert np.abs(after - before[0]).max() > 1e-3
        np.testing.assert_allclose(after, ordinary(encoder), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_copy_is_an_encoder_of_its_own(encoder: Any, used: bool, copied: Any) -> None:
    before = outputs(encoder) if used else None
    other = copied(encoder)
    assert other.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(outputs(other), outputs(encoder))
    shaken(other)
    np.testing.assert_allclose(outputs(other), ordinary(other), atol=2e-5)
    assert other.packed
    assert other.network() is not None
    if before is not None:
        np.testing.assert_array_equal(outputs(encoder), before)


def test_a_hook_after_the_first_call_is_run(encoder: Any) -> None:
    before = outputs(encoder)
    trunk = encoder.model.base_model
    handle = trunk.embeddings.register_forward_hook(lambda *parts: parts[2] * 0.5 + 1)
    assert np.abs(outputs(encoder) - before).max() > 1e-4
    handle.remove()
    np.testing.assert_array_equal(outputs(encoder), before)


def test_projections_of_unlike_biases_run_the_ordinary_pass(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    encoder.model.encoder.layer[0].attention.self.key.bias = None
    assert encoder.network() is None
    assert np.isfinite(outputs(encoder)).all()


def test_wrapped_projections_run_the_ordinary_pass(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    before = outputs(encoder)
    attention = encoder.model.encoder.layer[0].attention.self
    attention.query = nn.Sequential(attention.query, nn.Tanh())
    assert encoder.network() is None
    assert np.abs(outputs(encoder) - before).max() > 1e-4


def test_a_new_activation_is_used(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    before = outputs(encoder)
    encoder.model.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
    assert np.abs(outputs(encoder) - before).max() > 1e-4
    np.testing.assert_allclose(outputs(encoder), ordinary(encoder), atol=1e-5)


@pytest.mark.thorough
def test_threads_encode_without_dropout_while_the_module_is_in_training_mode(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, batch_tokens=30)
    for part in encoder.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    texts = TEXTS * 50
    expected = encoder.encode_documents(texts)
    encoder.module.train()
    errors: list[float] = []

    def encode(count: int) -> None:
        for _ in range(5):
            found = encoder.encode_documents(texts[:count])
            errors.append(float(np.abs(found - expected[:count]).max()))

    threads = [threading.Thread(target=encode, args=(count,)) for count in (200, 50, 120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 15
    assert max(errors) < 1e-5
    assert encoder.module.training


def test_each_part_goes_back_to_its_own_mode(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    encoder.module.train()
    encoder.model.embeddings.eval()  # frozen
    outputs(encoder)
    assert encoder.model.encoder.training
    assert not encoder.model.embeddings.training


def test_what_the_tokenizer_was_told_is_in_the_fingerprint(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, document_length=8)
    usual = encoder.fingerprint
    encoder.tokenizer.truncation_side = "left"
    left = encoder.fingerprint
    encoder.tokenizer.truncation_side = "right"
    assert encoder.fingerprint == usual != left
    encoder.tokenizer.split_special_tokens = True
    assert encoder.fingerprint not in (usual, left)


def test_texts_may_be_an_array_and_not_one_text(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    np.testing.assert_array_equal(encoder.encode_documents(np.array(TEXTS)), outputs(encoder))
    with pytest.raises(DataError, match="put it into a list"):
        encoder.encode_queries("gold")


def test_what_is_no_text_is_named_by_its_place_in_the_input(bert: Path, pair_bert: Path) -> None:
    texts: list[Any] = ["gold"] * 2500 + [None]
    with pytest.raises(ModelError, match="text 2500 is a NoneType"):
        DenseEncoder.from_pretrained(bert).encode_documents(texts)
    pairs: list[Any] = [("gold", "river"), ("gold", None)]
    with pytest.raises(ModelError, match="pair 1 is"):
        CrossEncoder.from_pretrained(pair_bert).score(pairs)


def test_lone_surrogates_are_read_as_replacement_characters(bert: Path, pair_bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    found = encoder.encode_documents(["gold", "river \ud800 gold"])
    np.testing.assert_allclose(found, encoder.encode_documents(["gold", "river \ufffd gold"]))
    scores = CrossEncoder.from_pretrained(pair_bert).score([("\udc00", "gold"), ("a", "b")])
    assert np.isfinite(scores).all()


def test_a_prompt_without_tokens(bert: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    encoder = DenseEncoder.from_pretrained(bert)
    plain = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    encoder.tokenizer.backend_tokenizer.post_processor = plain
    made = DenseEncoder(encoder.model, encoder.tokenizer, query_prompt=" ")
    assert made.prompt_tokens["query"] == 0


@pytest.mark.parametrize("size", [0, -5, "40", 2.5])
def test_a_batch_has_a_number_of_tokens(size: Any, bert: Path) -> None:
    with pytest.raises(ConfigError, match="batch_tokens"):
        DenseEncoder.from_pretrained(bert, batch_tokens=size)


def test_tokens_do_not_depend_on_the_portions(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = DenseEncoder.from_pretrained(bert).tokenizer
    pairs = TEXTS, TEXTS[::-1]
    whole = tokenized(tokenizer, *pairs, length=9, types=True)
    for size in (1, 12, 25):
        monkeypatch.setattr("sluice.encoders.transformer.tokens.PORTION", size)
        parts = tokenized(tokenizer, *pairs, length=9, types=True)
        assert [ids.tolist() for ids in parts.ids] == [ids.tolist() for ids in whole.ids]
        assert parts.types is not None
        assert whole.types is not None
        assert [t.tolist() for t in parts.types] == [t.tolist() for t in whole.types]


def test_few_texts_of_the_vocabulary_s_width_are_there_at_a_time(
    masked_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert)
    expected = encoder.encode_documents(TEXTS * 5)
    monkeypatch.setattr("sluice.encoders.splade.encoder.TEXTS", 3)
    sizes = []
    weigh = encoder._weights

    def seen(batch: TokenBatch, network: Any) -> Any:
        sizes.append(len(batch.rows))
        return weigh(batch, network)

    monkeypatch.setattr(encoder, "_weights", seen)
    found = encoder.encode_documents(TEXTS * 5)
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-6)
    assert max(sizes) == 3
    assert sum(sizes) == 20


def test_a_cache_that_cannot_be_written_is_named() -> None:
    identity = {"encoder": "a", "fingerprint": "b", "store": "float32"}
    with (
        pytest.raises(ConfigError, match="SLUICE_CACHE"),
        VectorCache(Path("/dev/null/x"), identity),
    ):
        pass


@pytest.mark.parametrize(("name", "value"), [("num_attention_heads", 8), ("hidden_act", "relu")])
def test_the_same_weights_in_another_architecture_are_another_encoder(
    bert: Path, tmp_path: Path, name: str, value: object
) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    encoder.save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, name: value}))
    changed = DenseEncoder.from_pretrained(tmp_path / "m")
    assert np.abs(outputs(changed) - outputs(encoder)).max() > 1e-3
    assert changed.fingerprint != encoder.fingerprint
