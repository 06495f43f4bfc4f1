"""The batch sampler: no query twice, every example once, the same again."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.sampler import BatchSampler
from sluice.training.protocol import Example, Text, pair_examples


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
def test_batches_hold_no_query_twice(
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
        queries = [examples[place].query.id for place in batch]
        assert len(queries) == len(set(queries))
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


@pytest.mark.parametrize("each", [1, 4])
def test_shared_documents_do_not_break_batches_up(each: int) -> None:
    drawn = random.Random(2)
    texts = {f"d{d}": f"text {d}" for d in range(60)}
    queries = {f"q{q}": f"query {q}" for q in range(100)}
    shares = [1 / (1 + rank) for rank in range(60)]
    listed = {q: list(dict.fromkeys(drawn.choices(list(texts), shares, k=60))) for q in queries}
    positives = {q: dict.fromkeys(names[:6], 1.0) for q, names in listed.items()}
    negatives = {q: names[6:13] for q, names in listed.items()}
    examples = list(pair_examples(queries, positives, texts, negatives, each=each))
    for some in (examples, [replace(e, documents=e.documents[:1], labels=()) for e in examples]):
        sampler = BatchSampler(some, 16, seed=1)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) <= 1.1 * len(examples) / 16
            assert sum(map(len, batches)) >= 0.95 * len(examples)


def test_positives_are_apart_while_examples_last() -> None:
    examples = [example(i, [i % 20, 50]) for i in range(40)]
    batches = list(BatchSampler(examples, 4, seed=1))
    twice = sum(len({place % 20 for place in batch}) < len(batch) for batch in batches)
    assert len(batches) == 10
    assert twice <= 1


def test_examples_of_one_positive_have_nothing_to_be_held_against() -> None:
    one_document = [example(i, [0]) for i in range(9)]
    sampler = BatchSampler([*one_document, *(example(i, [i]) for i in range(20, 24))], 4, seed=1)
    for batch in sampler:
        assert any(place >= 9 for place in batch)


def test_every_process_has_a_share_of_every_batch() -> None:
    def some(queries: list[int]) -> list[Example]:
        return [example(query, [place]) for place, query in enumerate(queries)]

    sampler = BatchSampler(some([0, 1, 2, 0, 1, 2, 0, 1, 2]), 3, seed=1, processes=2)
    sampler.replace(some([0, 1, 2, 0, 1, 2]))  # better packed than the three batches expected
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == 3
        assert all(len(batch) >= 2 for batch in batches)
    with pytest.raises(DataError, match="each of 2 processes"):
        BatchSampler(some([0, 0, 0]), 4, seed=1, processes=2)


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
    assert "9 of 11 examples are left out of each epoch" in record.getMessage()
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
