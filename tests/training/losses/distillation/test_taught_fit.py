"""Whole trainings by HOC and simplex: models that compare, resumed as if undisturbed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tiny import examples
from torch.nn.functional import normalize
from vector_batches import made, random_batch

from sluice.training import fit
from sluice.training.protocol import Example, Text

BOTH: dict[str, Any] = {
    "kind": "sum",
    "losses": [{"type": "simplex", "weight": 0.1}, {"type": "hoc", "weight": 0.9}],
}
TOPICS = 8
TEXTS = examples(TOPICS, negatives=0)


class OldModel:
    """Vectors of 16 dimensions by the first word that begins with topic, near each other."""

    fingerprint = "old"

    def prepare(self, examples: Sequence[Example]) -> None:
        pass

    def vectors(self, texts: Sequence[Text], side: str) -> np.ndarray:
        rows = []
        for text in texts:
            topic = next((w for w in text.text.split() if w.startswith("topic")), "none")
            for word, share in ((topic, 1.0), (text.text, 0.02)):
                seed = int.from_bytes(hashlib.md5(word.encode()).digest()[:4], "little")
                drawn = share * np.random.default_rng(seed).normal(size=16)
                rows.append(drawn if share == 1.0 else rows.pop() + drawn)
        return np.array(rows, np.float32)


def trained(tiny: ModuleType, output: Path, **job: Any) -> tuple[Any, Any]:
    encoder = tiny.Dense(dropout=0.0)
    report = fit(
        encoder, TEXTS, made(**BOTH), output=output,
        teacher=OldModel(), **job,
    )  # fmt: skip
    return encoder, report


def stepped(
    tiny: ModuleType, loss: Any, taught: list[np.ndarray], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Train for 40 steps of all pairs; return the vectors of queries and documents."""
    encoder = tiny.Dense(seed, dropout=0.0)
    features = [
        encoder.tokenize([e.query.text for e in TEXTS], "query"),
        encoder.tokenize([e.documents[0].text for e in TEXTS], "document"),
    ]
    goals = tuple(map(torch.from_numpy, taught))
    batch = random_batch(TEXTS, teacher_vectors=goals)
    optimizer = torch.optim.Adam(encoder.module.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        made_of = [encoder.embed(each, "query") for each in features]
        loss.over(batch.with_vectors(*made_of)).backward()
        optimizer.step()
    with torch.no_grad():
        queries, documents = (normalize(encoder.embed(each, "query")) for each in features)
    return queries, documents


@pytest.mark.thorough
def test_models_trained_apart_compare_only_at_the_corners(tiny: ModuleType) -> None:
    loss = made("simplex", rounds=0)
    loss.bind(tiny.Dense(), 0)
    taught = [OldModel().vectors([e.query for e in TEXTS], "query"),
              OldModel().vectors([e.documents[0] for e in TEXTS], "document")]  # fmt: skip
    loss.bind_teacher(lambda: np.concatenate(taught))
    classes = loss.classes_of(torch.from_numpy(taught[1]))
    assert len(classes.unique()) > 2
    found = {}
    for kind in (loss, made("info_nce", similarity="cosine")):
        (asked, own), (_, others) = (stepped(tiny, kind, taught, seed) for seed in (0, 1))
        best = [(asked @ documents.T).argmax(1) for documents in (own, others)]
        found[kind] = [float((classes[hits] == classes).float().mean()) for hits in best]
    (own, across), (plain, apart) = found.values()
    assert min(own, across, plain) >= 0.75
    assert apart <= 0.3


def test_a_resumed_training_ends_like_the_undisturbed(tiny: ModuleType, tmp_path: Path) -> None:
    job = {"trainer": {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
                       "save_steps": 2, "logging_steps": 1, "save_total_limit": 5}}  # fmt: skip
    whole, report = trained(tiny, tmp_path / "whole", **job)
    assert {"loss_simplex", "loss_hoc"} <= set(report.history[0])
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    resumed, again = trained(tiny, tmp_path / "killed", **job)
    assert again.resumed_step == 2
    cached, _ = trained(tiny, tmp_path / "cached", gradient_cache=2, **job)
    for one, two, three in zip(*(m.module.parameters() for m in (whole, resumed, cached)),
                               strict=True):  # fmt: skip
        assert torch.equal(one, two)
        torch.testing.assert_close(one, three, atol=2e-4, rtol=0)
