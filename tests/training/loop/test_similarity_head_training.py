"""A cross-encoder with a similarity head through the Trainer."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders import CrossEncoder
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.tuning.tune import freeze
from sluice.training import fit
from sluice.training.losses.contrastive.softmax import LocalizedSoftmax

SHORT: dict[str, Any] = {
    "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3,
    "logging_steps": 1, "save_strategy": "no",
}  # fmt: skip


def test_training_moves_head_and_network_at_their_own_rates(
    bert: Path, tiny: ModuleType, tmp_path: Path
) -> None:
    encoder = CrossEncoder.from_pretrained(bert, head="similarity")
    freeze(encoder, layers=1, embeddings=True)
    before = {name: value.clone() for name, value in encoder.module.state_dict().items()}
    fit(
        encoder, tiny.examples(16, negatives=2), LocalizedSoftmax(), output=tmp_path / "work",
        trainer={**SHORT, "learning_rate": 1e-9}, head_learning_rate=1e-2,
    )  # fmt: skip
    moved = {
        name: (value - before[name]).abs().max().item()
        for name, value in encoder.module.state_dict().items()
        if value.is_floating_point()
    }
    head = {name for name in moved if name.startswith("similarity_head.")}
    assert len(head) == 5
    assert moved["similarity_head.scales"] > 1e-3
    assert moved["similarity_head.outer.weight"] > 1e-3
    assert all(moved[name] < 1e-6 for name in moved.keys() - head)
    assert all(moved[name] == 0 for name in moved if "layer.0." in name or "embeddings" in name)
    encoder.save_pretrained(tmp_path / "model")
    pairs = [("gold river", "a sluice is a water search"), ("x", "y")]
    assert open_encoder(tmp_path / "model").score(pairs).tolist() == encoder.score(pairs).tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 5])
def test_cached_gradients_end_at_the_same_weights(
    bert: Path, tiny: ModuleType, tmp_path: Path, size: int
) -> None:
    ends = []
    for number, chunk in enumerate((None, size)):
        encoder = CrossEncoder.from_pretrained(bert, head="similarity")
        for part in encoder.module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        fit(
            encoder, tiny.examples(16, negatives=2), LocalizedSoftmax(),
            output=tmp_path / str(number), gradient_cache=chunk,
            trainer={**SHORT, "optim": "sgd"},  # Adam would enlarge rounding where gradients are 0
        )  # fmt: skip
        ends.append(tiny.weights_of(encoder))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, atol=1e-6, rtol=1e-5)
