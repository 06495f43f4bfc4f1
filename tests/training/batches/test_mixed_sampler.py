"""Batches of one source each, drawn by temperature, the same after a restart."""

from collections import Counter
from functools import partial

import pytest

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.sampler import BatchSampler, MixedSampler, quotas
from sluice.training.protocol import Example, Text


def examples(**sizes: int) -> list[Example]:
    made = [
        Example(
            Text(f"{source}-q{n}", f"query {n} of {source}"),
            (Text(f"{source}-d{n}", f"document {n} of {source}"),),
            source=source,
        )
        for source, size in sizes.items()
        for n in range(size)
    ]
    return made[::2] + made[1::2]  # sources lie mixed in the list


def sampler(some: list[Example], size: int = 4, temperature: float = 2.0) -> MixedSampler:
    make = partial(BatchSampler, batch_size=size, seed=5)
    return MixedSampler(some, make, seed=5, temperature=temperature)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0, 1e6])
@pytest.mark.parametrize("sizes", [[90, 10], [1000, 40, 7], [5, 5, 5], [1, 1]])
def test_quotas_follow_the_formula(sizes: list[int], temperature: float) -> None:
    batches = 120
    powers = [size ** (1.0 / temperature) for size in sizes]
    exact = [batches * power / sum(powers) for power in powers]
    counts = quotas(sizes, batches, temperature)
    assert sum(counts) == batches
    assert all(
        count >= 1 and abs(count - max(1.0, share)) < len(sizes)
        for count, share in zip(counts, exact, strict=True)
    )


def test_quotas_of_published_temperatures() -> None:
    assert quotas([900, 100], 100, 1.0) == [90, 10]
    assert quotas([900, 100], 100, 2.0) == [75, 25]
    assert quotas([900, 100], 100, 1e9) == [50, 50]
    assert quotas([10**9, 1], 10, 0.01) == [9, 1]
    assert quotas([7, 7, 7], 2, 1.0) == [1, 1, 1]  # one at least, even where that is more


def test_every_batch_is_of_one_source_and_each_source_has_its_share() -> None:
    some = examples(large=90, small=10)
    mixed = sampler(some)
    batches = list(mixed)
    sources = [{some[place].source for place in batch} for batch in batches]
    assert all(len(each) == 1 for each in sources)
    assert len(batches) == len(mixed) == 23 + 3
    assert Counter(next(iter(each)) for each in sources) == mixed.quota
    assert mixed.quota == {"large": 20, "small": 6}  # 26 x (.75, .25), largest remainder first


def test_no_example_returns_before_the_others_of_its_source_had_their_turn() -> None:
    some = examples(large=80, small=8)
    mixed = sampler(some)
    drawn: dict[str, list[int]] = {"large": [], "small": []}
    for epoch in range(4):
        mixed.set_epoch(epoch)
        for batch in mixed:
            drawn[some[batch[0]].source] += batch
    for source, size in (("large", 80), ("small", 8)):
        places = drawn[source]
        for start in range(0, len(places) - size + 1, size):
            assert len(set(places[start : start + size])) == size
    assert len(drawn["large"]) < 4 * 80
    assert len(drawn["small"]) > 4 * 8


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    some = examples(a=30, b=20)
    one, other = sampler(some), sampler(some)
    list(one)
    for each in (one, other):
        each.set_epoch(3)
    assert list(one) == list(other)
    other.set_epoch(2)
    assert list(one) != list(other)


def test_examples_are_replaced_by_others_of_the_same_sources() -> None:
    some = examples(a=12, b=12)
    mixed = sampler(some)
    mixed.replace(some[::-1])
    assert all(len({some[::-1][place].source for place in batch}) == 1 for batch in mixed)
    with pytest.raises(DataError, match=r"are of a, c; expected the same sources as before, a, b"):
        mixed.replace(examples(a=12, c=12))


def test_sources_of_one_example_each() -> None:
    assert sorted(sampler(examples(a=1, b=1))) == [[0], [1]]
