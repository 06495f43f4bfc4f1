"""``sluice model soup``: uniform, weighted and greedy soups, and what it refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Call
from small_world import write_beir
from tiny_models import save_model

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.model_files.registry import open_encoder


@pytest.fixture
def models(bert: Path, tmp_path: Path) -> list[Path]:
    made = []
    for number in range(3):
        encoder = DenseEncoder.from_pretrained(bert)
        torch.manual_seed(number)
        with torch.no_grad():
            for parameter in encoder.module.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        encoder.save_pretrained(tmp_path / f"m{number}")
        made.append(tmp_path / f"m{number}")
    return made


def test_a_soup_is_a_model_with_a_manifest(
    sluice: Call, models: list[Path], tmp_path: Path
) -> None:
    code, out, _ = sluice(
        "model", "soup", *models, "--output", tmp_path / "soup", "--weights", "2,1,1"
    )
    assert (code, out.strip()) == (0, f"{tmp_path}/soup: the mean of 3 models")
    made = open_encoder(tmp_path / "soup").encode_queries(["gold"])
    assert not np.allclose(made, open_encoder(models[0]).encode_queries(["gold"]), atol=1e-6)
    manifest = json.loads((tmp_path / "soup" / "manifest.json").read_text())
    assert manifest["soup"] == [str(model) for model in models]
    assert manifest["weights"] == [2.0, 1.0, 1.0]
    assert manifest["packages"]["torch"]


def test_a_greedy_soup_is_no_worse_than_its_best_model(
    sluice: Call, models: list[Path], tmp_path: Path
) -> None:
    data = write_beir(tmp_path / "data")
    given = ("--greedy", "--dataset", data, "-m", "mrr@10")
    code, out, _ = sluice("model", "soup", *models, "--output", tmp_path / "soup", *given)
    assert code == 0
    *lines, last = out.strip().splitlines()
    values = [float(line.split()[1]) for line in lines]
    assert values == sorted(values, reverse=True)
    assert float(last.split()[1]) >= values[0]
    manifest = json.loads((tmp_path / "soup" / "manifest.json").read_text())
    taken = [line.split()[-1] for line in lines if line.split()[2] == "in"]
    assert set(taken) == set(manifest["soup"])
    assert (manifest["measure"], manifest["split"]) == ("RR@10", "dev")
    shutil.copy(data / "qrels" / "test.tsv", data / "qrels" / "dev.tsv")
    code, _, err = sluice("model", "soup", *models, "--output", tmp_path / "other", *given)
    assert (code, "8 of 8 dev queries (such as 'q20') are queries of test" in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_cross_encoders_are_judged_by_reranking(
    sluice: Call, pair_bert: Path, tmp_path: Path
) -> None:
    CrossEncoder.from_pretrained(pair_bert).save_pretrained(tmp_path / "a")
    data = write_beir(tmp_path / "data")
    code, out, _ = sluice(
        "model", "soup", tmp_path / "a", tmp_path / "a", "--output", tmp_path / "soup", "--greedy",
        "--dataset", data,
    )  # fmt: skip
    assert code == 0
    assert out.count("nDCG@10") == 3


def test_faults_end_in_code_2(sluice: Call, models: list[Path], tmp_path: Path) -> None:
    deep = save_model(tmp_path / "deep", "Model", num_hidden_layers=1)
    DenseEncoder.from_pretrained(deep).save_pretrained(tmp_path / "other")
    output = ("--output", tmp_path / "soup")
    for words, message in (
        ((models[0], *output), "expected at least two models, got 1"),
        ((models[0], tmp_path / "other", *output), "num_hidden_layers is 1"),
        ((*models, *output, "--weights", "1,x,2"), "as in 0.7,0.3"),
        ((*models, *output, "--weights", "1,2"), "2 for 3 models"),
        ((*models, *output, "--measure", "nDCG@10"), "--measure: is for --greedy"),
        ((*models, *output, "--greedy"), "--dataset: missing"),
        (
            (*models, *output, "--greedy", "--dataset", "x", "--weights", "1,1,1"),
            "not for --greedy",
        ),
        ((*models, *output, "--greedy", "--dataset", "x", "-m", "nDGC@10"), "--measure"),
        ((*models, tmp_path / "none", *output), "none"),
    ):
        code, _, err = sluice("model", "soup", *words)
        assert code == 2, (words, err)
        assert message in err
        assert not (tmp_path / "soup").exists()
