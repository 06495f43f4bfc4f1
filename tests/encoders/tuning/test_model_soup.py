"""Model soups: identity, linear parts, greedy choice, and models that do not mix."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.tuning.soup import greedy_soup, soup


def moved(model: Path, folder: Path, seed: int, only: str = "") -> Path:
    """A copy of a model whose weights (those named ``only``) took a random step."""
    shutil.copytree(model, folder)
    torch.manual_seed(seed)
    for file in folder.rglob("*.safetensors"):
        tensors = safetensors.torch.load_file(file)
        step = {
            name: tensor + 0.1 * torch.randn_like(tensor) if only in name else tensor
            for name, tensor in tensors.items()
        }
        safetensors.torch.save_file(step, file, {"format": "pt"})
    return folder


@pytest.fixture
def dense(bert: Path, tmp_path: Path) -> Path:
    encoder = DenseEncoder.from_pretrained(bert, projection=8, normalize=False, query_prompt="q: ")
    encoder.save_pretrained(tmp_path / "dense")
    return tmp_path / "dense"


def test_a_model_with_itself_is_itself(dense: Path, tmp_path: Path) -> None:
    for number, weights in enumerate((None, [0.2, 0.5, 0.3], [1, 0, 0])):
        made = soup([dense] * 3, tmp_path / str(number), weights=weights)
        for file in ("model.safetensors", "2_Dense/model.safetensors"):
            before, after = (safetensors.torch.load_file(f / file) for f in (dense, made))
            assert before.keys() == after.keys()
            assert all(torch.equal(before[name], after[name]) for name in before)
        assert open_encoder(made).fingerprint == open_encoder(dense).fingerprint


def test_weights_are_means_of_each_tensor(dense: Path, tmp_path: Path) -> None:
    models = [moved(dense, tmp_path / f"m{seed}", seed) for seed in range(3)]
    made = soup(models, tmp_path / "soup", weights=[2, 1, 1])
    read = [safetensors.torch.load_file(m / "model.safetensors") for m in (made, *models)]
    for name, tensor in read[0].items():
        a, b, c = (each[name].double() for each in read[1:])
        torch.testing.assert_close(tensor.double(), a / 2 + b / 4 + c / 4, atol=1e-7, rtol=1e-6)
    assert open_encoder(made).prompts["query"] == "q: "


def test_a_soup_of_linear_heads_is_the_mean_of_their_outputs(
    dense: Path, pair_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    heads = []
    for seed in range(2):
        folder = moved(dense, tmp_path / f"d{seed}", seed, only="linear")
        assert json.loads((folder / "2_Dense/config.json").read_text())["activation_function"]
        heads.append(folder)
    mixed = open_encoder(soup(heads, tmp_path / "soup")).encode_documents(texts)
    apart = [open_encoder(head).encode_documents(texts) for head in heads]
    np.testing.assert_allclose(mixed, np.mean(apart, axis=0), atol=1e-6)
    crosses = [moved(pair_bert, tmp_path / f"c{s}", s, only="classifier") for s in range(2)]
    made = soup(crosses, tmp_path / "cross", weights=[3, 1])
    pairs = [("gold", text) for text in texts]
    scores = [CrossEncoder.from_pretrained(f).score(pairs) for f in (made, *crosses)]
    np.testing.assert_allclose(scores[0], 0.75 * scores[1] + 0.25 * scores[2], atol=1e-6)


def test_encoders_in_several_folders_mix_too(
    bert: Path, masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    spec = {"type": "dense", "model": str(bert)}
    TowerEncoder.from_pretrained(query=spec, document=spec).save_pretrained(tmp_path / "towers")
    SpladeEncoder.from_pretrained(masked_bert, query_model="idf").save_pretrained(tmp_path / "idf")
    for name in ("towers", "idf"):
        other = moved(tmp_path / name, tmp_path / f"{name}-2", 3)
        made = soup([tmp_path / name, other], tmp_path / f"{name}-soup")
        files = sorted(p.relative_to(made) for p in made.rglob("*.safetensors"))
        assert {f.parts[0] for f in files} == {"query", "document"}
        for file in files:
            a, b, c = (
                safetensors.torch.load_file(m / file) for m in (tmp_path / name, other, made)
            )
            assert all(torch.allclose((a[n] + b[n]) / 2, c[n], atol=1e-7) for n in a)
        assert open_encoder(made).encode_queries(texts).shape[0] == len(texts)


def test_a_greedy_soup_takes_what_does_not_hurt(dense: Path, tmp_path: Path) -> None:
    models = [moved(dense, tmp_path / f"m{seed}", seed) for seed in range(4)]
    goal = safetensors.torch.load_file(
        soup([models[1], models[3]], tmp_path / "goal") / "model.safetensors"
    )

    def near(folder: Path) -> float:
        found = safetensors.torch.load_file(folder / "model.safetensors")
        return -float(sum((found[name] - goal[name]).square().sum() for name in goal))

    made = greedy_soup(models, tmp_path / "soup", near)
    assert set(made.chosen) == {str(models[1]), str(models[3])}
    assert made.value == pytest.approx(near(made.path)) == pytest.approx(0.0, abs=1e-6)
    assert [score for _, score in made.scores] == sorted((near(m) for m in models), reverse=True)
    worst = greedy_soup(models, tmp_path / "alone", lambda f: 1.0 if f == models[2] else 0.0)
    assert worst.chosen == (str(models[2]),)


def test_models_that_differ_are_refused_by_name(dense: Path, bert: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(dense, tmp_path / name)
        return tmp_path / name

    pooled = copy("pooled")
    settings = json.loads((pooled / "1_Pooling/config.json").read_text())
    settings |= {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    (pooled / "1_Pooling/config.json").write_text(json.dumps(settings))
    worded = copy("worded")
    words = json.loads((worded / "tokenizer.json").read_text())
    words["model"]["vocab"]["gold"], words["model"]["vocab"]["of"] = 9, 8
    (worded / "tokenizer.json").write_text(json.dumps(words))
    shaped = copy("shaped")
    tensors = safetensors.torch.load_file(shaped / "2_Dense/model.safetensors")
    wide = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
    safetensors.torch.save_file(wide, shaped / "2_Dense/model.safetensors", {"format": "pt"})
    fewer = copy("fewer")
    tensors = safetensors.torch.load_file(fewer / "2_Dense/model.safetensors")
    safetensors.torch.save_file(
        {"linear.weight": tensors["linear.weight"]}, fewer / "2_Dense/model.safetensors"
    )
    deep = save_model(tmp_path / "deep", "Model", num_hidden_layers=1)
    DenseEncoder.from_pretrained(bert).save_pretrained(tmp_path / "plain")
    for other, message in (
        (pooled, r"1_Pooling/config\.json: pooling_mode_cls_token is True, and False in"),
        (worded, r"tokenizer\.json: model\.vocab\.gold is 9"),
        (shaped, r"2_Dense/model\.safetensors: linear\.\w+ is torch.float32 \[16"),
        (fewer, r"linear\.bias; a soup needs equal models"),
        (tmp_path / "plain", r"no 2_Dense/config\.json"),
    ):
        with pytest.raises(ModelError, match=message):
            soup([dense, other], tmp_path / "soup")
        assert not (tmp_path / "soup").exists()
    with pytest.raises(ModelError, match="num_hidden_layers is 1, and 2"):
        soup([bert, deep], tmp_path / "soup")


def test_weights_and_folders_are_checked(dense: Path, tmp_path: Path) -> None:
    for weights, message in (
        ([1.0], "1 for 2 models"),
        ([0.0, 0.0], "one above 0"),
        ([1.5, -0.5], "0 or more"),
        ([float("nan"), 1.0], "0 or more"),
    ):
        with pytest.raises(ConfigError, match=message):
            soup([dense, dense], tmp_path / "soup", weights=weights)
    with pytest.raises(ConfigError, match="no models"):
        soup([], tmp_path / "soup")
    with pytest.raises(ConfigError, match="is one of the models"):
        soup([dense, dense], dense)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        soup([tmp_path / "empty"], tmp_path / "soup")
