"""Folders of PyLate, sentence-transformers 6 and ColBERT encode here as they do there."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_architectures import save_architecture
from tiny_models import save_tokenizer, vocabulary

from sluice.encoders import DenseEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.tokens import max_sim
from sluice.encoders.model_files import open_encoder

QUERIES = ["what is the river stone", "gold", "the river, water: " + "sluice " * 40, ""]
DOCUMENTS = ["the river, stone. water!", "gold - sluice", "", "a deep, sparse. query " * 30]


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def check_same_as_theirs(folder: Path, **options: Any) -> TokenEncoder:
    """Vectors and MaxSim as sentence-transformers has them, here and after saving."""
    from sentence_transformers import MultiVectorEncoder

    peer = MultiVectorEncoder(str(folder), device="cpu")
    ours = TokenEncoder.from_pretrained(folder, **options)
    theirs = {
        "query": peer.encode_query(QUERIES, convert_to_numpy=True),
        "document": peer.encode_document(DOCUMENTS, convert_to_numpy=True),
    }
    ours.save_pretrained(folder / "again")
    for encoder in (ours, TokenEncoder.from_pretrained(folder / "again")):
        queries, documents = encoder.encode_queries(QUERIES), encoder.encode_documents(DOCUMENTS)
        for vectors, side in ((queries, "query"), (documents, "document")):
            assert vectors.lengths.tolist() == [len(text) for text in theirs[side]]
            for text, other in zip(vectors, theirs[side], strict=True):
                np.testing.assert_allclose(by_size(text), by_size(other), atol=1e-5)
        scores = peer.similarity(*theirs.values()).numpy()
        np.testing.assert_allclose(max_sim(queries, documents), scores, rtol=1e-6, atol=1e-5)
    return ours


def by_size(vectors: Any) -> Any:
    """The vectors in an order of their own, as pooled ones are not in the text's."""
    return vectors[np.lexsort(np.round(vectors, 3).T)]


def drawn(shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def native(base: Path, folder: Path, *, pooling: Any = None, **transformer: Any) -> Path:
    """A folder that sentence-transformers 6 saved."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    tokens = {"module_input_name": "token_embeddings"}
    modules = [
        Transformer(str(base), **transformer),
        Dense(32, 24, activation_function=torch.nn.Tanh(), use_residual=True, **tokens),
        Dense(24, 8, bias=False, activation_function=torch.nn.Identity(), **tokens),
        MultiVectorMask([".", ",", "river"]),
        Normalize(**tokens),
        *([pooling] if pooling is not None else []),
    ]
    prompts = {"query": "query: ", "document": "the "}
    MultiVectorEncoder(modules=modules, prompts=prompts).save_pretrained(str(folder))
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("transformer", [
    {"query_length": 24, "document_length": 40},
    {"document_length": 40, "query_expansion": {"strategy": "fixed", "length": 16}},
    {"query_expansion": {"strategy": "fixed", "length": 16, "attend": True}},
    {"query_length": 24, "query_expansion": {"strategy": "min", "length": 12}},
    {"query_expansion": {"strategy": "min", "length": 12, "token": "[UNK]"}},
], ids=str)  # fmt: skip
def test_folder_of_sentence_transformers(
    bert: Path, tmp_path: Path, transformer: dict[str, Any]
) -> None:
    encoder = check_same_as_theirs(native(bert, tmp_path / "native", **transformer))
    assert encoder.dim == 8
    assert isinstance(open_encoder(tmp_path / "native"), TokenEncoder)


@pytest.mark.parametrize("options", [
    {"pool_factor": 2}, {"pool_factor": 3, "num_protected_tokens": 0},
    {"pool_factor": 1.5, "num_protected_tokens": 4, "normalize_embeddings": False},
], ids=str)  # fmt: skip
def test_pooling_of_sentence_transformers(
    bert: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    pooling = HierarchicalTokenPooling(**options)
    folder = native(bert, tmp_path / "pooled", pooling=pooling, document_length=50)
    encoder = check_same_as_theirs(folder)
    assert (encoder.pool_factor, encoder.protected_tokens) == (
        options["pool_factor"], options.get("num_protected_tokens", 1),
    )  # fmt: skip


def pylate(base: Path, folder: Path, markers: tuple[str, str], **settings: Any) -> Path:
    """A folder in PyLate's layout: markers are tokens that its tokenizer has."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(list(markers))
    torch.manual_seed(3)
    model = AutoModel.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    names = [("", "sentence_transformers.models.Transformer"),
             ("1_Dense", "pylate.models.Dense.Dense")]  # fmt: skip
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(names)
    ]
    write(folder / "modules.json", entries)
    activation = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": 32, "out_features": 8, "bias": False}
    write(folder / "1_Dense" / "config.json", {**sizes, "activation_function": activation})
    save_file({"linear.weight": drawn((8, 32))}, folder / "1_Dense" / "model.safetensors")
    own = {"query_prefix": markers[0], "document_prefix": markers[1], **settings}
    write(folder / "config_sentence_transformers.json", own)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 39, "do_lower_case": False})
    return folder


