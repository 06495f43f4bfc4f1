"""GGUF files: a tiny one of known weights becomes a folder; others are refused."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.fetching.gguf import import_gguf
from sluice.encoders.model_files.registry import LANGUAGE_MODEL, kind_of
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

gguf = pytest.importorskip("gguf")
WIDTH, WORDS = 32, ["<|endoftext|>", "a", "b", "c", "ab", "Ġ", "d", "e"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A Llama of one layer, whose table of words is in codes of 4 bits."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_merges(["a b"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("token_embd.weight", gguf.quantize(table(), kind), raw_dtype=kind)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.eye(WIDTH, dtype=np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file):
        write()
    writer.write_tensors_to_file()
    writer.close()
    return path


def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype(np.float32)


def test_it_becomes_a_folder_of_what_its_codes_stand_for(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiny"
    import_gguf(file, output)
    assert kind_of(output) == LANGUAGE_MODEL
    weights = load_file(output / "model.safetensors")
    kind = gguf.GGMLQuantizationType.Q4_1
    codes = gguf.dequantize(gguf.quantize(table(), kind), kind)
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"], codes)
    model = LocalLanguageModel.from_pretrained(output)
    assert model.token_ids(["abc"]) is not None
    with pytest.raises(ConfigError, match="exists already; give another folder with --output"):
        import_gguf(file, output)


def test_a_file_that_is_cut_leaves_nothing(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(ModelError, match="transformers does not read it as GGUF"):
        import_gguf(file, tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
