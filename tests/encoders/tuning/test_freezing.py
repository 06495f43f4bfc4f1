"""Frozen layers and embeddings."""

from pathlib import Path

import pytest

from sluice.encoders import CrossEncoder, DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.tune import freeze


def test_the_lowest_layers_and_embeddings_are_frozen(bert: Path, pair_bert: Path) -> None:
    for encoder in (DenseEncoder.from_pretrained(bert), CrossEncoder.from_pretrained(pair_bert)):
        assert freeze(encoder) == []
        frozen = freeze(encoder, layers=1)
        assert frozen
        assert all("layer.0." in name for name in frozen)
        more = set(freeze(encoder, embeddings=True)) - set(frozen)
        assert more
        assert all("embeddings." in name for name in more)
        trained = [n for n, p in encoder.module.named_parameters() if p.requires_grad]
        assert any("layer.1." in name for name in trained)


def test_both_towers_are_frozen_alike(bert: Path) -> None:
    spec = {"type": "dense", "model": str(bert)}
    towers = TowerEncoder.from_pretrained(query=spec, document=spec)
    frozen = freeze(towers, layers=2)
    assert {name.partition(".")[0] for name in frozen} == {"query", "document"}


def test_more_layers_than_there_are_is_an_error(masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert)
    with pytest.raises(ConfigError, match=r"freeze\.layers: 3; BertForMaskedLM has 2 layers"):
        freeze(encoder, layers=3)
    with pytest.raises(ConfigError, match="0 or more"):
        freeze(encoder, layers=-1)
    assert freeze(encoder) == []