COMMON = {"model_type": "ColBERT", "query_length": 16, "document_length": 40}


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [
    COMMON,
    {**COMMON, "attend_to_expansion_tokens": True, "skiplist_words": []},
    {**COMMON, "do_query_expansion": False, "skiplist_words": [".", "water"]},
    {**COMMON, "prompts": {"query": "query: ", "document": "[D] the "}},
    {"query_length": 20},  # a length of documents in sentence_bert_config.json
], ids=str)  # fmt: skip
def test_folder_of_pylate(bert: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = pylate(bert, tmp_path / "pylate", ("[Q] ", "[D] "), **settings)
    encoder = check_same_as_theirs(folder)
    marker = encoder.tokenizer.convert_tokens_to_ids("[Q] ")
    assert encoder.token_ids(["gold"], "query")[0][:2] == [2, marker]
    again = json.loads((folder / "again" / "config_sentence_transformers.json").read_text())
    assert again["model_type"] == "ColBERT"
    assert again["query_prefix"] == "[Q] "


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ["Roberta", "MPNet", "DistilBert", "ModernBert"])
def test_architectures(tmp_path: Path, architecture: str) -> None:
    base = save_architecture(tmp_path / "base", architecture, "dense")
    folder = pylate(base, tmp_path / "pylate", ("[Q] ", "[D] "), **COMMON)
    check_same_as_theirs(folder)


