from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.tokens import (
    LARGEST_TOKEN,
    TokenSequences,
    WeightedNgrams,
)
from sluice.indexing import FmIndex, open_index
from sluice.indexing.own.fm.kernels import suffix_array

Texts = Sequence[Sequence[int]]

texts = st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=7)
ngrams = st.lists(st.integers(0, 4), max_size=4)


def places(documents: Texts, ngram: Sequence[int], skip: Sequence[int] = ()) -> list[list[int]]:
    """Where an n-gram begins in documents that are not deleted, found by looking everywhere."""
    return [
        [row, start]
        for row, document in enumerate(documents)
        if row not in skip
        for start in range(len(document) - len(ngram) + 1)
        if list(document[start : start + len(ngram)]) == list(ngram)
    ]


def after(documents: Texts, prefix: Sequence[int], skip: Sequence[int] = ()) -> dict[int, int]:
    """Which tokens follow a prefix, and how often."""
    ends = ((row, start + len(prefix)) for row, start in places(documents, prefix, skip))
    return dict(Counter(documents[row][end] for row, end in ends if end < len(documents[row])))


def check(index: FmIndex, documents: Texts, asked: Texts, skip: Sequence[int] = ()) -> None:
    for ngram in asked:
        expected = places(documents, ngram, skip)
        found = index.continuations(ngram)
        assert found.tokens.tolist() == sorted(found.tokens.tolist())
        assert dict(zip(found.tokens.tolist(), found.counts.tolist(), strict=True)) == after(
            documents, ngram, skip
        )
        if ngram:
            assert index.count(ngram) == len(expected)
            located = np.stack(index.locate(ngram), axis=1)
            assert located.tolist() == expected
        else:
            live = [len(text) for row, text in enumerate(documents) if row not in skip]
            assert index.count(ngram) == index.tokens == sum(live)


def filled(documents: Texts, **options: int) -> FmIndex:
    index = FmIndex(**options)
    index.add(TokenSequences.of(documents))
    return index


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_suffixes_are_in_order(numbers: list[int]) -> None:
    text = np.array(numbers, np.int32)
    expected = sorted(range(len(numbers)), key=lambda place: numbers[place:])
    assert suffix_array(text, 4).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(texts, st.lists(ngrams, min_size=1, max_size=6), st.integers(1, 30))
def test_counts_and_continuations_are_those_of_naive_search(
    documents: Texts, asked: Texts, segment: int
) -> None:
    check(filled(documents, segment_tokens=segment), documents, [*asked, []])


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.data(), texts, texts, st.integers(1, 30))
def test_changes_are_those_of_naive_search(
    data: st.DataObject, first: Texts, second: Texts, segment: int
) -> None:
    index = filled(first, segment_tokens=segment)
    documents = [*first, *second]
    rows = st.sets(st.integers(0, max(0, len(first) - 1)))
    dead = sorted(data.draw(rows)) if first else []
    index.delete(dead)
    index.add(TokenSequences.of(second))
    if second and len(documents) - 1 not in dead:
        dead.append(len(documents) - 1)
        index.delete([len(documents) - 1])
    asked = data.draw(st.lists(ngrams, min_size=1, max_size=5))
    check(index, documents, [*asked, []], dead)

    moved = index.compact()
    live = [text for row, text in enumerate(documents) if row not in dead]
    assert (moved >= 0).tolist() == [row not in dead for row in range(len(documents))]
    check(index, live, [*asked, []])
    assert [text.tolist() for text in index.documents(range(len(live)))] == [*map(list, live)]


def test_long_repetitions_and_equal_documents() -> None:
    documents = [[7] * 300, [7] * 300, [1, 2] * 150, [1, 2] * 150, []]
    index = filled(documents)
    check(index, documents, [[7], [7] * 299, [7] * 300, [7] * 301, [1, 2] * 150, [2, 1], [2, 2]])


def test_an_ngram_ends_with_its_document() -> None:
    index = filled([[1, 2], [3, 4]])
    assert index.count([2, 3]) == 0
    assert index.continuations([2]).tokens.size == 0
    assert index.continuations([2, 3]).tokens.size == 0


def test_unknown_tokens_and_an_empty_index() -> None:
    empty = FmIndex()
    check(empty, [], [[], [3], [3, 4]])
    index = filled([[5, 6]])
    for token in (-1, 7, LARGEST_TOKEN, 2**40):
        assert index.count([token]) == 0
        assert index.continuations([5, token]).tokens.size == 0
    with pytest.raises(DataError, match="begins everywhere; give at least one token"):
        index.locate([])
    with pytest.raises(DataError, match=re.escape("expected token ids")):
        index.count([0.5])  # type: ignore[list-item]


