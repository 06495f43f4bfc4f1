"""An FM-index that is read while it changes, and places that are older than the index."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.tokens import TokenSequences, WeightedNgrams
from sluice.indexing import FmIndex
from sluice.indexing.own.fm import index as fm_index

LIMIT = 60  # seconds, of a thread that should end at once
NEW = [[5, 6, 7], [5, 6], [5, 5, 6, 8], [7, 5, 6]]


def filled(texts: list[list[int]], **options: int) -> FmIndex:
    index = FmIndex(**options)
    index.add(TokenSequences.of(texts))
    return index


def ended(threads: list[threading.Thread]) -> None:
    """Wait for threads, and fail if one does not end."""
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_what_followed_before_an_addition_is_not_said_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A place from before is asked once more, while the added documents still wait."""
    monkeypatch.setattr(fm_index, "WIDE", 0)  # everything is remembered
    rng = np.random.default_rng(13)
    for _ in range(20):
        texts = [rng.integers(1, 5, rng.integers(1, 6)).tolist() for _ in range(6)]
        index = filled(texts[:3])
        places = [index.prefix([token]) for token in range(1, 5)]
        index.add(TokenSequences.of(texts[3:]))
        for place in places:
            index.continuations(place)
        fresh = filled(texts)
        for token in range(1, 5):
            one, other = index.continuations([token]), fresh.continuations([token])
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.counts.tolist() == other.counts.tolist()


class Watched(TokenSequences):
    """Sequences that let another thread look at the index whenever some of them are taken."""

    look: Any = None

    def __getitem__(self, rows: Any) -> TokenSequences:
        if self.look is not None:
            self.look()
        return super().__getitem__(rows)


def test_a_reader_sees_all_of_an_addition_or_nothing() -> None:
    index = filled([[5, 6], [1, 2]], segment_tokens=4)
    assert index.count([5, 6]) == 1  # so that nothing waits to be sorted
    seen: list[int] = []
    threads: list[threading.Thread] = []

    def read() -> None:
        seen.extend((index.count([5, 6]), len(index.locate([5, 6]).rows)))

    def look() -> None:
        threads.append(threading.Thread(target=read, daemon=True))
        threads[-1].start()
        threads[-1].join(0.05)

    given = TokenSequences.of(NEW)
    documents = Watched(given.ids, given.bounds)
    documents.look = look
    index.add(documents)
    ended(threads)
    read()
    assert len(threads) > 2  # the addition made segments of its own
    assert set(seen) <= {1, 5}
    assert seen[-2:] == [5, 5]


class Adding(WeightedNgrams):
    """A query that is being read when another thread adds documents."""

    index: FmIndex

    def query(self, number: int) -> Any:
        thread = threading.Thread(
            target=lambda: self.index.add(TokenSequences.of(NEW)), daemon=True
        )
        thread.start()
        ended([thread])
        return super().query(number)


@pytest.mark.parametrize("deleted", [[], [1]])
def test_a_search_goes_on_in_the_state_it_began_with(deleted: list[int]) -> None:
    index = filled([[5, 6], [1, 2], [6, 5]])
    index.delete(deleted)
    plain = WeightedNgrams.of([[((5, 6), 1.0), ((5,), 0.5)]])
    expected = index.search(plain, 3)
    query = Adding(plain.ngrams, plain.weights, plain.bounds)
    query.index = index
    found = index.search(query, 3)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.scores.tolist() == expected.scores.tolist()
    assert index.rows == 3 + len(NEW)


def test_readers_beside_a_writer() -> None:
    index = filled([[5, 6]], segment_tokens=16)
    query = WeightedNgrams.of([[((5, 6), 1.0)]])
    faults: list[BaseException] = []
    done = threading.Event()

    def rounds() -> Iterator[int]:
        while not done.is_set():
            yield 0

    def read() -> None:
        last = 0
        try:
            for _ in rounds():
                count = index.count([5, 6])
                assert count >= last
                assert len(index.locate([5, 6]).rows) >= count
                assert index.search(query, 3).rows[0, 0] == 0
                assert sum(index.continuations([5]).counts.tolist()) >= count
                last = count
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        index.add(TokenSequences.of([[5, 6], [number, 7]]))
    done.set()
    ended(threads)
    assert not faults
    assert index.count([5, 6]) == 41
