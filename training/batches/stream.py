"""Examples that stay on disk, and mixtures of such with others in memory."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Annotated, TypeAlias

from annotated_types import Ge

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.sampler import SCAN, positive_keys, query_keys
from sluice.training.protocol import Example

log = logging.getLogger("sluice")


class ExampleStream:
    """Examples that are read anew in every epoch, of which memory holds ``buffer``.

    ``open_pass`` returns an iterator over all, in the same order at each call. Batches are drawn at
    random from the buffer, which the next ones refill. ``source`` is that of ``Example``.
    """

    @checked()
    def __init__(
        self,
        open_pass: Callable[[], Iterable[Example]],
        *,
        buffer: Annotated[int, Ge(1), "Examples in memory, from which batches are drawn."] = 10_000,
        source: str = "",
    ) -> None:
        self.open_pass = open_pass
        self.buffer = buffer
        self.source = source
        self._count: int | None = None

    def __iter__(self) -> Iterator[Example]:
        count = 0
        for count, example in enumerate(self.open_pass(), 1):  # noqa: B007
            yield example if example.source == self.source else _of(self.source, example)
        self._count = count

    def __len__(self) -> int:
        """Return how many there are; the first pass over all of them counts."""
        if self._count is None:
            for _ in self:
                pass
        return self._count or 0

    def each(self, change: Callable[[Example], Example], source: str) -> ExampleStream:
        """Return the stream of what ``change`` makes of each example, of another source."""
        return ExampleStream(
            lambda: map(change, self.open_pass()), buffer=self.buffer, source=source
        )


class Mixture:
    """Examples by source, some of which are streamed."""

    def __init__(self, parts: Mapping[str, Sequence[Example] | ExampleStream]) -> None:
        self.parts = dict(parts)

    def __iter__(self) -> Iterator[Example]:
        return chain.from_iterable(self.parts.values())

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def first(self) -> list[Example]:
        """Return as many of each part as memory holds."""
        return [
            example
            for part in self.parts.values()
            for example in islice(part, part.buffer if isinstance(part, ExampleStream) else None)
        ]


Examples: TypeAlias = list[Example] | Mixture


def by_source(examples: Examples) -> Mapping[str, Iterable[Example]]:
    """Return the examples of each source; nothing that is streamed is read."""
    if isinstance(examples, Mixture):
        return examples.parts
    parts: dict[str, list[Example]] = {}
    for example in examples:
        parts.setdefault(example.source, []).append(example)
    return parts


def collected(examples: Iterable[Example] | Mapping[str, Iterable[Example]]) -> Examples:
    """Return examples as a list, or as a mixture where some are streamed.

    Of a mapping each value's have its key as source.
    """
    if isinstance(examples, Mixture):
        return examples
    if isinstance(examples, ExampleStream):
        return Mixture({examples.source: examples})
    if not isinstance(examples, Mapping):
        return list(examples)
    parts = {
        name: part.each(lambda each: each, name)
        if isinstance(part, ExampleStream)
        else [_of(name, example) for example in part]
        for name, part in examples.items()
    }
    if any(isinstance(part, ExampleStream) for part in parts.values()):
        return Mixture(parts)
    return list(chain.from_iterable(parts.values()))


def _of(source: str, example: Example) -> Example:
    return replace(example, source=source)


class StreamSampler:
    """Yields batches of a stream's examples, drawn from a buffer that the stream refills.

    An epoch reads the stream once, from its start, and has n / ``batch_size`` batches, the last one
    smaller. With ``distinct`` no query appears twice in a batch, nor does a positive while the
    buffer has others; what clashes waits, and the last to wait may be left out. The order is a
    function of seed and epoch: a resumed training continues with the very next example.
    """

    def __init__(
        self,
        stream: ExampleStream,
        batch_size: int,
        *,
        seed: int,
        distinct: bool = True,
        processes: int = 1,
    ) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.seed = seed
        self.distinct = distinct
        self.processes = processes
        self.epoch = 0
        self._warned = False
        whole, rest = divmod(len(stream), batch_size)
        self._count = whole + (rest >= max(processes, 1 + (whole > 0)))
        if not self._count:
            raise DataError(
                f"training: no batch of the {len(stream):,} examples has one for each of "
                f"{processes} processes; train with fewer processes"
            )

    def __len__(self) -> int:
        return self._count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[Example]]:
        chance = random.Random(f"{self.seed}:{self.epoch}:stream")
        left = iter(self.stream)
        buffer = list(islice(left, max(self.stream.buffer, self.batch_size)))
        for _ in range(self._count):
            batch = self._drawn(buffer, chance)
            buffer.extend(islice(left, len(batch)))
            yield batch

    def _drawn(self, buffer: list[Example], chance: random.Random) -> list[Example]:
        """Take a batch out of the buffer: first what shares nothing, then what shares a positive.

        What remains missing to one example for each process shares a query.
        """
        batch: list[Example] = []
        waiting: list[Example] = []
        queries: set[tuple[str, str]] = set()
        both: set[tuple[str, str]] = set()
        while buffer and len(batch) < self.batch_size and len(waiting) < SCAN * self.batch_size:
            place = chance.randrange(len(buffer))
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            example = buffer.pop()
            own = {*query_keys(example)}
            every = {*own, *positive_keys(example)}
            fits = both.isdisjoint(every) or not self.distinct
            (batch if fits else waiting).append(example)
            if fits:
                queries, both = queries | own, both | every
        for example in waiting:
            own = {*query_keys(example)}
            fits = queries.isdisjoint(own) or len(batch) < self.processes
            fits = fits and len(batch) < self.batch_size
            (batch if fits else buffer).append(example)
            queries |= own if fits else set()
        if 2 * len(batch) < self.batch_size and buffer and not self._warned:
            self._warned = True
            log.warning(
                "training: a batch has %s of %s examples: the others in the buffer of %s have the "
                "same queries; enlarge the buffer, or shuffle the file",
                len(batch), self.batch_size, f"{self.stream.buffer:,}",
            )  # fmt: skip
        return batch
