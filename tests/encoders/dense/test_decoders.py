"""Decoder models as encoders: the mask removed, padding on either side, the last token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_tokenizer

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.pooling import POOLINGS
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder

COMMON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 2,
    "eos_token_id": 3,
}  # fmt: skip
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": 8}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Qwen2": {**COMMON, "num_key_value_heads": 2},
    "Qwen3": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 32},
    "Gemma": GROUPED,
    "GPT2": {**GPT2, "bos_token_id": 2, "eos_token_id": 3},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
}
TEXTS = [
    "river gold stone water", "river", "query document of the stone and of water in a deep river",
    "rank", "train the model to learn",
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import transformers

    base, made = tmp_path_factory.mktemp("decoders"), {}
    for family, settings in FAMILIES.items():
        made[family] = base / family
        size = save_tokenizer(made[family]) + 4  # room for tokens that a family adds
        torch.manual_seed(4)
        config = getattr(transformers, family + "Config")(vocab_size=size, **settings)
        getattr(transformers, family + "Model")(config).save_pretrained(made[family])
    return made


def states(encoder: Any, rows: list[list[int]], *, left: bool = False) -> list[torch.Tensor]:
    """Return each text's states, without its padding."""
    features = padded(rows, left=left)
    with torch.no_grad():
        found = encoder.hidden(features)
    return [row[mask.bool()] for row, mask in zip(found, features["attention_mask"], strict=True)]


def padded(rows: list[list[int]], *, left: bool) -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids[number, place] = torch.tensor(row)
        mask[number, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_mask_the_last_token_changes_the_first_state(
    family: str, implementation: str, folders: dict[str, Path]
) -> None:
    if (family, implementation) == ("Bloom", "sdpa"):
        pytest.skip("transformers has no sdpa for it")
    one, other, longer = [5, 6, 7, 8], [5, 6, 7, 9], [10, 11, 12, 13, 14, 15]

    def changed(attention: str | None) -> list[bool]:
        encoder = DenseEncoder.from_pretrained(folders[family], attention=attention, device="cpu")
        encoder.model.set_attn_implementation(implementation)
        alone = [states(encoder, [row])[0] for row in (one, other)]
        beside = [states(encoder, [row, longer])[0] for row in (one, other)]
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(alone, beside, strict=True))
        return [bool((pair[0][0] - pair[1][0]).abs().max() > 1e-4) for pair in (alone, beside)]

    assert changed(None) == [False, False]
    assert changed("causal") == [False, False]
    assert changed("bidirectional") == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_either_side_and_any_batch_give_equal_vectors(
    family: str, attention: Any, folders: dict[str, Path]
) -> None:
    rows = [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15, 16], [17, 18]]
    encoder = DenseEncoder.from_pretrained(folders[family], attention=attention, device="cpu")
    for pooling in POOLINGS:
        encoder.pooling = pooling
        with torch.no_grad():
            right = encoder.embed(padded(rows, left=False), "query")
            left = encoder.embed(padded(rows, left=True), "query")
            alone = torch.cat([encoder.embed(padded([r], left=False), "query") for r in rows])
            turned = encoder.embed(padded(rows[::-1], left=True), "query").flip(0)
        for found in (left, alone, turned):
            assert torch.allclose(found, right, rtol=0, atol=1e-5), pooling


@pytest.mark.parametrize("left", [False, True])
def test_last_token_pooling_takes_the_last_real_token(left: bool, folders: dict[str, Path]) -> None:
    rows = [[5, 6, 7, 8], [9, 10]]
    encoder = DenseEncoder.from_pretrained(
        folders["Llama"], pooling="last", normalize=False, device="cpu"
    )
    with torch.no_grad():
        vectors = encoder.embed(padded(rows, left=left), "query")
    wanted = torch.stack([each[-1] for each in states(encoder, rows, left=left)])
    assert torch.equal(vectors, wanted)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "GPT2"])
def test_the_direction_is_saved_restored_and_part_of_the_fingerprint(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    causal = DenseEncoder.from_pretrained(folders[family], device="cpu")
    both = DenseEncoder.from_pretrained(folders[family], attention="bidirectional", device="cpu")
    vectors = both.encode_documents(TEXTS)
    assert np.abs(vectors - causal.encode_documents(TEXTS)).max() > 1e-3
    assert both.fingerprint != causal.fingerprint
    both.save_pretrained(tmp_path / "m")
    again = open_encoder(tmp_path / "m", device="cpu")
    assert np.abs(again.encode_documents(TEXTS) - vectors).max() < 1e-6
    assert again.fingerprint == both.fingerprint
    back = DenseEncoder.from_pretrained(tmp_path / "m", attention="causal", device="cpu")
    assert np.abs(back.encode_documents(TEXTS) - causal.encode_documents(TEXTS)).max() < 1e-6


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_sentence_transformers_reads_a_bidirectional_decoder_alike(
    pooling: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = DenseEncoder.from_pretrained(
        folders["Llama"], attention="bidirectional", pooling=pooling, device="cpu"
    )
    encoder.save_pretrained(tmp_path / "m")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    for texts in (TEXTS, TEXTS[:1]):  # with padding, and without
        assert np.abs(theirs.encode(texts) - encoder.encode_documents(texts)).max() < 1e-5


def test_encoders_attend_in_both_directions_already(bert: Path) -> None:
    plain = DenseEncoder.from_pretrained(bert, device="cpu")
    told = DenseEncoder.from_pretrained(bert, attention="bidirectional", device="cpu")
    assert told.fingerprint == plain.fingerprint
    with pytest.raises(ConfigError, match="BertModel cannot be made causal"):
        DenseEncoder.from_pretrained(bert, attention="causal", device="cpu")
    with pytest.raises(ConfigError, match="known: causal, bidirectional"):
        DenseEncoder.from_pretrained(bert, attention="both", device="cpu")  # type: ignore[arg-type]


def test_a_mask_that_stays_is_an_error(tmp_path: Path) -> None:
    from transformers import GPTNeoConfig, GPTNeoModel

    size = save_tokenizer(tmp_path)
    config = GPTNeoConfig(
        vocab_size=size, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64,
        attention_types=[[["global", "local"], 1]], bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    GPTNeoModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="GPTNeoModel cannot be made bidirectional"):
        DenseEncoder.from_pretrained(tmp_path, attention="bidirectional", device="cpu")


def test_gradients_reach_every_layer(folders: dict[str, Path]) -> None:
    encoder = DenseEncoder.from_pretrained(
        folders["Qwen2"], attention="bidirectional", device="cpu"
    )
    encoder.embed(encoder.tokenize(TEXTS, "query"), "query")[:, 0].sum().backward()
    assert all(p.grad is not None for p in encoder.module.parameters())
