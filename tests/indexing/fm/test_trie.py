"""The trie of identifiers against looking at every one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenSequences, WeightedNgrams
from sluice.indexing import TrieIndex, open_index
from sluice.indexing.flat.index import FlatIndex

Code = tuple[int, ...]
END = 0
bodies = st.lists(st.integers(1, 4), max_size=4).map(tuple)
code_sets = st.sets(bodies, max_size=12).map(lambda found: [(*each, END) for each in found])


def filled(codes: list[Code]) -> TrieIndex:
    index = TrieIndex()
    for start in range(0, len(codes), 5):
        index.add(TokenSequences.of(codes[start : start + 5]))
    return index


def check(index: TrieIndex, live: dict[int, Code]) -> None:
    """Compare every beginning with what brute force says."""
    beginnings = {code[:size] for code in live.values() for size in range(len(code) + 1)}
    for begin in {(), (9,), (1, 9), *beginnings}:
        node = index.prefix(begin)
        below = [code for code in live.values() if code[: len(begin)] == begin]
        expected = Counter(code[len(begin)] for code in below if len(code) > len(begin))
        found = index.continuations(node)
        assert node.count == len(below)
        assert found.tokens.tolist() == sorted(expected)
        assert dict(zip(found.tokens.tolist(), found.counts.tolist(), strict=True)) == expected
        assert node.complete == (begin in live.values())


@settings(max_examples=40, deadline=None)
@given(code_sets, st.data())
def test_places_and_continuations_are_those_of_live_documents(
    codes: list[Code], data: st.DataObject
) -> None:
    index = filled(codes)
    live = dict(enumerate(codes))
    check(index, live)
    dead = data.draw(st.sets(st.sampled_from(range(len(codes)))) if codes else st.just(set[int]()))
    index.delete(sorted(dead))
    live = {row: code for row, code in live.items() if row not in dead}
    check(index, live)
    moved = index.compact()
    live = {int(moved[row]): code for row, code in live.items()}
    check(index, live)
    for code in [codes[row] for row in sorted(dead)]:  # theirs are free again
        live[int(index.add(TokenSequences.of([code]))[0])] = code
    check(index, live)


def test_a_search_returns_written_identifiers_by_probability(tmp_path: Path) -> None:
    codes = [(1, END), (2, 1, END), (2, 3, END), (3, END)]
    index = filled(codes)
    index.delete([3])
    query = [((2, 3, END), 0.5), ((1, END), 0.25), ((3, END), 0.1), ((2, END), 0.1), ((2,), 0.1)]
    asked = WeightedNgrams.of([query, [], [((2, 1, END), 7.0), ((1, END), 7.0)]])
    for one in (index, reopened(index, tmp_path)):
        hits = one.search(asked, 9)
        assert hits.rows[:, :3].tolist() == [[0, 2, -1], [-1, -1, -1], [0, 1, -1]]
        assert hits.scores[0, :2].tolist() == [-0.25, -0.5]
        assert hits.scores[2, :2].tolist() == [-7, -7]
        assert one.search(asked, 1, keep=[2]).rows.tolist() == [[2], [-1], [-1]]
        (part,) = one.explain(asked[:1], 2)
        assert (part.term, part.contribution) == ((2, 3, END), -0.5)
        assert one.explain(asked[:1], 1) == []
        assert [each.tolist() for each in one.documents([2, 0])] == [[2, 3, END], [1, END]]


def reopened(index: TrieIndex, folder: Path) -> TrieIndex:
    index.save(folder / "trie")
    opened = open_index(folder / "trie")
    assert isinstance(opened, TrieIndex)
    assert len(opened) == len(index)
    return opened


def test_identifiers_that_collide_are_refused_and_nothing_is_added() -> None:
    index = filled([(1, END), (2, 3, END)])
    for code in ((1, END), (2, 3), (2, 3, END, 4), (2, 3, END)):
        with pytest.raises(DataError, match=r"of rows \d and 2 are the same"):
            index.add(TokenSequences.of([code]))
        assert index.rows == len(index) == 2
    with pytest.raises(DataError, match="of rows 2 and 3"):
        index.add(TokenSequences.of([(7,), (7,)]))
    with pytest.raises(DataError, match="without tokens"):
        index.add(TokenSequences.of([()]))
    index.delete([0])
    assert index.add(TokenSequences.of([(1, END)])).tolist() == [2]


def test_vectors_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected TokenSequences"):
        TrieIndex().add(np.zeros((1, 2), np.float32))
    with pytest.raises(DataError, match="expected WeightedNgrams"):
        filled([(1,)]).search(np.zeros((1, 2), np.float32), 1)
    with pytest.raises(DataError):
        FlatIndex().add(TokenSequences.of([(1,)]))
    filled([(1, END), (2, END)]).save(tmp_path / "trie")
    (found,) = (tmp_path / "trie").rglob("bounds.npy")
    np.save(found, np.array([0, 3, 2]))
    with pytest.raises(IndexFormatError, match="checksum"):
        open_index(tmp_path / "trie")


def test_an_empty_trie_has_no_hits() -> None:
    index = TrieIndex()
    assert index.search(WeightedNgrams.of([[((1,), 1.0)]]), 3).rows.tolist() == [[-1, -1, -1]]
    assert index.empty().rows == index.prefix().count == 0
