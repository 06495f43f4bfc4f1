"""Selection and sorting within kernels against numpy's own."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.indexing.kernels.ranking import ascending, select_largest

LISTS = st.lists(st.integers(-9, 9), min_size=1, max_size=40)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(LISTS, st.data())
def test_the_largest_come_first_and_their_smallest_is_returned(
    numbers: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(numbers)))
    keys = np.array(numbers, dtype=np.int64)
    least = select_largest(keys, k)
    best = np.sort(np.array(numbers))[::-1]
    np.testing.assert_array_equal(np.sort(keys[:k])[::-1], best[:k])
    np.testing.assert_array_equal(np.sort(keys), best[::-1])  # none is lost
    assert least == best[k - 1]


@pytest.mark.parametrize("order", ["rising", "falling", "equal", "organ"])
def test_selection_in_long_lists(order: str) -> None:
    count = 5000
    lists = {
        "rising": np.arange(count),
        "falling": np.arange(count)[::-1],
        "equal": np.ones(count, dtype=np.int64),
        "organ": np.concatenate([np.arange(count // 2), np.arange(count // 2)[::-1]]),
    }
    for k in (1, 2, count // 2, count):
        keys = lists[order].astype(np.int64)
        assert select_largest(keys, k) == np.sort(lists[order])[count - k]
        assert keys[:k].min() == np.sort(lists[order])[count - k]


def test_ascending_leaves_its_argument() -> None:
    keys = np.array([3, 1, 2], dtype=np.int64)
    assert ascending(keys).tolist() == [1, 2, 3]
    assert keys.tolist() == [3, 1, 2]
