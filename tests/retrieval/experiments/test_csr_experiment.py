"""CSR encoders from YAML: trained, indexed, searched, explained; what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir
from sparse_codes import save_csr

from sluice.encoders import CsrEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment


def settings(folder: Path, model: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "train": {
            "codes": {
                "encoder": {"type": "csr", "model": str(model), "top_k": 6},
                "loss": {"type": "csr", "beta": 0.2}, "head_learning_rate": 0.01,
                "trainer": {
                    "max_steps": 5, "per_device_train_batch_size": 40, "learning_rate": 1.0e-3,
                    "logging_steps": 1,
                },
            },
        },
        "retrievers": {
            "codes": {
                "encoder": {"type": "csr", "model": "codes"},
                "index": {"type": "inverted", "fidelity": "u8"},
            },
            "published": {"encoder": {"type": "csr", "model": str(model)}},
        },
        "pipelines": {"codes": "codes", "both": "codes | published"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    folder = save_csr(bert, tmp_path / "m")
    facts = settings(tmp_path, folder)
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"codes", "both"}
    model = CsrEncoder.from_pretrained(output / "models" / "codes")
    assert model.top_k == 6
    lines = next(output.rglob("metrics.jsonl")).read_text().splitlines()
    journal = [line for line in map(json.loads, lines) if "loss" in line]
    assert journal[-1]["loss"] < journal[0]["loss"]
    assert {"reconstruction", "auxiliary", "dead_latents"} <= set(journal[0])
    card = (output / "models" / "codes" / "README.md").read_text()
    assert "from sentence_transformers import SparseEncoder\n" in card
    hits = load_pipeline(output, "codes").search("gold river", 500)
    assert 0 < len(hits) <= 40
    words = ("explain", output / "retrievers" / "codes", "gold river", hits[0].doc_id)
    code, shown, err = sluice(*words)
    assert code == 0, err
    assert hits[0].doc_id in shown
    code, _, err = sluice("verify", output)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        (
            "train",
            {"loss": {"type": "csr"}, "encoder": {"type": "splade", "model": "m"}},
            "loss: csr trains csr; a splade encoder takes info_nce",
        ),
        (
            "train",
            {"loss": {"type": "csr"}, "encoder": {"type": "dense", "model": "m"}},
            "loss: csr trains csr; a dense encoder takes info_nce",
        ),
        (
            "train",
            {"loss": {"type": "rrra"}},
            "rrra trains dense; a csr encoder, trained as splade, takes csr,",
        ),
        ("train", {"loss": {"type": "CSRLoss"}}, "unknown type 'CSRLoss'; here it is called csr"),
        ("train", {"loss": {"type": "sum", "losses": [{"type": "csr"}]}}, "put it around them"),
        ("retrievers", {"index": {"type": "flat"}}, "a csr encoder takes inverted"),
        ("retrievers", {"encoder": {"type": "splade", "model": "codes"}}, "write type: csr"),
    ],
)
def test_what_cannot_be_is_refused(
    section: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    facts = settings(tmp_path, tmp_path / "m")
    facts[section]["codes"] |= change
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))
