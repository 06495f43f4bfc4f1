"""Reservoir samples: their size, and that every item is as likely."""

from collections import Counter
from random import Random

import pytest

from sluice.encoders.foundation.bounded_input import Reservoir


@pytest.mark.parametrize(("size", "stream", "kept"), [(3, 2, 2), (3, 3, 3), (3, 50, 3), (0, 9, 0)])
def test_sizes(size: int, stream: int, kept: int) -> None:
    sample: Reservoir[int] = Reservoir(size, Random(1))
    for item in range(stream):
        sample.add(item)
    assert len(set(sample.items)) == kept
    assert set(sample.items) <= set(range(stream))


def test_every_item_is_as_likely() -> None:
    chance, counts = Random(7), Counter[int]()
    for _ in range(4000):
        sample: Reservoir[int] = Reservoir(2, chance)
        for item in range(8):
            sample.add(item)
        counts.update(sample.items)
    assert all(abs(counts[item] - 1000) < 120 for item in range(8))
