"""Draws batches of one source each from several sources, by temperature."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import Final

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.sampler import BatchSampler
from sluice.training.example import Example

TEMPERATURE: Final = 2.0  # Raffel et al. 2020 (T5), section 3.5.2; the 0.5 of Li et al. 2023 (GTE)


class MixedSampler:
    """Yields lists of example positions, all of one source: the ``Example.source`` of each.

    Every source has a ``BatchSampler`` of its own, which ``make`` makes of its examples. An epoch
    has as many batches as these together, and source i with n_i examples gets the share
    n_i^(1/T) / sum_j n_j^(1/T) of them, to the nearest whole number and one at least: in
    proportion to size with T = 1, all alike as T grows. Within a source no example returns before
    all others of it had their turn, whatever the epoch: a large source continues in the next epoch
    where it stopped, a small one begins again. The order is a function of seed and epoch.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        make: Callable[[Sequence[Example]], BatchSampler],
        *,
        seed: int,
        temperature: float = TEMPERATURE,
    ) -> None:
        self.seed = seed
        self.epoch = 0
        self._places = _by_source(examples)
        self._samplers = {
            source: make([examples[place] for place in places])
            for source, places in self._places.items()
        }
        shares = quotas(
            [len(places) for places in self._places.values()],
            sum(map(len, self._samplers.values())),
            temperature,
        )
        self.quota = dict(zip(self._places, shares, strict=True))

    def __len__(self) -> int:
        return sum(self.quota.values())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def replace(self, examples: Sequence[Example]) -> None:
        """Draw from other examples of the same sources; the number of batches stays.

        Raises ``DataError`` where the sources differ, or one has fewer examples than batches.
        """
        places = _by_source(examples)
        if places.keys() != self._places.keys():
            raise DataError(
                f"refreshed examples are of {', '.join(places)}; expected the same sources as "
                f"before, {', '.join(self._places)}"
            )
        self._places = {source: places[source] for source in self._places}
        for source, own in self._places.items():
            self._samplers[source].replace([examples[place] for place in own])

    def __iter__(self) -> Iterator[list[int]]:
        order = [source for source, count in self.quota.items() for _ in range(count)]
        random.Random(f"{self.seed}:{self.epoch}:sources").shuffle(order)
        streams = {source: self._stream(source, self.epoch) for source in self._places}
        for source in order:
            yield next(streams[source])

    def _stream(self, source: str, epoch: int) -> Iterator[list[int]]:
        """Yield a source's batches from the one on with which ``epoch`` begins, without an end."""
        sampler, places = self._samplers[source], self._places[source]
        turn, begun = divmod(epoch * self.quota[source], len(sampler))
        while True:
            sampler.set_epoch(turn)
            for batch in islice(sampler, begun, None):
                yield [places[place] for place in batch]
            turn, begun = turn + 1, 0


def quotas(sizes: Sequence[int], batches: int, temperature: float) -> list[int]:
    """Return how many of ``batches`` each source gets: one at least, the rest by temperature.

    The shares are rounded by the largest remainders, of equal ones the first. Where one batch for
    each is more than there are, each gets one.
    """
    powers = [Fraction((size / max(sizes)) ** (1 / temperature)) for size in sizes]
    exact = [power * batches / sum(powers) for power in powers]
    counts = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - exact[i], i))
    for place in by_remainder[: max(0, batches - sum(counts))]:
        counts[place] += 1
    while sum(counts) > batches and max(counts) > 1:
        counts[counts.index(max(counts))] -= 1
    return counts


def _by_source(examples: Sequence[Example]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.source, []).append(place)
    return places
