"""Batches in which no text appears twice, as a function of seed and epoch."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence

from encoders.errors import DataError
from training.example import Example

log = logging.getLogger("sluice")

SCAN = 64  # open batches an example is tried in before a new one is opened
WINDOW = 50  # batches within which examples are grouped by length


class BatchSampler:
    """Yields lists of example positions; the same for the same seed and epoch, in any process.

    With ``distinct`` (contrastive training) no id and no exact text, of a query or a document,
    appears in two examples of one batch: an example that clashes waits for a later batch. The
    number of batches is decided by the first epoch's packing and stays, because the learning-rate
    schedule counts on it: where a later epoch packs worse its smallest batches are left out, where
    it packs better its largest are halved. An example alone in its batch and without negatives of
    its own has nothing to be held against: such batches are left out if there are others.

    Each of several ``processes`` takes its share of every batch, so none is smaller than their
    number. With ``by_length`` examples of like length share a batch (within a window of 50
    batches), which saves padding.
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
        kept = [batch for batch in first if self._teaches(batch)] or first
        self._count = len(kept)
        left_out = len(examples) - sum(map(len, kept))
        if left_out > (len(examples) % batch_size == 1):  # one may remain where nothing clashes
            log.warning(
                "training: an epoch leaves out %s of %s examples: so many share a query or a "
                "document that these are alone in a batch; hard negatives would bring them in",
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
            del largest[half:]
        self._random("order", self.epoch).shuffle(batches)
        yield from batches

    def _teaches(self, batch: Sequence[int]) -> bool:
        if len(batch) < self.processes:
            return False
        return len(batch) >= min(2, self.batch_size) or self._learnable[batch[0]]

    def _random(self, purpose: str, epoch: int) -> random.Random:
        return random.Random(f"{self.seed}:{epoch}:{purpose}")

    def _take(self, examples: Sequence[Example]) -> None:
        codes: dict[tuple[str, str], int] = {}
        self._keys = [
            frozenset(codes.setdefault(key, len(codes)) for key in _keys(example))
            if self.distinct
            else frozenset()
            for example in examples
        ]
        self._learnable = [
            not self.distinct or any(label <= 0 for label in example.labels) for example in examples
        ]
        self._lengths = [
            len(e.query.text) + sum(len(d.text) for d in e.documents) if self.by_length else 0
            for e in examples
        ]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._keys)))
        self._random("examples", epoch).shuffle(order)
        if self.by_length:
            window = WINDOW * self.batch_size
            parts = (order[i : i + window] for i in range(0, len(order), window))
            length: Callable[[int], int] = self._lengths.__getitem__
            order = [place for part in parts for place in sorted(part, key=length)]
        return order

    def _packed(self, epoch: int) -> list[list[int]]:
        """First fit: each example goes into the first open batch that shares no text with it."""
        done: list[list[int]] = []
        opened: list[tuple[list[int], set[int]]] = []
        for place in self._order(epoch):
            keys = self._keys[place]
            fitting = (i for i, (_, taken) in enumerate(opened[:SCAN]) if taken.isdisjoint(keys))
            slot = next(fitting, None)
            if slot is None:
                slot = len(opened)
                opened.append(([], set()))
            batch, taken = opened[slot]
            batch.append(place)
            taken |= keys
            if len(batch) == self.batch_size:
                done.append(batch)
                del opened[slot]
        return done + [batch for batch, _ in opened]


def _keys(example: Example) -> Iterator[tuple[str, str]]:
    """Ids of queries and documents are apart, their texts are not."""
    yield "query", example.query.id
    yield "text", example.query.text
    for document in example.documents:
        yield "document", document.id
        yield "text", document.text
