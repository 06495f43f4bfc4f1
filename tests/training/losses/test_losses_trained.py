"""Losses with a teacher, with texts apart and over live candidates, through the Trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import save_model

from sluice.encoders import CrossEncoder
from sluice.encoders.foundation.build import build
from sluice.indexing import FlatIndex
from sluice.training import fit
from sluice.training.loop.objective import LiveCandidates
from sluice.training.losses import LOSSES
from sluice.training.protocol import Example

SHORT = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
}


def made(spec: dict[str, Any]) -> Any:
    return build(spec, LOSSES, where="loss")


def trained_cross(
    folder: Path, examples: list[Example], spec: dict[str, Any], output: Path
) -> CrossEncoder:
    encoder = CrossEncoder.from_pretrained(folder, seed=5)
    fit(encoder, examples, made(spec), output=output, trainer=SHORT)
    return encoder


@pytest.mark.thorough
def test_qbd(tiny: ModuleType, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "bert", "ForSequenceClassification", num_labels=1)
    examples = tiny.examples(16, negatives=2)
    plain, zero, both = (
        trained_cross(folder, examples, spec, tmp_path / f"out{number}")
        for number, spec in enumerate(
            [
                {"type": "localized_softmax"},
                {"type": "qbd", "triplet_weight": 0},
                {"type": "qbd", "triplet_weight": 0.5},
            ]
        )
    )
    weights = [tiny.weights_of(encoder) for encoder in (plain, zero, both)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    saved = []
    for number, encoder in enumerate((plain, both)):
        encoder.save_pretrained(tmp_path / f"saved{number}")
        kept = load_file(tmp_path / f"saved{number}" / "model.safetensors")
        files = sorted(path.name for path in (tmp_path / f"saved{number}").iterdir())
        saved.append((files, {name: tensor.shape for name, tensor in kept.items()}))
    assert saved[0] == saved[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spec",
    [
        {
            "type": "sum",
            "losses": [{"type": "kl_div", "weight": 0.9}, {"type": "info_nce", "weight": 0.1}],
        },
        {"type": "margin_mse", "pairs": "all"},
        {"type": "lambda_distil"},
    ],
    ids=lambda spec: spec["type"],
)
@pytest.mark.parametrize("kind", ["Dense", "Splade", "Cross"])
def test_a_teacher_is_approached(
    tiny: ModuleType, tmp_path: Path, spec: dict[str, Any], kind: str
) -> None:
    torch.manual_seed(0)
    examples = [
        replace(one, scores=tuple(torch.randn(len(one.documents)).tolist()))
        for one in tiny.examples(16, negatives=2)
    ]
    encoder = getattr(tiny, kind)()
    report = fit(
        encoder,
        examples,
        made(spec),
        output=tmp_path / "out",
        trainer={**SHORT, "num_train_epochs": 12, "learning_rate": 3e-3},
    )
    assert report.steps == 24
    journal = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    values = [line["loss"] for line in map(_parsed, journal) if "loss" in line]
    assert np.mean(values[-4:]) < np.mean(values[:4])


def _parsed(line: str) -> dict[str, float]:
    import json

    found: dict[str, float] = json.loads(line)
    return found


def test_adore_trains_the_queries_on_a_frozen_index(tiny: ModuleType, tmp_path: Path) -> None:
    examples = tiny.examples(24, negatives=1)
    encoder = tiny.Dense(dropout=0.0)
    texts = [document.text for one in examples for document in one.documents]
    encoder.module.eval()
    with torch.no_grad():
        vectors = encoder.embed(encoder.tokenize(texts, "document"), "document")
        vectors = torch.nn.functional.normalize(vectors, dim=1).numpy()
    index = FlatIndex()
    index.add(vectors)
    before = vectors.tobytes()
    relevant = {one.query.id: {2 * number: 1.0} for number, one in enumerate(examples)}

    def reciprocal_rank() -> float:
        encoder.module.eval()
        with torch.no_grad():
            queries = encoder.embed(
                encoder.tokenize([one.query.text for one in examples], "query"), "query"
            )
        queries = torch.nn.functional.normalize(queries, dim=1).numpy()
        rows = index.search(queries, k=len(texts)).rows
        places = [row.tolist().index(2 * number) + 1 for number, row in enumerate(rows)]
        return float(np.mean([1 / place for place in places]))

    start = reciprocal_rank()
    live = LiveCandidates(index, lambda rows: vectors[rows], relevant, depth=20)
    fit(
        encoder,
        examples,
        made({"type": "adore", "metric_cut": 20}),
        output=tmp_path / "out",
        trainer={**SHORT, "num_train_epochs": 10},
        live=live,
    )
    assert reciprocal_rank() > start
    assert vectors.tobytes() == before