def test_what_follows_a_frequent_ngram_is_remembered_until_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.indexing.own.fm.index.WIDE", 2)
    index = filled([[1, 2], [1, 3], [1, 2]])
    first = index.continuations([1])
    assert index.continuations([1]) is first
    assert index._reader().continuations([1]) is first  # its readers remember the same
    assert index._wide.bytes == sum(array.nbytes for array in first)
    assert index.continuations([2]) is not index.continuations([2])  # not frequent
    index.delete([0])
    check(index, [[1, 2], [1, 3], [1, 2]], [[1]], [0])
    monkeypatch.setattr("sluice.indexing.own.fm.segment_list.REMEMBERED", 1)
    index.add(TokenSequences.of([[1, 4], [1, 5]]))
    assert index.continuations([1]) is not index.continuations([1])  # no room


def test_a_prefix_stays_one_of_the_index_it_was_asked_of() -> None:
    index = filled([[1, 2]])
    before = index.prefix([1])
    index.add(TokenSequences.of([[1, 3]]))
    assert index.continuations(before).tokens.tolist() == [2]
    assert index.continuations(index.prefix([1])).tokens.tolist() == [2, 3]


@pytest.mark.parametrize("spooled", [False, True])
def test_a_saved_index_is_the_same(tmp_path: Path, spooled: bool) -> None:
    documents = [[1, 2, 3], [2, 3], [1, 2, 2]]
    index = FmIndex(segment_tokens=5, most_hits=7, candidates=9, repeated=1.0)
    if spooled:
        index.spool(tmp_path / "work")
    index.add(TokenSequences.of(documents))
    index.delete([1])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, FmIndex)
    assert opened.settings() == index.settings()
    check(opened, documents, [[], [2], [1, 2], [2, 3]], [1])
    opened.compact()
    opened.add(TokenSequences.of([[9]]))
    opened.save(tmp_path / "index")
    check(open_index(tmp_path / "index"), [[1, 2, 3], [1, 2, 2], [9]], [[], [2], [9]])  # type: ignore[arg-type]


def test_what_did_not_change_is_linked_not_written(tmp_path: Path) -> None:
    filled([[1, 2, 3] * 20]).save(tmp_path)
    opened = open_index(tmp_path)
    opened.add(TokenSequences.of([[1, 2]]))
    opened.delete([0])
    opened.save(tmp_path)
    first, second = (tmp_path / name / "s000001-lists.npy" for name in ("g000001", "g000002"))
    assert first.stat().st_ino == second.stat().st_ino
    check(open_index(tmp_path), [[1, 2, 3] * 20, [1, 2]], [[1], [2, 3]], [0])  # type: ignore[arg-type]


def test_a_failed_addition_leaves_the_index_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled([[1, 2]], segment_tokens=4)

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.indexing.own.fm.segment_list.Segment.build", full)
        with pytest.raises(OSError, match="no space left"):
            index.add(TokenSequences.of([[3], [4, 5, 6]]))
    index.add(TokenSequences.of([[8]]))
    check(index, [[1, 2], [8]], [[1], [3], [8]])


@pytest.mark.parametrize(
    ("name", "value"), [("following", 999), ("following", -5), ("places", 2**30), ("starts", 99)]
)
def test_an_edited_file_is_refused_not_followed(tmp_path: Path, name: str, value: int) -> None:
    index = filled([[1, 2, 3, 1]] * 3)
    index.delete([0])
    index.save(tmp_path)
    file = next(tmp_path.glob(f"g*/s000001-{name}.npy"))
    array = np.load(file)
    array[1:] = value
    np.save(file, array)
    with pytest.raises(IndexFormatError, match="rebuild"):
        open_index(tmp_path)  # by its checksum
    index._segments[0].segment.following.flags.writeable = True
    index._segments[0].segment.following[:] = 10**6
    with pytest.raises(IndexFormatError, match="beyond 4; the file was edited: rebuild"):
        index.continuations([1])


def test_what_an_index_refuses() -> None:
    with pytest.raises(ConfigError, match=r"repeated: 1.5, expected a number from 0 to 1"):
        FmIndex(repeated=1.5)
    with pytest.raises(ConfigError, match="segment_tokens"):
        FmIndex(segment_tokens=2**31)
    with pytest.raises(DataError, match="expected TokenSequences"):
        FmIndex().add(np.zeros((1, 3), np.float32))
    with pytest.raises(DataError, match="expected WeightedNgrams"):
        filled([[1]]).search(TokenSequences.of([[1]]), 1)
    with pytest.raises(DataError, match="id -1"):
        TokenSequences.of([[-1]])
    for weight in (-1.0, float("nan"), 1e10):
        with pytest.raises(DataError, match="expected weights from 0 to 1e"):
            WeightedNgrams.of([[([1], weight)]])
    with pytest.raises(DataError, match="one has no token"):
        WeightedNgrams.of([[([], 1.0)]])
