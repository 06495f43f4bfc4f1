"""Which shard holds each row; asks all, in one pass or each with a deadline; who was absent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, SluiceError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import Index
from sluice.indexing.kernels.calls import thread_count

# Documents from which one query of sparse vectors is quicker in several parts by several threads.
LARGE = 500_000


class JoinedParts:
    """The parts as one index, over the same memory; it is joined anew when one has changed.

    To ask four parts one by one takes four times the calls, and none knows the others' k-th score:
    of 10,000 documents that is three times as long as the search of the whole.
    """

    def __init__(self) -> None:
        self._made: tuple[list[Index], list[int], Sequence[Rows], Index | None] = ([], [], (), None)

    def search(
        self,
        parts: Sequence[Index | None],
        rows: Sequence[Rows],
        queries: Any,
        k: int,
        allowed: Mask | None,
        params: dict[str, Any],
    ) -> Hits | None:
        """Return the hits of the collection; None where the parts are to be asked one by one.

        ``rows`` has the collection's row of each row of a part, and ``allowed`` is of the former.
        """
        present = [part for part in parts if part is not None]
        if len(present) < len(parts) or _in_threads(present, queries):
            return None
        index = self._index(present, rows)
        if index is None:
            return None
        merged = {**present[0].default_params, **params}
        try:
            if merged:
                index.check_params(merged)
            return index._search(queries, k, allowed, merged)
        except (SluiceError, OSError):  # one by one, the part that fails is named
            return None

    def _index(self, parts: Sequence[Index], rows: Sequence[Rows]) -> Index | None:
        kind, defaults = type(parts[0]), parts[0].default_params
        if any(type(part) is not kind or part.default_params != defaults for part in parts):
            return None
        readers = [part._reader() for part in parts]
        counts = [reader.rows for reader in readers]
        known, known_counts, known_rows, index = self._made
        same = known_rows is rows and known_counts == counts
        if not same or any(one is not other for one, other in zip(known, readers, strict=True)):
            index = kind._together(readers, [own[:n] for own, n in zip(rows, counts, strict=True)])
            self._made = readers, counts, rows, index
        return index


def stacked(parts: Sequence[Any]) -> Any:
    """Return the vectors of several parts, one after the other; at least one, all of one kind."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], TokenVectors):
        return TokenVectors.joined(parts, parts[0].dim)
    width = max(part.shape[1] for part in parts)
    for part in parts:
        part.resize((part.shape[0], width))
    return sparse.vstack(parts, format="csr")


def _in_threads(parts: Sequence[Index], queries: Any) -> bool:
    """Return whether a thread for each part is quicker: an inverted index has one for a query."""
    if queries.shape[0] >= thread_count() or parts[0].metric is not None:
        return False
    return sum(part.rows for part in parts) >= LARGE


_absent: ContextVar[dict[str, str] | None] = ContextVar("sluice_absent_shards", default=None)


@contextmanager
def partial_results() -> Iterator[dict[str, str]]:
    """Yield a dictionary that the searches of the block, in this thread, fill.

    It has the name of each shard whose documents could not be found, with the reason; it stays
    empty where all answered, as they must unless ``partial: allow`` is set.
    """
    outer = _absent.get()
    absent: dict[str, str] = {}
    token = _absent.set(absent)
    try:
        yield absent
    finally:
        _absent.reset(token)
        if outer is not None:
            outer.update(absent)


def note_absent(absent: Mapping[str, str]) -> None:
    """Add shards, with the reasons, to what the blocks around collect."""
    collected = _absent.get()
    if collected is not None:
        collected.update(absent)


