import numpy as np
from hypothesis import given, settings, strategies as st

from sluice.retrieval.runs.run import canonical_order, is_canonical, strictly_decreasing

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 1e-45, -1e-45]),
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e-9]), max_size=12))
def test_order_is_score_then_id_descending(values: list[float]) -> None:
    ids = [f"d{place * 7 % 12}" for place in range(len(values))]
    scores = np.array(values, dtype=np.float32)
    order = canonical_order(ids, scores).tolist()
    assert order == sorted(range(len(ids)), key=lambda i: (scores[i], ids[i]), reverse=True)
    assert is_canonical([ids[i] for i in order], scores[order])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(FLOATS, max_size=20))
def test_strictly_decreasing_is_the_least_change_downwards(values: list[float]) -> None:
    scores = np.array(values, dtype=np.float32)
    result = strictly_decreasing(scores)
    assert (result[1:] < result[:-1]).all()
    assert np.isfinite(result).all()
    expected, previous = [], np.float32(np.inf)
    for score in scores:  # the definition: the score, or the neighbour below its predecessor
        below = np.nextafter(previous, np.float32(-np.inf))
        previous = score if score < previous else below
        expected.append(previous)
    if np.isfinite(expected).all():
        np.testing.assert_array_equal(result, np.array(expected, dtype=np.float32))


def test_no_room_below_becomes_ranks() -> None:
    lowest = np.full(3, np.finfo(np.float32).min)
    assert strictly_decreasing(lowest).tolist() == [3.0, 2.0, 1.0]