def stanford(folder: Path, **metadata: Any) -> Path:
    """A folder of ColBERT's own: an unused token marks each side."""
    import transformers

    words = [*vocabulary(), "[unused0]", "[unused1]", "[unused7]"]
    save_tokenizer(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    transformers.BertTokenizer(
        str(folder / "vocab.txt"), model_max_length=64
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(11)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.BertModel(config)
    weights = {f"bert.{name}": value for name, value in model.state_dict().items()}
    save_file({**weights, "linear.weight": drawn((8, 32))}, folder / "model.safetensors")
    write(folder / "config.json", {**config.to_dict(), "architectures": ["HF_ColBERT"]})
    if metadata:
        write(folder / "artifact.metadata", metadata)
    return folder


@pytest.mark.parametrize("metadata", [
    {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 16,
     "doc_maxlen": 40, "mask_punctuation": True, "attend_to_mask_tokens": False, "dim": 8},
    {"doc_token_id": "[unused7]", "mask_punctuation": False, "attend_to_mask_tokens": True},
    {},
], ids=str)  # fmt: skip
def test_folder_of_colbert(tmp_path: Path, metadata: dict[str, Any]) -> None:
    folder = stanford(tmp_path / "colbert", **metadata)
    encoder = check_same_as_theirs(folder)
    assert isinstance(open_encoder(folder), TokenEncoder)
    assert encoder.markers["document"] == metadata.get("doc_token_id", "[unused1]")
    assert encoder.skip_words == (
        tuple(string.punctuation) if metadata.get("mask_punctuation", True) else ()
    )
    with pytest.raises(ModelError, match="type: tokens"):
        DenseEncoder.from_pretrained(folder)


def test_vocabulary_with_unused_tokens_is_marked_by_them(tmp_path: Path) -> None:
    folder = stanford(tmp_path / "bare")
    state = load_file(folder / "model.safetensors")
    state.pop("linear.weight")
    save_file(state, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**settings, "architectures": ["BertModel"]})
    started = TokenEncoder.from_pretrained(folder, dim=8)
    assert started.markers == {"query": "[unused0]", "document": "[unused1]"}
    assert len(started.tokenizer) == settings["vocab_size"]
    ids = started.token_ids(["gold"], "query")[0]
    assert ids[1] == settings["vocab_size"] - 3
    started.save_pretrained(folder / "started")
    check_same_as_theirs(folder / "started")


def test_dense_folder_is_a_start_and_its_projection_maps_tokens(bert: Path, tmp_path: Path) -> None:
    dense = DenseEncoder.from_pretrained(bert, projection=8)
    dense.save_pretrained(tmp_path / "dense")
    started = TokenEncoder.from_pretrained(tmp_path / "dense", query_length=16)
    weight = started.projection.linear.weight  # type: ignore[union-attr]
    assert torch.equal(weight, dense.projection.linear.weight)  # type: ignore[union-attr]
    started.save_pretrained(tmp_path / "started")
    check_same_as_theirs(tmp_path / "started")


def test_lengths_given_anew(bert: Path, tmp_path: Path) -> None:
    folder = pylate(bert, tmp_path / "pylate", ("[Q] ", "[D] "), **COMMON)
    longer = TokenEncoder.from_pretrained(folder, query_length=24, document_length=12)
    assert longer.encode_queries(["gold"]).lengths.tolist() == [24]
    assert longer.encode_documents(["gold " * 30]).lengths.tolist() == [12]
    with pytest.raises(ConfigError, match="query_length"):
        TokenEncoder.from_pretrained(folder, query_length=65)


def test_first_dimensions_of_a_trained_model_without_projection(bert: Path, tmp_path: Path) -> None:
    TokenEncoder.from_pretrained(bert, projection=False).save_pretrained(tmp_path / "whole")
    whole = TokenEncoder.from_pretrained(tmp_path / "whole").encode_documents(DOCUMENTS)
    short = TokenEncoder.from_pretrained(tmp_path / "whole", dim=5)
    first = whole.values[:, :5] / np.linalg.norm(whole.values[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(short.encode_documents(DOCUMENTS).values, first, atol=1e-5)
    short.save_pretrained(tmp_path / "short")
    again = TokenEncoder.from_pretrained(tmp_path / "short")
    assert (again.dim, again.fingerprint) == (5, short.fingerprint)
    with pytest.raises(ConfigError, match="dim: 99; the model's vectors have"):
        TokenEncoder.from_pretrained(tmp_path / "whole", dim=99)
    with pytest.raises(ConfigError, match=r"^dim is 0"):
        TokenEncoder.from_pretrained(bert, dim=0)


def test_first_dimensions_of_a_trained_model(bert: Path, tmp_path: Path) -> None:
    folder = pylate(bert, tmp_path / "pylate", ("[Q] ", "[D] "), **COMMON)
    whole = TokenEncoder.from_pretrained(folder).encode_documents(DOCUMENTS)
    short = TokenEncoder.from_pretrained(folder, dim=5).encode_documents(DOCUMENTS)
    expected = whole.values[:, :5] / np.linalg.norm(whole.values[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(short.values, expected, atol=1e-5)
    with pytest.raises(ConfigError, match="dim"):
        TokenEncoder.from_pretrained(folder, dim=9)


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "order": ("modules.json", [{"path": "", "type": "x.Normalize"}], "made of Transformer"),
    "path": ("modules.json", [{"path": "../1", "type": "x.Dense"}], "leads out of the folder"),
    "prefix": ("config_sentence_transformers.json", {"query_prefix": 3}, "expected a text"),
    "words": (
        "config_sentence_transformers.json", {**COMMON, "query_prefix": "", "skiplist_words": [1]},
        "expected a list of words",
    ),
    "length": (
        "config_sentence_transformers.json", {**COMMON, "document_length": "long"},
        "expected a number of tokens",
    ),
    "flag": (
        "config_sentence_transformers.json",
        {**COMMON, "query_prefix": "", "attend_to_expansion_tokens": "false"},
        "expected true or false",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_settings_are_model_errors(bert: Path, tmp_path: Path, damage: str) -> None:
    folder = pylate(bert, tmp_path / "pylate", ("[Q] ", "[D] "), **COMMON)
    name, value, message = DAMAGE[damage]
    write(folder / name, value)
    with pytest.raises(ModelError, match=message):
        TokenEncoder.from_pretrained(folder)


@pytest.mark.parametrize(("place", "change", "message"), [
    ("3_MultiVectorMask", {"skiplist_tasks": ["query"]}, "documents alone"),
    ("3_MultiVectorMask", {"keep_only_token_ids": [4]}, "for images"),
    ("5_HierarchicalTokenPooling", {"pool_factor": 0.5}, "pool_factor is 0.5"),
    ("5_HierarchicalTokenPooling", {"pool_factor": 2, "tasks": ["query", "document"]}, "alone"),
    ("4_Normalize", {"module_input_name": "sentence_embedding"}, "token_embeddings"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(
    bert: Path, tmp_path: Path, place: str, change: dict[str, Any], message: str
) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    folder = native(bert, tmp_path / "native", pooling=HierarchicalTokenPooling(2))
    write(folder / place / "config.json", change)
    with pytest.raises(ModelError, match=message):
        TokenEncoder.from_pretrained(folder)


def test_projection_as_a_pickle_is_refused(tmp_path: Path) -> None:
    folder = stanford(tmp_path / "colbert")
    state = load_file(folder / "model.safetensors")
    linear = state.pop("linear.weight")
    save_file(state, folder / "model.safetensors")
    torch.save({"linear.weight": linear}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no linear\.weight"):
        TokenEncoder.from_pretrained(folder)
