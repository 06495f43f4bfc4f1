"""The batch sampler: no text twice, every example once, the same again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoders.errors import DataError
from training.example import Example, Text
from training.sampler import BatchSampler, _keys


def example(query: int, documents: list[int]) -> Example:
    return Example(
        Text(f"q{query}", f"query {query}"), tuple(Text(f"d{d}", f"text {d}") for d in documents)
    )


collections = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.integers(0, 20), min_size=1, max_size=3)),
    min_size=1,
    max_size=40,
).map(lambda rows: [example(query, documents) for query, documents in rows])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(collections, st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_batches_hold_no_text_twice(
    examples: list[Example], size: int, epoch: int, by_length: bool
) -> None:
    sampler = BatchSampler(examples, size, seed=1, by_length=by_length)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert all(0 < len(batch) <= size for batch in batches)
    places = [place for batch in batches for place in batch]
    assert len(places) == len(set(places))
    for batch in batches:
        keys = [key for place in batch for key in set(_keys(examples[place]))]
        assert len(keys) == len(set(keys))
    again = BatchSampler(examples, size, seed=1, by_length=by_length)
    again.set_epoch(epoch)
    assert list(again) == batches


@pytest.mark.parametrize("by_length", [False, True])
def test_every_example_once_an_epoch_and_another_order(by_length: bool) -> None:
    examples = [example(i, [i]) for i in range(50)]
    sampler = BatchSampler(examples, 8, seed=1, by_length=by_length)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    for batches in (first, second):
        assert sorted(place for batch in batches for place in batch) == list(range(50))
    assert first != list(BatchSampler(examples, 8, seed=2, by_length=by_length))


def test_clashing_examples_wait_for_a_later_batch() -> None:
    examples = [example(0, [i]) for i in range(5)] + [example(i, [10 + i]) for i in range(1, 21)]
    sampler = BatchSampler(examples, 5, seed=3)
    seen: set[int] = set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        places = [place for batch in sampler for place in batch]
        assert len(places) >= 23  # a batch of one is left out
        seen.update(places)
    assert seen == set(range(25))


def test_plain_shuffle_for_groups() -> None:
    examples = [example(0, [0])] * 7
    batches = list(BatchSampler(examples, 4, seed=1, distinct=False))
    assert sorted(map(len, batches)) == [3, 4]


def test_last_batch_of_one_is_left_out() -> None:
    assert len(BatchSampler([example(i, [i]) for i in range(9)], 4, seed=1)) == 2
    assert len(BatchSampler([example(0, [0])], 4, seed=1)) == 1
    assert len(BatchSampler([example(i, [i]) for i in range(3)], 1, seed=1)) == 3


def test_an_example_with_negatives_is_never_left_out(caplog: pytest.LogCaptureFixture) -> None:
    examples = [example(0, [i, 90 + i]) for i in range(5)] + [example(1, [50]), example(2, [60])]
    sampler = BatchSampler(examples, 4, seed=1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        assert {place for batch in sampler for place in batch} >= set(range(5))
    assert not caplog.records


def test_examples_that_clash_too_often_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    one_query = [example(0, [i]) for i in range(10)]
    assert len(BatchSampler([*one_query, example(1, [50])], 4, seed=1)) == 1
    (record,) = caplog.records
    assert "leaves out 9 of 11 examples" in record.getMessage()
    BatchSampler([example(i, [i]) for i in range(9)], 4, seed=1)  # one remains: nothing to say
    assert len(caplog.records) == 1


def test_refreshed_examples_keep_the_number_of_batches() -> None:
    sampler = BatchSampler([example(i, [i]) for i in range(16)], 4, seed=1)
    sampler.replace([example(i, [i]) for i in range(11)])
    assert len(list(sampler)) == 4
    with pytest.raises(DataError, match="refreshed"):
        sampler.replace([example(0, [0])])


def test_bad_examples() -> None:
    with pytest.raises(DataError, match="needs a positive"):
        Example(Text("q", "x"), ())
    with pytest.raises(DataError, match="1 documents but 2 labels"):
        Example(Text("q", "x"), (Text("d", "y"),), (1.0, 0.0))
    with pytest.raises(DataError, match="label above 0"):
        Example(Text("q", "x"), (Text("d", "y"),), (0.0,))
