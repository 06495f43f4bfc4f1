"""Vectors moved into an index that learns from a sample of them."""

from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import AutoIndex, FlatIndex
from sluice.retrieval import Retriever


class Learning(FlatIndex):
    """Notes its sample."""

    def training_rows(self, documents: int) -> int:
        return documents - 5

    def train(self, sample: np.ndarray) -> None:
        self.sample = sample


def test_an_index_that_learns_gets_a_sample_of_what_is_there(tmp_path: Path) -> None:
    made = Retriever.build(WordEncoder(), documents(), index=FlatIndex(), path=tmp_path / "r")
    with pytest.raises(ConfigError, match="move_index: AutoIndex measures vectors"):
        made.move_index(AutoIndex())
    made.delete(["d03", "d07"])
    expected, target = made.run({"a": "gold river"}, k=50), Learning()
    made.move_index(target)
    assert len(target.sample) == len(made) - 5
    assert made.run({"a": "gold river"}, k=50) == expected
