"""Faults that a review of the inverted index found: each test failed before it was mended."""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import tokenize
import weakref
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import sluice.encoders.foundation.disk.files
import sluice.encoders.foundation.disk.generations
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.indexing import InvertedIndex, open_index
from sluice.indexing.inverted import segment_list as placed_segments
from sluice.indexing.inverted.segments import build as segment_build
from sluice.indexing.inverted.segments.build import streamed_documents
from sluice.indexing.inverted.spooling.spool import Spool


def csr(rows: Any) -> Any:
    return sparse.csr_array(np.asarray(rows, dtype=np.float32))


def index_of(rows: Any, **settings: Any) -> InvertedIndex:
    index = InvertedIndex(**settings)
    index.add(csr(rows))
    return index


@pytest.mark.parametrize("fidelity", ["exact", "u8"])
@pytest.mark.parametrize("documents", [2_000, 20_000, 60_000])
def test_row_zero_survives_when_the_block_engine_gives_up(fidelity: str, documents: int) -> None:
    """The bar handed on was row 0's own key, and a key has to be above the bar."""
    index = index_of(np.ones((documents, 20)), fidelity=fidelity)
    query = csr(np.ones((1, 20)))
    for keep in (None, np.arange(documents) % 2 == 0):
        assert index.search(query, 1, keep=keep).rows.tolist() == [[0]]


def test_a_plan_counts_the_blocks_of_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_segments, "SEGMENT_DOCUMENTS", 64)
    index = index_of(np.ones((128, 3)))
    plan = index.plan(csr(np.ones((1, 3))), 128, params={"engine": "blocks"})[0]
    assert plan.scored_blocks == 8


def test_a_saved_index_is_never_another_ones(tmp_path: Path) -> None:
    """Files are linked by path: another index may have been saved there since."""
    mine, other = index_of([[1, 0], [0, 2]]), index_of([[5, 0], [0, 7]])
    mine.save(tmp_path / "shared")
    shutil.rmtree(tmp_path / "shared")
    other.save(tmp_path / "shared")
    mine.save(tmp_path / "copy")
    opened: Any = open_index(tmp_path / "copy")
    assert opened.documents([0, 1]).toarray().tolist() == [[1, 0], [0, 2]]


def test_a_failed_save_leaves_no_places_to_link_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = index_of([[1, 0], [0, 2]]), index_of([[5, 0], [0, 7]])

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sluice.encoders.foundation.disk.generations, "_described", full)
        with pytest.raises(OSError, match="No space"):
            mine.save(tmp_path / "shared")
    other.save(tmp_path / "shared")
    mine.save(tmp_path / "copy")
    opened: Any = open_index(tmp_path / "copy")
    assert opened.documents([0, 1]).toarray().tolist() == [[1, 0], [0, 2]]


def test_replaced_segments_are_freed_at_once() -> None:
    """A reader that refers to itself waits for the collector of cycles, its segments with it."""
    gc.collect()
    gc.disable()
    try:
        index, seen = InvertedIndex(), []
        for _ in range(5):
            index.add(csr(np.ones((100, 5))))
            index.search(csr(np.ones((1, 5))), 3)
            seen.append(weakref.ref(index._segments[-1].segment.codes))
        alive = sum(codes() is not None for codes in seen)
        assert alive == len(index._segments)
    finally:
        gc.enable()


def test_an_add_that_fails_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(np.eye(3))
    index._spool._spill = 0

    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_write", full)
        with pytest.raises(OSError, match="No space"):
            index.add(csr(np.ones((4, 3))))
    hits = index.search(csr(np.ones((1, 3))), 5)
    assert index.rows == 3
    assert hits.rows.tolist() == [[0, 1, 2, -1, -1]]


def test_a_failed_flush_leaves_no_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(placed_segments, "IN_MEMORY", 0)
    index = index_of(np.eye(3))
    with monkeypatch.context() as patch:
        patch.setattr(segment_build, "_write_terms", full)
        with pytest.raises(OSError, match="No space"):
            index.search(csr(np.ones((1, 3))), 1)
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert index.search(csr(np.ones((1, 3))), 1).rows.tolist() == [[0]]


