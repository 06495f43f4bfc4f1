"""What is drawn at random is said, and a seed that draws nothing is refused."""

from pathlib import Path
from typing import Any

import pytest

from sluice.encoders import ThreeHeadEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.own.three_heads.encoder import HeadEncoder


@pytest.fixture(scope="module")
def trained(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    TokenEncoder.from_pretrained(bert, dim=8).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "dim"),
    [
        ({}, 128), ({"dim": 8, "seed": 4}, 8), ({"projection": 12, "seed": 4}, 12),
        ({"projection": {"dim": 8, "layers": 2, "residual": True}}, 8),
        ({"projection": False}, 0),
        ({"projection": {"dim": 32, "layers": 2, "residual": True}}, 0),  # begins as its inputs
    ],
    ids=str,
)  # fmt: skip
def test_a_drawn_projection_is_said(
    settings: dict[str, Any], dim: int, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TokenEncoder.from_pretrained(bert, **settings)
    said = f"{bert}: a new projection to {dim} dimensions was drawn at random; train it"
    assert (said in caplog.text) == bool(dim)
    assert len(caplog.records) == bool(dim)


def test_a_trained_projection_is_not(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenEncoder.from_pretrained(trained)
    TokenEncoder.from_pretrained(trained, dim=4)
    assert not caplog.records
    TokenEncoder.from_pretrained(trained, projection=4)
    assert f"{trained}: a new projection to 4 dimensions" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"dim": 4}, {"projection": False}], ids=str)
def test_a_seed_that_draws_nothing_is_refused(settings: dict[str, Any], trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed: 13: draws a new projection or marker.* leave"):
        TokenEncoder.from_pretrained(trained, seed=13, **settings)
    one, other = (
        TokenEncoder.from_pretrained(trained, seed=seed, query_marker="[NEW]") for seed in (1, 2)
    )
    assert one.fingerprint != other.fingerprint  # the marker is drawn


@pytest.mark.parametrize("seed", [-1, True, 1.5])
def test_a_seed_is_a_whole_number(seed: Any, bert: Path) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        TokenEncoder.from_pretrained(bert, seed=seed)
    with pytest.raises(ConfigError, match="seed is"):
        ThreeHeadEncoder.from_pretrained(bert, dim=8, seed=seed)


def test_drawn_heads_are_said(bert: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    ThreeHeadEncoder.from_pretrained(bert, dim=8, seed=3).save_pretrained(tmp_path / "model")
    assert f"{bert}: new heads of weights and of 8 dimensions were drawn at random" in caplog.text
    caplog.clear()
    HeadEncoder.from_pretrained(tmp_path / "model", head="dense")
    assert not caplog.records
    for folder in (bert, tmp_path / "model"):
        with pytest.raises(ConfigError, match=r"seed: draws new heads.* leave seed out, or give"):
            HeadEncoder.from_pretrained(folder, head="tokens", seed=3)
