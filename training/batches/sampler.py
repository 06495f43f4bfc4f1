"""Packs batches in which no query, and hardly any positive, appears twice."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, Final

from sluice.encoders.foundation.errors import DataError
from sluice.training.protocol import Example

log = logging.getLogger("sluice")

SCAN = 64  # open batches an example is tried in before a new one is opened
WINDOW = 50  # batches within which examples are grouped by length


class BatchSampler:
    """Yields lists of example positions; the same for the same seed and epoch, in any process.

    With ``distinct`` (contrastive training) no query, by id or exact text, appears in two examples
    of one batch: an example that clashes waits for a later one. Nor does a positive, until only
    examples remain that clash so; these share batches, for the mask of a batch
    (``sluice.training.batches.vector_batch``) keeps a query's positives from being its negatives.
    Hard negatives do not clash: queries of one topic have the same, and a batch counts each once.
    The number of batches is decided by the first epoch's packing and stays, because the
    learning-rate schedule counts on it: where a later epoch packs worse its smallest batches are
    left out, where it packs better its largest are halved. Examples with one and the same positive
    and without negatives of their own have nothing to be held against: such batches are left out if
    there are others.

    Each of several ``processes`` takes its share of every batch, so none is smaller than their
    number; raises ``DataError`` where all are. With ``by_length`` examples of like length share a
    batch (within a window of 50 batches), which saves padding.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        batch_size: int,
        *,
        seed: int,
        distinct: bool = True,
        by_length: bool = False,
        processes: int = 1,
    ) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.distinct = distinct
        self.by_length = by_length
        self.processes = processes
        self.epoch = 0
        self._take(examples)
        first = self._packed(0)
        teaching = [batch for batch in first if self._teaches(batch)]
        teaching = teaching or [batch for batch in first if len(batch) >= processes]
        if not teaching:
            raise DataError(
                f"training: no batch of the {len(examples):,} examples has one for each of "
                f"{processes} processes; train with fewer processes"
            )
        self._count = len(teaching)
        left_out = len(examples) - sum(map(len, teaching))
        if left_out > (len(examples) % batch_size == 1):  # one may remain where nothing clashes
            log.warning(
                "training: %s of %s examples are left out of each epoch: so many share a query or "
                "a positive that their batches have no negatives; mined hard negatives would bring "
                "them back",
                f"{left_out:,}",
                f"{len(examples):,}",
            )

    def __len__(self) -> int:
        return self._count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def replace(self, examples: Sequence[Example]) -> None:
        """Draw from other examples from now on; the number of batches stays.

        Raises ``DataError`` when there are fewer examples than batches.
        """
        if len(examples) < self._count:
            raise DataError(
                f"{len(examples):,} refreshed examples for {self._count:,} batches: refreshing "
                "must not lose queries"
            )
        self._take(examples)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._packed(self.epoch)
        batches.sort(key=lambda batch: (self._teaches(batch), len(batch)), reverse=True)
        del batches[self._count :]
        while len(batches) < self._count:  # halves of one batch cannot clash
            largest = max(batches, key=len)
            half = len(largest) // 2
            batches.append(largest[half:])
            if half >= self.processes:
                del largest[half:]
            else:
                batches[-1] = largest.copy()  # no half has a share for each process
        self._random("order", self.epoch).shuffle(batches)
        yield from batches

    def _teaches(self, batch: Sequence[int]) -> bool:
        if len(batch) < self.processes:
            return False
        if self.batch_size == 1 or any(self._learnable[place] for place in batch):
            return True
        return len({self._positives[place] for place in batch}) > 1

    def _random(self, purpose: str, epoch: int) -> random.Random:
        return random.Random(f"{self.seed}:{epoch}:{purpose}")

    def _take(self, examples: Sequence[Example]) -> None:
        codes: dict[tuple[str, str], int] = {}

        def coded(keys: Iterable[tuple[str, str]]) -> frozenset[int]:
            if not self.distinct:
                return frozenset()
            return frozenset(codes.setdefault(key, len(codes)) for key in keys)

        self._queries = [coded(query_keys(example)) for example in examples]
        self._positives = [coded(positive_keys(example)) for example in examples]
        self._learnable = [
            not self.distinct or any(label <= 0 for label in example.labels) for example in examples
        ]
        self._lengths = [
            len(e.query.text) + sum(len(d.text) for d in e.documents) if self.by_length else 0
            for e in examples
        ]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._queries)))
        self._random("examples", epoch).shuffle(order)
        if self.by_length:
            window = WINDOW * self.batch_size
            parts = (order[i : i + window] for i in range(0, len(order), window))
            length: Callable[[int], int] = self._lengths.__getitem__
            order = [place for part in parts for place in sorted(part, key=length)]
        return order

    def _packed(self, epoch: int) -> list[list[int]]:
        """Pack by queries and positives, then what is left over by queries alone."""
        both = [q | p for q, p in zip(self._queries, self._positives, strict=True)]
        full, opened = self._fitted(self._order(epoch), both)
        more, last = self._fitted([place for batch in opened for place in batch], self._queries)
        return full + more + last

    def _fitted(
        self, order: Sequence[int], keys: Sequence[frozenset[int]]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """First fit: each example goes into the first open batch that shares no key with it.

        Returns the full batches and those still open.
        """
        full: list[list[int]] = []
        opened: list[tuple[list[int], set[int]]] = []
        for place in order:
            own = keys[place]
            fitting = (i for i, (_, taken) in enumerate(opened[:SCAN]) if taken.isdisjoint(own))
            slot = next(fitting, None)
            if slot is None:
                slot = len(opened)
                opened.append(([], set()))
            batch, taken = opened[slot]
            batch.append(place)
            taken |= own
            if len(batch) == self.batch_size:
                full.append(batch)
                del opened[slot]
        return full, [batch for batch, _ in opened]


# Ids of queries and documents are apart, their texts are not.
def query_keys(example: Example) -> Iterator[tuple[str, str]]:
    """Yield what two examples of one query have in common."""
    yield "query", example.query.id
    yield "text", example.query.text


def positive_keys(example: Example) -> Iterator[tuple[str, str]]:
    """Yield what two examples of one positive have in common."""
    for document, label in zip(example.documents, example.labels, strict=True):
        if label > 0:
            yield "document", document.id
            yield "text", document.text


TEMPERATURE: Final = 2.0  # Raffel et al. 2020 (T5), section 3.5.2; the 0.5 of Li et al. 2023 (GTE)


class MixedSampler:
    """Yields lists of example positions, all of one source: the ``Example.source`` of each.

    Every source has a ``BatchSampler`` of its own, which ``make`` makes of its examples. An epoch
    has as many batches as these together, and source i with n_i examples gets the share
    n_i^(1/T) / sum_j n_j^(1/T) of them, to the nearest whole number and one at least: in
    proportion to size with T = 1, all alike as T grows. ``weights`` of the sources take the place
    of the powers; a source without one has weight 1. Within a source no example returns before
    all others of it had their turn, whatever the epoch: a large source continues in the next epoch
    where it stopped, a small one begins again. The order is a function of seed and epoch.
    """

    def __init__(
        self,
        examples: Sequence[Example] | Mapping[str, Collection[Example]],
        make: Callable[[Any], Any],
        *,
        seed: int,
        temperature: float = TEMPERATURE,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.seed = seed
        self.epoch = 0
        parts = _parts_of(examples)
        self._places = {source: places for source, (places, _) in parts.items()}
        self._samplers = {source: make(part) for source, (_, part) in parts.items()}
        sizes: list[float] = [len(part) for _, part in parts.values()]
        if weights is not None:
            sizes, temperature = [weights.get(source, 1.0) for source in parts], 1.0
        shares = quotas(sizes, sum(map(len, self._samplers.values())), temperature)
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
        places = {source: own for source, (own, _) in _parts_of(examples).items()}
        if places.keys() != self._places.keys():
            raise DataError(
                f"refreshed examples are of {', '.join(places)}; expected the same sources as "
                f"before, {', '.join(self._places)}"
            )
        self._places = {source: places[source] for source in self._places}
        for source, own in self._places.items():
            self._samplers[source].replace([examples[place] for place in own or ()])

    def __iter__(self) -> Iterator[list[Any]]:
        order = [source for source, count in self.quota.items() for _ in range(count)]
        random.Random(f"{self.seed}:{self.epoch}:sources").shuffle(order)
        streams = {source: self._stream(source, self.epoch) for source in self._places}
        for source in order:
            yield next(streams[source])

    def _stream(self, source: str, epoch: int) -> Iterator[list[Any]]:
        """Yield a source's batches from the one on with which ``epoch`` begins, without an end."""
        sampler, places = self._samplers[source], self._places[source]
        turn, begun = divmod(epoch * self.quota[source], len(sampler))
        while True:
            sampler.set_epoch(turn)
            for batch in islice(sampler, begun, None):
                yield batch if places is None else [places[place] for place in batch]
            turn, begun = turn + 1, 0


def quotas(sizes: Sequence[float], batches: int, temperature: float) -> list[int]:
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


def _parts_of(examples: Any) -> dict[str, tuple[Sequence[Any] | None, Any]]:
    """Return by source what the places of its sampler stand for, and what that draws from.

    Of a list they are places in it; of a mapping of sources, where some are streamed, examples;
    None: the sampler yields examples itself.
    """
    if isinstance(examples, Mapping):
        return {
            source: (part if isinstance(part, Sequence) else None, part)
            for source, part in examples.items()
        }
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.source, []).append(place)
    return {source: (own, [examples[each] for each in own]) for source, own in places.items()}