@pytest.mark.parametrize("change", ["add", "delete", "compact"])
def test_save_writes_one_state(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, deleted rows and segments have to be of one instant, whatever another thread does."""
    index = index_of(np.eye(4))
    index.delete([3])
    changes = {
        "add": lambda: index.add(csr(np.eye(4))),
        "delete": lambda: index.delete([0]),
        "compact": index.compact,
    }
    write = InvertedIndex._write

    def changed(self: InvertedIndex, folder: Path) -> dict[str, Any]:
        thread = Thread(target=changes[change], daemon=True)
        thread.start()
        thread.join(0.5)  # a save that holds the lock keeps the change waiting
        return write(self, folder)

    monkeypatch.setattr(InvertedIndex, "_write", changed)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert len(opened) in ({3, 7} if change == "add" else {2, 3})


def test_documents_over_no_vocabulary_can_be_saved(tmp_path: Path) -> None:
    index = InvertedIndex(fidelity="u8")
    index.add(sparse.csr_array((3, 0), dtype=np.float32))
    index.save(tmp_path / "index")
    assert open_index(tmp_path / "index").rows == 3


def test_an_alpha_that_float32_rounds_to_zero() -> None:
    index = index_of(np.ones((100, 5)))
    params = {"alpha": 1e-60, "engine": "blocks"}
    assert index.search(csr(np.ones((1, 5))), 3, params=params).rows.shape == (1, 3)


def test_explain_takes_the_queries_that_search_takes() -> None:
    index, query = index_of(np.eye(3), n_terms=3), csr(np.ones((1, 5)))
    assert index.search(query, 1).rows.tolist() == [[0]]
    assert [part.term for part in index.explain(query, 0)] == [0]


def test_explain_of_a_product_beyond_float32() -> None:
    index = index_of([[3e38]])
    assert [part.term for part in index.explain(csr([[10]]), 0)] == [0]  # a warning is an error


def test_the_width_outlives_its_documents() -> None:
    index = index_of(np.eye(3))
    index.delete([0, 1, 2])
    index.compact()
    assert index.width == 3


def test_a_reader_does_not_grow() -> None:
    index = index_of(np.eye(3))
    reader = index._reader()
    index.add(csr(np.eye(9)))
    assert (reader.width, reader.rows) == (3, 3)


def test_merging_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge holds one chunk of documents beside the spool, not all of them."""
    index = index_of(np.ones((3 * 65_536, 1)))
    index._reader()
    most, held = 0, [0]

    def watched(segment: Any) -> Any:
        nonlocal most
        for chunk in streamed_documents(segment):
            held[0] += 1
            most = max(most, held[0])
            weakref.finalize(chunk, lambda: held.__setitem__(0, held[0] - 1))
            yield chunk
            del chunk

    monkeypatch.setattr(placed_segments, "streamed_documents", watched)
    index.add(csr(np.ones((2 * 65_536, 1))))
    index._reader()
    assert 0 < most <= 2


def test_streaming_an_ordered_segment_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stretch of rows stands in all runs: to gather them all each time is quadratic."""
    from sluice.indexing.inverted.segments import build as segment_documents

    rng, gathered = np.random.default_rng(1), []
    gather = segment_documents._gathered

    def counted(segment: Any, first: int, last: int) -> Any:
        gathered.append(last - first)
        return gather(segment, first, last)

    monkeypatch.setattr(segment_documents, "_gathered", counted)
    runs = []
    for documents in (20_000, 40_000):
        gathered.clear()
        columns = rng.integers(0, 500, (documents, 4))
        dense = np.zeros((documents, 500), dtype=np.float32)
        dense[np.arange(documents)[:, None], columns] = 1
        index = index_of(dense, order="cluster")
        index._reader()
        assert sum(c.shape[0] for c in streamed_documents(index._segments[0].segment)) == documents
        runs.append(sum(gathered))
    assert all(later <= 3 * earlier for earlier, later in pairwise(runs))


@pytest.mark.parametrize("error", [tokenize.TokenError("EOF"), OverflowError("too large")])
def test_a_damaged_header_is_a_format_error(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy's reader raises more than ``ValueError`` for a header with a flipped byte."""

    def damaged(*_: Any, **__: Any) -> Any:
        raise error

    index_of(np.eye(3)).save(tmp_path / "index")
    monkeypatch.setattr("sluice.encoders.foundation.disk.arrays.npy.read_magic", damaged)
    with pytest.raises(IndexFormatError):
        open_index(tmp_path / "index")


def test_counts_of_a_segment_that_are_no_counts(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index_of(np.eye(3)).save(path)
    manifest = sluice.encoders.foundation.disk.files.read_json(path / "manifest.json")
    manifest["index"]["segments"] = [1]
    sluice.encoders.foundation.disk.files.write_json(path / "manifest.json", manifest)
    with pytest.raises(IndexFormatError):
        open_index(path)


@pytest.mark.parametrize(("name", "value"), [("order", 120)])
def test_numbers_out_of_range_are_found_without_checksums(
    name: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 64 MB no checksum is read at opening; the kernels index by these numbers."""
    monkeypatch.setattr(sluice.encoders.foundation.disk.generations, "CHECKSUM_LIMIT", 0)
    rng = np.random.default_rng(3)
    index = index_of(rng.random((600, 40)) * (rng.random((600, 40)) < 0.004), order="cluster")
    path = tmp_path / "index"
    index.save(path)
    file = next(path.glob(f"g*/*-{name}.npy"))
    data = bytearray(file.read_bytes())
    assert len(data) > 140
    data[131] = value  # the upper byte of the second number, or of the first
    file.write_bytes(data)
    with pytest.raises(IndexFormatError):
        open_index(path)


def test_a_vocabulary_that_no_memory_holds_is_refused() -> None:
    index, far = InvertedIndex(), 2**28 + 1
    wide = sparse.csr_array((np.ones(1, np.float32), [3], [0, 1]), shape=(1, far))
    with pytest.raises(DataError, match="268,435,457 terms, an index has at most 268,435,456"):
        index.add(wide)
    index.add(csr(np.eye(5)))
    assert index.search(wide, 1).rows.tolist() == [[3]]  # a query may be as wide as it likes


@pytest.mark.parametrize("fidelity", ["exact", "u8"])
def test_flipped_bytes_below_the_checksums_never_read_outside_the_arrays(
    fidelity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 64 MB no checksum is read at opening: wrong hits are possible, a crash is not."""
    monkeypatch.setattr(sluice.encoders.foundation.disk.generations, "CHECKSUM_LIMIT", 0)
    rng = np.random.default_rng(8)
    documents = csr(rng.random((3000, 300)) * (rng.random((3000, 300)) < 0.05))
    index = InvertedIndex(fidelity=fidelity, order="cluster")
    index.add(documents)
    index.save(tmp_path / "index")
    searched = 0
    for file in sorted((tmp_path / "index").glob("g*/*.npy")):
        whole = file.read_bytes()
        for _ in range(2):
            data = bytearray(whole)
            for place in rng.integers(128, max(len(data), 129), 8 if len(data) > 136 else 0):
                data[place] = int(rng.integers(256))
            file.write_bytes(data)
            try:
                opened: Any = open_index(tmp_path / "index")
            except IndexFormatError:
                continue
            with np.errstate(all="ignore"):
                for engine in ("blocks", "terms"):
                    opened.search(documents[:20], 10, params={"engine": engine})
                with contextlib.suppress(IndexFormatError):  # says that it is damaged
                    opened.documents([0, 5, 2999])
            searched += 1
        file.write_bytes(whole)
    assert searched > 10