class ShardRows:
    """The rows of a collection, split over shards; each shard has its own in the same order.

    ``rows`` has for each shard the collection's row of each of its own, ascending. Ties in a shard
    are then broken as in the whole. ``IndexFormatError`` unless every row is in one shard.
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._set([np.asarray(each, dtype=np.int64) for each in rows])

    @classmethod
    def split(cls, owners: ArrayLike, shards: int) -> ShardRows:
        """Return the rows of a collection whose row ``i`` is in shard ``owners[i]``."""
        numbers = np.asarray(owners, dtype=np.int64)
        return cls([np.flatnonzero(numbers == shard) for shard in range(shards)])

    def _set(self, rows: list[Rows]) -> None:
        total = sum(len(each) for each in rows)
        self.rows = rows
        self.owners: NDArray[np.int32] = np.full(total, -1, dtype=np.int32)
        self.local: Rows = np.zeros(total, dtype=np.int64)
        for shard, each in enumerate(rows):
            sound = not len(each) or (each[0] >= 0 and each[-1] < total)
            if not (sound and (np.diff(each) > 0).all() and (self.owners[each] < 0).all()):
                raise IndexFormatError(
                    f"rows of shard {shard}: not ascending, beyond {total:,}, or in another shard "
                    "too; rebuild the retriever"
                )
            self.owners[each] = shard
            self.local[each] = np.arange(len(each))

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.rows)

    def extend(self, owners: ArrayLike) -> Rows:
        """Allot the next rows to shards ``owners`` ``[n]``; return these rows."""
        numbers = np.asarray(owners, dtype=np.int64)
        new = len(self) + np.arange(len(numbers), dtype=np.int64)
        self._set([np.concatenate([each, new[numbers == s]]) for s, each in enumerate(self.rows)])
        return new

    def keep(self, kept: Mask) -> None:
        """Forget the rows that ``kept`` excludes; the others move up in order."""
        moved = np.cumsum(kept, dtype=np.int64) - 1
        self._set([moved[each[kept[each]]] for each in self.rows])

    def parted(self, rows: ArrayLike) -> Iterator[tuple[int, NDArray[np.intp], Rows]]:
        """Yield (shard, places in ``rows``, the shard's own rows) of each shard with any."""
        numbers = np.asarray(rows, dtype=np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise DataError(f"rows: expected 0 to {len(self) - 1:,}; open the retriever again")
        owners = self.owners[numbers]
        for shard in np.flatnonzero(np.bincount(owners)).tolist():
            places = np.flatnonzero(owners == shard)
            yield shard, places, self.local[numbers[places]]


PARTIAL, DEADLINE, HEDGE = (
    "partial",
    "deadline_ms",
    "hedge_ms",
)  # search parameters of a search in shards
OWN_PARAMETERS = (PARTIAL, DEADLINE, HEDGE)
CHOICES = ("error", "allow")

Answer = TypeVar("Answer")
Ask = Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long shards are waited for, in seconds; None: until they answer.

    After ``hedge`` a shard's replica gets the query too, and the first answer counts.
    """

    deadline: float | None = None
    hedge: float | None = None

    @property
    def is_endless(self) -> bool:
        """Whether every shard is waited for."""
        return self.deadline is None and self.hedge is None


@dataclass(slots=True)
class Answers(Generic[Answer]):
    """The answer of each shard that gave one, and why the others did not."""

    found: dict[int, Answer]
    absent: dict[int, str]


def ask_all(
    asked: Sequence[Sequence[Ask[Answer]]], patience: Patience, pool: ThreadPoolExecutor | None
) -> Answers[Answer]:
    """Ask every shard; ``asked`` has for each the shard itself, if it exists, then replicas.

    A shard that raises an ``OSError`` or an ``IndexFormatError`` counts as absent, and its next
    replica gets the query. What is wrong with the query is raised: all would say the same.
    Without a deadline and a hedge they work in ``pool``, or in turn.
    """
    if patience.is_endless:
        first = pool.map(_first_answer, asked) if pool else map(_first_answer, asked)
        answers: Answers[Answer] = Answers({}, {})
        for shard, (answer, why) in enumerate(first):
            if answer is None:
                answers.absent[shard] = why
            else:
                answers.found[shard] = answer
        return answers
    return _Race(asked, patience).run()


def _first_answer(copies: Sequence[Ask[Answer]]) -> tuple[Answer | None, str]:
    why = "it could not be opened"
    for ask in copies:
        try:
            return ask(), ""
        except (ConfigError, DataError):
            raise
        except (SluiceError, OSError) as error:
            why = str(error)
    return None, why


class _Race(Generic[Answer]):
    """Shards and their replicas, each in a thread of its own that nobody waits for at the end."""

    def __init__(self, asked: Sequence[Sequence[Ask[Answer]]], patience: Patience) -> None:
        self._left = [list(each) for each in asked]  # copies not asked yet
        self._running = [0] * len(asked)
        self._why = ["it could not be opened"] * len(asked)
        self._patience = patience
        self._queue: SimpleQueue[tuple[int, Answer | None, BaseException | None]] = SimpleQueue()
        self._start = time.monotonic()
        self._hedged = [False] * len(asked)

    def run(self) -> Answers[Answer]:
        """Return what arrives in time."""
        found: dict[int, Answer] = {}
        shards = range(len(self._left))
        for shard in shards:
            self._ask_next(shard)
        while waiting := [s for s in shards if s not in found and self._running[s]]:
            try:
                shard, answer, error = self._queue.get(timeout=self._pause(waiting))
            except Empty:
                if self._spent() >= (self._patience.deadline or float("inf")):
                    for shard in waiting:
                        self._why[shard] = f"no answer within {1000 * self._spent():.0f} ms"
                    break
                self._hedge(waiting)
                continue
            self._running[shard] -= 1
            if answer is not None:
                found.setdefault(shard, answer)
            elif isinstance(error, ConfigError | DataError) or not isinstance(
                error, SluiceError | OSError
            ):
                raise error or RuntimeError("a shard gave no answer")
            else:
                self._why[shard] = str(error)
                self._ask_next(shard)
        return Answers(found, {s: self._why[s] for s in shards if s not in found})

    def _spent(self) -> float:
        return time.monotonic() - self._start

    def _pause(self, waiting: Sequence[int]) -> float | None:
        """Return the seconds until something is due: the deadline, or a request to a replica."""
        due = [] if self._patience.deadline is None else [self._patience.deadline]
        if self._patience.hedge is not None and any(self._may_hedge(s) for s in waiting):
            due.append(self._patience.hedge)
        return max(min(due) - self._spent(), 0.0) if due else None

    def _may_hedge(self, shard: int) -> bool:
        return bool(self._left[shard]) and not self._hedged[shard]

    def _hedge(self, waiting: Sequence[int]) -> None:
        for shard in waiting:
            if self._may_hedge(shard) and self._spent() >= (self._patience.hedge or 0.0):
                self._hedged[shard] = True
                self._ask_next(shard)

    def _ask_next(self, shard: int) -> None:
        if not self._left[shard]:
            return
        ask = self._left[shard].pop(0)
        self._running[shard] += 1

        def work() -> None:
            try:
                self._queue.put((shard, ask(), None))
            except BaseException as error:  # raised in the caller's thread
                self._queue.put((shard, None, error))

        threading.Thread(target=work, name=f"shard-{shard}", daemon=True).start()


def check_patience(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a wrong value of ``partial``, ``deadline_ms`` or ``hedge_ms``."""
    if params.get(PARTIAL, CHOICES[0]) not in CHOICES:
        raise ConfigError(
            f"params: partial: {params[PARTIAL]!r:.80}; expected error, or allow, which goes "
            "without the shards that do not answer"
        )
    for name in (DEADLINE, HEDGE):
        value = params.get(name)
        if value is not None and not (is_number(value) and 0 < value < float("inf")):
            raise ConfigError(
                f"params: {name}: {value!r:.80}; expected milliseconds, a number above 0"
            )
