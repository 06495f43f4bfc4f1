"""Separate towers, frozen parts and trained query weights, through a whole training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders import DenseEncoder, SpladeEncoder, TowerEncoder, fit_idf
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.tuning.tune import freeze
from sluice.training import fit
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

WORDS = ["river", "gold", "stone", "water", "sluice", "query", "search", "index", "term", "weight"]
TRAINER = {
    "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1,
    "weight_decay": 0.1, "save_strategy": "no",
}  # fmt: skip


def examples() -> list[Example]:
    made = []
    for number, word in enumerate(WORDS):
        texts = (Text(f"d{number}", f"the {word} of a model"), Text(f"n{number}", "deep and dense"))
        made.append(Example(Text(f"q{number}", word), texts, relevant=frozenset({f"d{number}"})))
    return made


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def changed(before: dict[str, torch.Tensor], module: torch.nn.Module) -> set[str]:
    return {name for name, value in module.state_dict().items() if not value.equal(before[name])}


def trained(encoder: Any, output: Path, **options: Any) -> None:
    loss = InfoNCE(similarity="dot") if encoder.similarity == "dot" else InfoNCE()
    report = fit(encoder, examples(), loss, output=output, trainer=TRAINER, **options)
    assert report.steps == 4
    assert all(np.isfinite(line.get("loss", 0.0)) for line in report.history)


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", ["query", "document", "none"])
def test_a_frozen_tower_is_bitwise_what_it_was(
    frozen: Any, bert: Path, texts: list[str], tmp_path: Path
) -> None:
    spec = {"type": "dense", "model": str(bert)}
    towers = TowerEncoder.from_pretrained(query=spec, document=spec, freeze=frozen)
    before = {side: state(tower.module) for side, tower in towers.towers.items()}
    vectors = towers.encode_documents(texts)
    trained(towers, tmp_path / "training")
    for side, tower in towers.towers.items():
        assert bool(changed(before[side], tower.module)) == (side != frozen)
    same = np.array_equal(towers.encode_documents(texts), vectors)
    assert same == (frozen == "document")
    towers.save_pretrained(tmp_path / "model")
    assert open_encoder(tmp_path / "model").fingerprint == towers.fingerprint


def test_sparse_towers_train_under_a_penalty(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    spec = {"type": "splade", "model": str(masked_bert)}
    towers = TowerEncoder.from_pretrained(query=spec, document=spec, freeze="document")
    before = state(towers.document.module)
    penalty = {
        "query": {"type": "l1", "weight": 1e-3},
        "document": {"type": "flops", "weight": 1.0},
    }
    trained(towers, tmp_path, sparsity=penalty, head_learning_rate=1e-2)
    assert changed(before, towers.document.module) == set()
    assert towers.encode_queries(texts).shape[1] == towers.dim


@pytest.mark.parametrize("train_idf", [True, False])
def test_query_weights_are_trained_where_asked(
    train_idf: bool, masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    encoder = SpladeEncoder.from_pretrained(
        masked_bert, query_model="idf", train_idf=train_idf, prune_ratio=0.1, lexical="none"
    )
    fit_idf(encoder, texts)
    assert encoder.queries is not None
    before, network = encoder.queries.weights.detach().clone(), state(encoder.model)
    trained(encoder, tmp_path / "training")
    weights = encoder.queries.weights.detach()
    asked = {encoder.tokenizer.get_vocab()[word] for word in WORDS}
    moved = set((weights != before).nonzero().flatten().tolist())
    if train_idf:  # weight decay moves the others
        assert asked & set((before > 0).nonzero().flatten().tolist()) <= moved
    else:
        assert moved == set()
    assert not weights[encoder.tokenizer.all_special_ids].any()
    assert changed(network, encoder.model)
    encoder.save_pretrained(tmp_path / "model")
    again = open_encoder(tmp_path / "model")
    assert again.fingerprint == encoder.fingerprint
    assert (again.encode_queries(WORDS) != encoder.encode_queries(WORDS)).nnz == 0


def test_frozen_layers_are_bitwise_what_they_were(bert: Path, tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    frozen = set(freeze(encoder, layers=1, embeddings=True))
    before = state(encoder.module)
    trained(encoder, tmp_path)
    moved = changed(before, encoder.module)
    assert moved
    assert not moved & frozen
    assert moved == {name for name, p in encoder.module.named_parameters() if p.requires_grad}
