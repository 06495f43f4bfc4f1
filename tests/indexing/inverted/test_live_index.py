"""A changing inverted index: equal to one rebuilt, whole after a kill, steady under readers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from places import SUPPORT
from scipy import sparse

import sluice.indexing.inverted.segment_list
from sluice.encoders.foundation.disk.generations import verify
from sluice.indexing import InvertedIndex, open_index


def drawn(rng: np.random.Generator, count: int, terms: int = 20) -> Any:
    table = rng.integers(1, 4, (count, terms)) * (rng.random((count, terms)) < 0.3)
    return sparse.csr_array(table.astype(np.float32))


STEPS = st.lists(
    st.sampled_from(["add", "add", "delete", "replace", "compact", "save", "search"]),
    min_size=1,
    max_size=12,
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), steps=STEPS, order=st.sampled_from(["input", "cluster"]))
def test_any_sequence_equals_a_rebuilt_index(
    seed: int, steps: list[str], order: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    index: Any = InvertedIndex(n_terms=20, order=order)
    expected: list[Any] = []  # each row's document, None once deleted
    path = tmp_path_factory.mktemp("live") / "index"
    queries = drawn(rng, 5)
    for step in steps:
        live = [row for row, document in enumerate(expected) if document is not None]
        if step == "add":
            new = drawn(rng, int(rng.integers(0, 25)))
            rows = index.add(new)
            assert rows.tolist() == list(range(len(expected), len(expected) + new.shape[0]))
            expected += [new[[row]] for row in range(new.shape[0])]
        elif step in ("delete", "replace") and live:
            gone = rng.choice(live, size=int(rng.integers(1, len(live) + 1)), replace=False)
            index.delete(gone)
            for row in gone.tolist():
                expected[row] = None
            if step == "replace":
                new = drawn(rng, len(gone))
                index.add(new)
                expected += [new[[row]] for row in range(new.shape[0])]
        elif step == "compact":
            moved = index.compact()
            assert moved[live].tolist() == list(range(len(live)))
            expected = [expected[row] for row in live]
        elif step == "save":
            index.save(path)
            index = open_index(path)
        check(index, expected, queries)
    check(index, expected, queries)


def check(index: Any, expected: list[Any], queries: Any) -> None:
    live = [row for row, document in enumerate(expected) if document is not None]
    assert (index.rows, len(index)) == (len(expected), len(live))
    rebuilt = InvertedIndex(n_terms=20)
    if live:
        rebuilt.add(sparse.csr_array(sparse.vstack([expected[row] for row in live])))
    for k in (3, 50):
        hits, again = index.search(queries, k), rebuilt.search(queries, k)
        numbers = np.array([*live, -1])
        np.testing.assert_array_equal(hits.rows, numbers[again.rows])
        np.testing.assert_array_equal(hits.scores, again.scores)


def test_small_segments_are_merged_and_their_number_stays_logarithmic() -> None:
    index, rng = InvertedIndex(), np.random.default_rng(1)
    for _ in range(200):
        index.add(drawn(rng, 5))
        index.search(drawn(rng, 1), 1)
    assert index.stats().segments <= 10
    before = index.documents(np.arange(1000))
    index.delete([7])
    index.compact()
    assert index.stats().segments == 1
    kept = np.delete(np.arange(1000), 7)
    assert (index.documents(np.arange(999)) != before[kept]).nnz == 0


def test_a_large_addition_is_cut_into_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.indexing.inverted.segment_list, "SEGMENT_DOCUMENTS", 64)
    monkeypatch.setattr(
        sluice.indexing.inverted.segment_list, "IN_MEMORY", 10
    )  # so that segments are files
    rng = np.random.default_rng(3)
    documents, queries = drawn(rng, 500), drawn(rng, 20)
    index, whole = InvertedIndex(), InvertedIndex()
    index.add(documents[:30])
    index.add(documents[30:])
    assert index.stats().segments == 8
    monkeypatch.undo()
    whole.add(documents)
    assert whole.stats().segments == 1
    for k in (5, 600):
        np.testing.assert_array_equal(index.search(queries, k).rows, whole.search(queries, k).rows)


def test_spilled_documents_make_the_same_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluice.indexing.inverted.segments.build as build
    from sluice.indexing.inverted.spooling.spool import Spool

    rng = np.random.default_rng(4)
    documents = drawn(rng, 700)
    kept, spilled = Spool(), Spool(spill=100)
    for first in range(0, 700, 90):
        kept.append(documents[first : first + 90])
        spilled.append(documents[first : first + 90])
    monkeypatch.setattr(build, "RANGE", 300)
    monkeypatch.setattr(build, "STRETCH", 256)
    in_parts = build.build_segment(spilled, 20)
    monkeypatch.undo()
    for one, other in zip(build.build_segment(kept, 20), in_parts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_searches_see_one_state_while_another_thread_changes_it() -> None:
    """Half the documents are replaced by better ones, back and forth; a mixture would be seen."""
    rng = np.random.default_rng(5)
    low, high = drawn(rng, 400), drawn(rng, 400)
    low.data[:], high.data[:] = 1, 2
    index = InvertedIndex(n_terms=20)
    index.add(low)
    query = sparse.csr_array(np.ones((1, 20), dtype=np.float32))
    states = set()
    for documents in (low, high):
        alone = InvertedIndex(n_terms=20)
        alone.add(documents)
        states.add(tuple(alone.search(query, 30).scores[0].tolist()))
    done, wrong = threading.Event(), []

    def change() -> None:
        for turn in range(12):
            with index._changing:  # one change for the readers: they see neither half
                index.delete(np.arange(400))
                index.add(high if turn % 2 == 0 else low)
            index.compact()
        done.set()

    def read() -> None:
        while not done.is_set():
            found = tuple(index.search(query, 30).scores[0].tolist())
            if found not in states:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    change()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.thorough
def test_a_killed_save_leaves_a_whole_index(tmp_path: Path) -> None:
    chance = random.Random(11)
    query = sparse.csr_array(np.ones((1, 20), dtype=np.float32))
    for _ in range(4):
        command = [sys.executable, str(SUPPORT / "index_loop.py"), str(tmp_path / "index")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
        assert verify(tmp_path / "index") > 0
        index: Any = open_index(tmp_path / "index")
        # Document n weighs n + 1 in term 0: what is there and in which order can be read off.
        weights = index.documents(np.arange(index.rows))[:, [0]].toarray()[:, 0]
        assert (np.diff(weights) > 0).all()
        live = np.setdiff1d(np.arange(index.rows), index._live.deleted)
        best = index.search(query, 5).rows[0]
        assert best[best >= 0].tolist() == live[::-1][:5].tolist()


def test_links_are_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    index = InvertedIndex()
    index.add(drawn(rng, 400))
    index.save(tmp_path / "index")
    opened: Any = open_index(tmp_path / "index")
    opened.add(drawn(rng, 5))
    hashed = []
    from sluice.encoders.foundation.disk.files import file_hash

    monkeypatch.setattr(
        "sluice.encoders.foundation.disk.generations.file_hash",
        lambda path: hashed.append(path.name) or file_hash(path),
    )
    opened.save(tmp_path / "index")
    assert hashed
    assert not [name for name in hashed if name.startswith("s000001-")]
    monkeypatch.undo()
    verify(tmp_path / "index")
