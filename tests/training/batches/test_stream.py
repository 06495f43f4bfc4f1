"""Streamed examples: every one once, at random, in bounded memory, without clashes in a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from statistics import fmean

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import Example, ExampleStream, Text
from sluice.training.batches.stream import Mixture, StreamSampler, collected


def numbered(count: int, queries: int | None = None) -> Iterator[Example]:
    for number in range(count):
        query = number % (queries or count)
        yield Example(Text(f"q{query}", f"query {query}"), (Text(f"d{number}", f"text {number}"),))


def stream(count: int, buffer: int, queries: int | None = None) -> ExampleStream:
    return ExampleStream(lambda: numbered(count, queries), buffer=buffer)


def drawn(sampler: StreamSampler, epoch: int = 0) -> list[list[str]]:
    sampler.set_epoch(epoch)
    return [[each.documents[0].id for each in batch] for batch in sampler]


@pytest.mark.parametrize(
    ("count", "size", "batches"), [(20, 4, 5), (21, 4, 5), (22, 4, 6), (1, 4, 1)]
)
def test_an_epoch_has_every_example_once(count: int, size: int, batches: int) -> None:
    sampler = StreamSampler(stream(count, 6), size, seed=13)
    assert len(sampler) == batches
    found = drawn(sampler)
    assert len(found) == batches
    names = [name for batch in found for name in batch]
    assert (
        len(names) == len(set(names)) == min(count, batches * size)
    )  # a rest of one teaches nothing


def test_the_order_is_of_seed_and_epoch() -> None:
    sampler = StreamSampler(stream(30, 10), 4, seed=13)
    first = drawn(sampler)
    assert drawn(sampler) == first
    assert drawn(sampler, 1) != first
    assert drawn(StreamSampler(stream(30, 10), 4, seed=14)) != first


def test_memory_holds_the_buffer_and_one_batch() -> None:
    read = 0

    def watched() -> Iterator[Example]:
        nonlocal read
        for example in numbered(100):
            read += 1
            yield example

    sampler = StreamSampler(ExampleStream(watched, buffer=10), 4, seed=13)
    read = 0
    for number, _ in enumerate(islice(sampler, 20), 1):
        assert read <= 10 + 4 * number


def test_a_larger_buffer_mixes_more() -> None:
    def moved(buffer: int) -> float:
        order = [
            int(n[1:])
            for batch in drawn(StreamSampler(stream(200, buffer), 4, seed=13))
            for n in batch
        ]
        return fmean(abs(place - number) for place, number in enumerate(order))

    assert moved(1) < 3 < moved(20) < 40 < moved(200)


def test_no_query_is_twice_in_a_batch() -> None:
    sampler = StreamSampler(stream(60, 30, queries=10), 5, seed=13)
    batches = list(sampler)
    assert all(len({e.query.id for e in batch}) == len(batch) for batch in batches)
    names = [e.documents[0].id for batch in batches for e in batch]
    assert len(set(names)) == len(names) >= 55


def test_a_buffer_of_one_query_is_said(caplog: pytest.LogCaptureFixture) -> None:
    sampler = StreamSampler(stream(40, 8, queries=1), 4, seed=13)
    with caplog.at_level(logging.WARNING, "sluice"):
        assert {len(batch) for batch in sampler} == {1}
    assert len(caplog.records) == 1
    assert "a batch has 1 of 4 examples" in caplog.text
    together = StreamSampler(stream(40, 8, queries=1), 4, seed=13, distinct=False)
    assert {len(batch) for batch in together} == {4}


def test_positives_are_shared_only_where_the_buffer_has_no_others() -> None:
    same = [Example(Text(f"q{n}", f"q {n}"), (Text("d", "same"),)) for n in range(4)]
    other = [Example(Text(f"o{n}", f"o {n}"), (Text(f"e{n}", f"other {n}"),)) for n in range(4)]
    sampler = StreamSampler(ExampleStream(lambda: [*same, *other], buffer=8), 4, seed=13)
    first, second = list(sampler)
    assert [sum(e.documents[0].id == "d" for e in batch) for batch in (first, second)] == [1, 3]
    assert len(second) == 3 + 1


def test_each_process_has_a_share() -> None:
    sampler = StreamSampler(stream(12, 12, queries=2), 6, seed=13, processes=3)
    assert all(len(batch) >= 3 for batch in sampler)
    with pytest.raises(DataError, match="train with fewer processes"):
        StreamSampler(stream(2, 4), 6, seed=13, processes=3)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="buffer: 0"):
        stream(4, 0)


def test_mappings_are_mixtures() -> None:
    listed = collected({"a": numbered(2), "b": list(numbered(3))})
    assert isinstance(listed, list)
    assert [e.source for e in listed] == ["a", "a", "b", "b", "b"]
    mixed = collected({"a": stream(5, 2), "b": numbered(3)})
    assert isinstance(mixed, Mixture)
    assert len(mixed) == 8
    assert [e.source for e in mixed] == ["a"] * 5 + ["b"] * 3
    assert [e.query.id for e in mixed.first()] == ["q0", "q1", "q0", "q1", "q2"]
