"""Connected adapters and joined prefixes: their formulas in float64, gradients, old folders."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model, save_tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaModel
from tuned_encoders import TEXTS, embedded, move

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.adapters import added_modules
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.tuning.adapters import Aside
from sluice.encoders.tuning.prefix import GatedPairs, JoinedPairs
from sluice.encoders.tuning.tune import tune
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.experiments.training.checks import check_training
from sluice.training.batches.forward import BiEncoderModule


def tuned(folder: Path, settings: dict[str, Any]) -> DenseEncoder:
    """An encoder whose added parts are not what they start as."""
    encoder = DenseEncoder.from_pretrained(folder, device="cpu")
    tune(encoder, settings)
    move(encoder)
    return encoder


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


@pytest.mark.parametrize("variant", ["S", "P", "G"])
def test_the_path_is_its_formula(bert: Path, variant: str) -> None:
    encoder = tuned(bert, {"type": "iaa", "variant": variant, "reduction": 8, "inside": False})
    plain = DenseEncoder.from_pretrained(bert, device="cpu").model.double()
    features = encoder.tokenize(TEXTS, "document")
    encoder.module.double()
    ours = encoder.model(**features).last_hidden_state
    mask = features["attention_mask"]
    extended = torch.zeros(len(mask), 1, 1, mask.shape[1], dtype=torch.float64)
    extended.masked_fill_(mask[:, None, None] == 0, -1e30)
    states = plain.embeddings(features["input_ids"])
    path: Any = 0
    for block, layer in zip(encoder.model.encoder.layer, plain.encoder.layer, strict=True):
        returned = layer(states, extended)
        returned = returned[0] if isinstance(returned, tuple) else returned
        aside = block.aside
        read = (states if variant == "P" else returned) + path
        inner = gelu(read @ aside.down.weight.T + aside.down.bias)
        path = path + inner @ aside.up.weight.T + aside.up.bias
        share = 1 / (1 + torch.exp(-aside.gate)) if variant == "G" else 1.0
        states = returned + share * path
    real = mask.bool()
    torch.testing.assert_close(ours[real], states[real], rtol=0, atol=1e-10)
    ours[real].square()[:, 0].sum().backward()
    mine = {name: p.grad.clone() for name, p in encoder.model.named_parameters() if "aside" in name}
    encoder.module.zero_grad()
    states[real].square()[:, 0].sum().backward()
    for name, gradient in mine.items():
        theirs = encoder.model.get_parameter(name).grad
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=1e-10)
    assert ("gate" in "".join(mine)) == (variant == "G")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_reach_the_lowest_module_by_the_path(tmp_path: Path, seed: int) -> None:
    """On twelve random blocks: the same modules, connected and each for itself."""
    folder = save_model(tmp_path / "deep", "Model", num_hidden_layers=12, initializer_range=0.05)
    encoder = DenseEncoder.from_pretrained(folder, device="cpu")
    tune(encoder, {"type": "iaa", "reduction": 8}, seed=seed)
    features = encoder.tokenize(TEXTS, "document")
    aim = torch.randn(len(TEXTS), 32, generator=torch.Generator().manual_seed(seed))
    norms = {}
    for connected in (True, False):
        for module in encoder.module.modules():
            if isinstance(module, Aside) and not connected:
                module.forward = scattered(module)  # type: ignore[method-assign]
        encoder.module.zero_grad()
        (encoder.embed(features, "document") * aim).sum().backward()
        gradient = encoder.model.encoder.layer[0].aside.up.weight.grad
        norms[connected] = float(gradient.norm())
    assert norms[True] > 1.2 * norms[False]


def scattered(module: Aside) -> Any:
    def forward(read: Tensor, returned: Tensor) -> Tensor:
        added: Tensor = returned + module.up(torch.nn.functional.gelu(module.down(returned)))
        return added

    return forward


def test_passes_of_threads_and_copies_do_not_meet(bert: Path) -> None:
    encoder = tuned(bert, {"type": "iaa"})
    alone = [encoder.encode_queries([text]) for text in TEXTS]
    found: dict[int, np.ndarray] = {}

    def encode(number: int) -> None:
        for _ in range(5):
            found[number] = encoder.encode_queries([TEXTS[number]])

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(len(TEXTS))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number, vectors in enumerate(alone):
        np.testing.assert_array_equal(found[number], vectors)
    assert not encoder.model.aside_path.states  # nothing is left of any pass
    copied = copy.deepcopy(encoder)
    assert copied.model.aside_path is not encoder.model.aside_path
    assert copied.model.encoder.layer[1].aside.path is copied.model.aside_path
    np.testing.assert_array_equal(copied.encode_queries(TEXTS[:1]), alone[0])


def test_activation_checkpointing_is_refused(bert: Path) -> None:
    section = TrainingSection(
        encoder={"type": "dense", "model": "m"}, loss={"type": "info_nce"}, tuning={"type": "iaa"},
        trainer={"activation_checkpointing": True},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"train\.x\.trainer\.activation_checkpointing: .* iaa"):
        check_training(section, "train.x")
    encoder = tuned(bert, {"type": "iaa"})
    BiEncoderModule(encoder).activation_checkpointing_enable()
    encoder.module.train()
    with pytest.raises(ConfigError, match="iaa connects the blocks"):
        encoder.embed(encoder.tokenize(TEXTS, "query"), "query")


def test_a_joined_prefix_is_its_formula(bert: Path) -> None:
    encoder = tuned(bert, {"type": "prefix", "tokens": 3})
    encoder.module.double()
    own = encoder.model.encoder.layer[1].attention.self
    draw = torch.Generator().manual_seed(4)
    states = torch.randn((2, 5, 32), dtype=torch.float64, generator=draw)
    mask = torch.zeros(2, 1, 1, 5, dtype=torch.float64)
    mask[1, ..., 3:] = float("-inf")
    ours = own(states, mask)[0]
    query, key, value = (
        layer(states).view(2, 5, 4, 8).transpose(1, 2) for layer in (own.query, own.key, own.value)
    )
    assert isinstance(own.prefix, JoinedPairs)
    for text, length in ((0, 5), (1, 3)):
        for head in range(4):
            keys = torch.cat([own.prefix.keys[head], key[text, head, :length]])
            values = torch.cat([own.prefix.values[head], value[text, head, :length]])
            shares = torch.softmax(query[text, head] @ keys.T / 8**0.5, dim=-1)
            theirs = shares @ values
            torch.testing.assert_close(
                ours[text, :, 8 * head : 8 * head + 8], theirs, rtol=0, atol=1e-10
            )
    gradients = torch.autograd.grad(ours.square().sum(), list(own.prefix.parameters()))
    assert all(bool(each.abs().min() > 0) for each in gradients)


def test_a_decoder_sees_the_prefix_and_nothing_after(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=save_tokenizer(tmp_path / "m"), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    LlamaModel(config).save_pretrained(tmp_path / "m")
    encoder = DenseEncoder.from_pretrained(tmp_path / "m", device="cpu", pooling="last")
    tune(encoder, {"type": "prefix", "tokens": 3})
    with torch.no_grad():
        texts = torch.tensor([[5, 6, 7, 8]])
        before = encoder.model(input_ids=texts).last_hidden_state
        move(encoder)
        moved = encoder.model(input_ids=texts).last_hidden_state
        texts[0, 3] = 9
        other = encoder.model(input_ids=texts).last_hidden_state
    assert bool(((moved - before).abs().amax(2) > 1e-4).all())
    torch.testing.assert_close(other[:, :3], moved[:, :3], rtol=0, atol=1e-6)
    assert float((other[:, 3] - moved[:, 3]).abs().max()) > 1e-3
    both = encoder.embed(encoder.tokenize(TEXTS, "query"), "query").detach()  # of several lengths
    for row, text in enumerate(TEXTS):
        alone = encoder.embed(encoder.tokenize([text], "query"), "query")[0].detach()
        torch.testing.assert_close(both[row], alone, rtol=0, atol=1e-5)


def test_a_gated_prefix_of_before_its_name_opens(bert: Path, tmp_path: Path) -> None:
    encoder = tuned(bert, {"type": "gated_prefix", "tokens": 4})
    encoder.save_pretrained(tmp_path / "m")
    settings = tmp_path / "m" / "adapter" / "adapter.json"
    facts = json.loads(settings.read_text())
    facts["tuning"]["type"] = "prefix"
    settings.write_text(json.dumps(facts))
    opened = open_encoder(tmp_path / "m")
    np.testing.assert_allclose(embedded(opened), embedded(encoder), atol=1e-6)
    parts = added_modules(opened.model).values()
    assert all(isinstance(part, GatedPairs) for part in parts)
    weights = tmp_path / "m" / "adapter" / "adapter.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if not k.endswith("gates")}, weights)
    assert all(
        isinstance(p, JoinedPairs)
        for p in added_modules(open_encoder(tmp_path / "m").model).values()
    )
