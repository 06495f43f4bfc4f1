"""sentence-transformers' modules after the transformer: as it reads them, or refused by name."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer import modules as theirs

from sluice.encoders import DenseEncoder, TowerEncoder, as_encoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder

OURS = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean", "lasttoken": "last",
}  # fmt: skip


@pytest.fixture(scope="module")
def transformer(bert: Path) -> Any:
    return theirs.Transformer(str(bert))


def norm(size: int) -> Any:
    module = theirs.LayerNorm(size)
    torch.manual_seed(size)
    with torch.no_grad():
        module.norm.weight.normal_(1, 0.3)
        module.norm.bias.normal_(0, 0.3)
    return module


def dense(inputs: int, outputs: int, activation: Any, **options: Any) -> Any:
    torch.manual_seed(inputs + outputs)
    return Dense(inputs, outputs, activation_function=activation, **options)


HEADS: dict[str, list[Any]] = {
    "two Dense": [dense(32, 48, torch.nn.Identity(), bias=False), dense(48, 8, torch.nn.Tanh())],
    "LayerNorm": [norm(32)],
    "Dense, LayerNorm, Normalize": [dense(32, 16, torch.nn.GELU()), norm(16), Normalize()],
    "Normalize, Dense": [Normalize(), dense(32, 16, torch.nn.SiLU())],
    "Normalize twice": [Normalize(), norm(32), Normalize(), Normalize()],
}


@pytest.mark.thorough
@pytest.mark.parametrize("head", HEADS)
def test_modules_over_vectors(
    head: str, transformer: Any, texts: list[str], tmp_path: Path
) -> None:
    model = SentenceTransformer(
        modules=[transformer, theirs.Pooling(32, "mean"), *HEADS[head]], device="cpu"
    )
    model.save_pretrained(str(tmp_path / "m"))
    expected = model.encode(texts)
    ends = isinstance(HEADS[head][-1], Normalize)
    ours = open_encoder(tmp_path / "m", normalize=ends or None, device="cpu")
    assert isinstance(ours, DenseEncoder)
    assert ours.normalize  # as the folder compares by the cosine, with the module and without
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(ours.encode_documents(texts), unit, atol=1e-5)
    ours = DenseEncoder.from_pretrained(tmp_path / "m", normalize=ends, device="cpu")
    np.testing.assert_allclose(ours.encode_documents(texts), expected, atol=1e-5)
    assert ours.dim == expected.shape[1]
    one_by_one = np.concatenate([ours.encode_documents([text]) for text in texts[::-1]])[::-1]
    np.testing.assert_allclose(one_by_one, expected, atol=1e-5)
    embedded = ours.embed(ours.tokenize(texts, "document"), "document")
    np.testing.assert_allclose(embedded.detach().numpy(), expected, atol=1e-5)

    ours.save_pretrained(tmp_path / "ours")
    again = open_encoder(tmp_path / "ours", device="cpu")
    assert again.fingerprint == ours.fingerprint
    np.testing.assert_allclose(again.encode_documents(texts), expected, atol=1e-5)
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(back.encode(texts), expected, atol=1e-5)
    kinds = [type(module).__name__ for module in model.children()]
    assert [type(module).__name__ for module in back.children()] == kinds


@pytest.mark.thorough
@pytest.mark.parametrize(
    "modes", [*([mode] for mode in OURS), ["cls", "mean"], ["lasttoken", "max", "mean"], list(OURS)]
)
def test_every_pooling_and_several_at_once(
    modes: list[str], transformer: Any, texts: list[str], tmp_path: Path
) -> None:
    pooling = theirs.Pooling(32, tuple(modes), include_prompt=False)
    model = SentenceTransformer(
        modules=[transformer, pooling], device="cpu", prompts={"query": "gold: "},
        similarity_fn_name="dot",
    )  # fmt: skip
    model.save_pretrained(str(tmp_path / "m"))
    ours = DenseEncoder.from_pretrained(tmp_path / "m", device="cpu")
    assert ours.dim == ours.pooled_width == 32 * len(modes)
    named = OURS[modes[0]] if len(modes) == 1 else tuple(OURS[mode] for mode in modes)
    assert ours.pooling == named
    expected = {"query": model.encode_query(texts), "document": model.encode_document(texts)}
    ours.save_pretrained(tmp_path / "ours")
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(back.encode_query(texts), expected["query"], atol=1e-5)
    for encoder in (ours, DenseEncoder.from_pretrained(tmp_path / "ours", device="cpu")):
        np.testing.assert_allclose(encoder.encode_queries(texts), expected["query"], atol=1e-5)
        np.testing.assert_allclose(encoder.encode_documents(texts), expected["document"], atol=1e-5)


def test_several_poolings_of_ones_own(bert: Path, texts: list[str], tmp_path: Path) -> None:
    """Side by side in the order given, cut to the first dimensions, projected, normalised."""
    options: dict[str, Any] = {"normalize": False, "device": "cpu"}
    parts = [
        DenseEncoder.from_pretrained(bert, pooling=each, **options).encode_documents(texts)
        for each in ("mean", "cls")
    ]
    both = DenseEncoder.from_pretrained(bert, pooling=["mean", "cls"], **options)
    np.testing.assert_allclose(both.encode_documents(texts), np.hstack(parts), atol=1e-6)
    cut = DenseEncoder.from_pretrained(bert, pooling=["mean", "cls"], dim=40, **options)
    np.testing.assert_allclose(cut.encode_documents(texts), np.hstack(parts)[:, :40], atol=1e-6)
    cut.save_pretrained(tmp_path / "cut")
    again = DenseEncoder.from_pretrained(tmp_path / "cut", device="cpu")
    assert (again.fingerprint, again.dim) == (cut.fingerprint, 40)
    one = DenseEncoder.from_pretrained(bert, pooling=["mean"], **options)
    assert one.fingerprint == DenseEncoder.from_pretrained(bert, **options).fingerprint
    assert len({both.fingerprint, cut.fingerprint, one.fingerprint}) == 3
    deep = DenseEncoder.from_pretrained(bert, pooling=["mean", "cls"], projection=4, **options)
    assert deep.projection is not None
    with torch.no_grad():
        wanted = deep.projection(torch.from_numpy(np.hstack(parts))).numpy()
    np.testing.assert_allclose(deep.encode_documents(texts), wanted, atol=1e-5)
    for wrong in ([], ["mean", "men"], ["mean", 3]):
        with pytest.raises(ConfigError, match="pooling: "):
            DenseEncoder.from_pretrained(bert, pooling=wrong, **options)  # type: ignore[arg-type]


def test_dimensions_are_cut_after_a_norm(
    transformer: Any, texts: list[str], tmp_path: Path
) -> None:
    """All of a norm's dimensions decide the first."""
    modules = [transformer, theirs.Pooling(32, "mean"), norm(32), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save_pretrained(str(tmp_path / "m"))
    cut = DenseEncoder.from_pretrained(tmp_path / "m", dim=10, device="cpu")
    expected = model.encode(texts)[:, :10]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(cut.encode_documents(texts), expected, atol=1e-5)


@pytest.fixture
def folder(bert: Path, tmp_path: Path) -> Path:
    DenseEncoder.from_pretrained(bert, projection=8).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("CNN", "SentenceTransformer("),
        ("LSTM", "SentenceTransformer("),
        ("BoW", "SentenceTransformer("),
        ("WordEmbeddings", "SentenceTransformer("),
        ("WordWeights", "SentenceTransformer("),
        ("WeightedLayerPooling", "SentenceTransformer("),
    ],
)
def test_other_modules_are_refused_by_name(kind: str, remedy: str, folder: Path) -> None:
    path = folder / "modules.json"
    (folder / "sluice.json").unlink()
    entries = json.loads(path.read_text())
    for place in (0, 1):
        entries[place]["type"] = f"sentence_transformers.models.{kind}"
        path.write_text(json.dumps(entries))
        for refused in (kind_of, DenseEncoder.from_pretrained, as_encoder):
            with pytest.raises(
                ModelError, match=rf"no module {kind}; in Python, give .*{re.escape(remedy)}"
            ):
                refused(folder)  # type: ignore[operator]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "os.system"}, "activation_function is 'os.system'"),
        ({"activation_function": "torch.nn.Softmax"}, "with one of Identity, Tanh"),
        ({"activation_function": "torch.hub.load.Tanh"}, "activation_function is 'torch.hub"),
        ({"activation_function": None}, "activation_function is None"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"in_features": 31}, "expected 32"),
        ({"out_features": 10**13}, r"linear\.weight is \[8, 32\], expected \[10000000000000, 32\]"),
    ],
)
def test_a_dense_module_that_does_not_fit(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    change(folder / "2_Dense" / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        DenseEncoder.from_pretrained(folder)


def test_a_dense_module_without_an_activation_has_tanh(folder: Path, texts: list[str]) -> None:
    config = folder / "2_Dense" / "config.json"
    facts = json.loads(config.read_text())
    del facts["activation_function"]
    config.write_text(json.dumps(facts))
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    found = DenseEncoder.from_pretrained(folder, device="cpu").encode_documents(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_poolings_that_do_not_exist(folder: Path) -> None:
    for mode in ("middle", ["cls", 3], []):
        change(folder / "1_Pooling" / "config.json", pooling_mode=mode)
        with pytest.raises(ModelError, match=r"pooling_mode is .*known: cls, max, mean"):
            DenseEncoder.from_pretrained(folder)


def heads() -> dict[str, list[Any]]:
    """Layers of each side alone, over one transformer."""
    return {
        "query": [dense(32, 8, torch.nn.Identity())],
        "document": [dense(32, 12, torch.nn.Tanh()), dense(12, 8, torch.nn.Identity())],
    }


def test_a_router_after_the_pooling(transformer: Any, texts: list[str], tmp_path: Path) -> None:
    """Old examples of Asym: one transformer, a Dense of its own for each side."""
    model = SentenceTransformer(
        modules=[transformer, theirs.Pooling(32, "mean"), Router(heads()), Normalize()],
        device="cpu",
    )
    model.save_pretrained(str(tmp_path / "m"))
    asym = tmp_path / "asym"  # as written before version 5
    shutil.copytree(tmp_path / "m", asym)
    (asym / "2_Router").rename(asym / "2_Asym")
    (asym / "2_Asym" / "router_config.json").rename(asym / "2_Asym" / "config.json")
    entries = json.loads((asym / "modules.json").read_text())
    entries[2] |= {"path": "2_Asym", "type": "sentence_transformers.models.Asym"}
    (asym / "modules.json").write_text(json.dumps(entries))
    expected = {"query": model.encode(texts, task="query"),
                "document": model.encode(texts, task="document")}  # fmt: skip
    for folder in (tmp_path / "m", asym):
        ours = open_encoder(folder, device="cpu")
        assert isinstance(ours, TowerEncoder)
        np.testing.assert_allclose(ours.encode_queries(texts), expected["query"], atol=1e-5)
        np.testing.assert_allclose(ours.encode_documents(texts), expected["document"], atol=1e-5)
    ours.save_pretrained(tmp_path / "ours")
    back = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(back.encode_query(texts), expected["query"], atol=1e-5)
    np.testing.assert_allclose(back.encode_document(texts), expected["document"], atol=1e-5)


def test_a_router_that_leads_out_of_the_folder(folder: Path) -> None:
    path = folder / "modules.json"
    (folder / "sluice.json").unlink()
    entries = json.loads(path.read_text())
    entries[1] |= {"type": "sentence_transformers.models.Router", "path": "../elsewhere"}
    path.write_text(json.dumps(entries))
    with pytest.raises(ModelError, match="leads out of the folder"):
        kind_of(folder)


def test_orders_that_no_model_has(folder: Path) -> None:
    path = folder / "modules.json"
    (folder / "sluice.json").unlink()
    entries = json.loads(path.read_text())
    first = [entry["type"].rpartition(".")[2] for entry in entries]
    assert first == ["Transformer", "Pooling", "Dense", "Normalize"]
    for order in itertools.permutations(entries):
        if [order[0], order[1]] == entries[:2]:
            continue
        path.write_text(json.dumps(order))
        with pytest.raises(ModelError, match=r"modules\.json.*expected Transformer, Pooling"):
            kind_of(folder)


@pytest.mark.parametrize("place", ["x" * 5_000, "a\0b"])
def test_a_path_that_no_folder_has(place: str, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "m")
    for kind in ("Transformer", "Router"):
        entry = {"idx": 0, "name": "0", "path": place, "type": f"sentence_transformers.{kind}"}
        (tmp_path / "m" / "modules.json").write_text(json.dumps([entry]))
        with pytest.raises(ModelError, match=str(tmp_path)):
            open_encoder(tmp_path / "m")
