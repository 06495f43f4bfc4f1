"""Files of dense vectors with ids: round trips, memory, arrays with ids beside, what is refused."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dense_files import IDS, VECTORS, same
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.exchange import vector_files as home
from sluice.retrieval.exchange.vector_files import (
    format_names,
    read_dense_vectors,
    write_dense_vectors,
)

ENDINGS = {"npy": "x.npy", "parquet": "x.parquet", "safetensors": "x.safetensors"}


@pytest.mark.thorough
@pytest.mark.parametrize("form", format_names("dense", written=True))
@settings(max_examples=15, derandomize=True, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("v") / ENDINGS[form]
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
    ids = data.draw(st.lists(text, max_size=9, unique=True))
    dim = data.draw(st.integers(1, 5))
    values = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = st.lists(values, min_size=dim, max_size=dim)
    drawn = data.draw(st.lists(rows, min_size=len(ids), max_size=len(ids)))
    vectors = np.array(drawn, np.float32).reshape(len(ids), dim)
    cut = data.draw(st.integers(0, len(ids)))
    count = write_dense_vectors(path, ids, [vectors[:cut], vectors[cut:]], form)
    assert count == len(ids)
    found = read_dense_vectors(path, form)
    assert list(found.ids()) == ids
    assert found.array().tobytes() == vectors.tobytes()  # bit for bit, zero's sign too


@pytest.mark.parametrize("form", format_names("dense", written=True))
@pytest.mark.parametrize("count", [0, 1])
def test_no_rows_and_one(tmp_path: Path, form: str, count: int) -> None:
    path = tmp_path / ENDINGS[form]
    write_dense_vectors(path, IDS[:count], [VECTORS[:count]], form)
    same(path, IDS[:count], VECTORS[:count])
    write_dense_vectors(path, [], [], form, dim=3)  # replaces it
    same(path, [], VECTORS[:0])
    write_dense_vectors(path, [], [], form)
    assert len(read_dense_vectors(path)) == 0
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(".tmp")]


@pytest.mark.parametrize("form", format_names("dense", written=True))
def test_memory_is_bounded(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(home.CHUNK_ROWS, "dense", 64)
    rows, dim, widest = 6000, 64, 0

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, rows, 50):
            yield np.full((50, dim), start, np.float32)

    path = tmp_path / ENDINGS[form]
    write_dense_vectors(path, map(str, range(4)), [np.zeros((4, dim))], form)  # imports
    for chunk in read_dense_vectors(path).chunks():
        assert len(chunk) == 4
    tracemalloc.start()
    write_dense_vectors(path, map(str, range(rows)), chunks(), form)
    found, total = read_dense_vectors(path), 0
    for chunk in found.chunks():
        widest, total = max(widest, len(chunk)), total + len(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (total, widest) == (rows, 64)
    assert peak < 4 * rows * dim  # of 1.5 MB of vectors; ids alone take a part


def test_wide_vectors_come_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "CHUNK_BYTES", 2 * 3 * 4)
    write_dense_vectors(tmp_path / "x.npy", IDS, [VECTORS], "npy")
    assert [len(chunk) for chunk in read_dense_vectors(tmp_path / "x.npy").chunks()] == [2, 2]


# .npy


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_float(tmp_path: Path, dtype: str, order: Any) -> None:
    np.save(tmp_path / "x.npy", np.asarray(VECTORS, dtype=dtype, order=order))
    (tmp_path / "x.ids.txt").write_text("\r\n".join(IDS), encoding="utf-8")  # no last line break
    same(tmp_path / "x.npy", vectors=VECTORS.astype(dtype).astype(np.float32))


def test_arrays_are_mapped(tmp_path: Path) -> None:
    write_dense_vectors(tmp_path / "x.npy", IDS, [VECTORS], "npy")
    chunk = next(read_dense_vectors(tmp_path / "x.npy").chunks())
    while isinstance(chunk.base, np.ndarray):
        chunk = chunk.base
    assert isinstance(chunk, np.memmap) or not chunk.flags.owndata


def test_ids_in_other_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "x.ids.json").write_text(json.dumps([1, "b", "ü", 2**70]))
    same(tmp_path / "x.npy", ["1", "b", "ü", str(2**70)])
    (tmp_path / "x.ids.json").rename(tmp_path / "ids.json")
    same(tmp_path / "x.npy", ["1", "b", "ü", str(2**70)])
    np.save(tmp_path / "other.npy", VECTORS)
    with pytest.raises(DataError, match=r"no ids beside it; expected x\.ids\.txt"):
        read_dense_vectors(tmp_path / "x.npy")
    np.save(tmp_path / "x.ids.npy", np.array(IDS))
    same(tmp_path / "x.npy")
    np.save(tmp_path / "x.ids.npy", np.array([id.encode() for id in IDS]))
    same(tmp_path / "x.npy")
    np.save(tmp_path / "x.ids.npy", np.array([3, 1, 4, 15]))
    same(tmp_path / "x.npy", ["3", "1", "4", "15"])
    parquet.write_table(pa.table({"anything": IDS}), tmp_path / "x.ids.parquet")
    with pytest.raises(DataError, match="both may hold the ids"):
        read_dense_vectors(tmp_path / "x.npy")
    (tmp_path / "x.ids.npy").unlink()
    same(tmp_path / "x.npy")


def test_a_folder_of_an_array(tmp_path: Path) -> None:
    write_dense_vectors(tmp_path / "v", IDS, [VECTORS], "npy")
    assert sorted(each.name for each in (tmp_path / "v").iterdir()) == ["ids.txt", "vectors.npy"]
    same(tmp_path / "v")
    same(tmp_path / "v" / "vectors.npy")
    write_dense_vectors(tmp_path / "v", ["a"], [VECTORS[:1]], "npy")
    same(tmp_path / "v", ["a"], VECTORS[:1])
    with pytest.raises(ConfigError, match="only a folder saved"):
        write_dense_vectors(tmp_path, IDS, [VECTORS], "npy")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickle"):
        read_dense_vectors(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", VECTORS)
    np.save(tmp_path / "x.ids.npy", np.array(IDS, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.ids\.npy: .* an array of Python objects"):
        read_dense_vectors(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (VECTORS.astype(np.int8), "int8 of shape"),
        (VECTORS[0], r"shape \(3,\)"),
        (VECTORS.astype(complex), "complex128"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(DataError, match=message):
        read_dense_vectors(tmp_path / "x.npy")


def test_damaged_arrays_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    write_dense_vectors(path, IDS, [VECTORS], "npy")
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:20], b"", b"PK\x03\x04" + whole):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"x\.npy: not readable"):
            read_dense_vectors(path)
    path.write_bytes(whole)
    ids = tmp_path / "x.ids.txt"
    for text, message in [
        (b"a\nb\nc\n", "4 vectors, but x.ids.txt has 3 ids"),
        (b"a\nb\nb\nc\n", "x.ids.txt:3: id 'b' again, first in .*x.ids.txt:2"),
        (b"a\n\nb\nc\n", "x.ids.txt:2: the id is ''; expected a text"),
        (b"a\nb\n\xff\nc\n", "x.ids.txt:3: .* is not UTF-8"),
    ]:
        ids.write_bytes(text)
        with pytest.raises(DataError, match=message):
            list(read_dense_vectors(path).ids())
    ids.unlink()
    for content, message in [("{}", "a JSON dict"), ("[", "not readable"), ('["a", 1.5]', "4 vec")]:
        (tmp_path / "x.ids.json").write_text(content)
        with pytest.raises(DataError, match=message):
            read_dense_vectors(path)
    (tmp_path / "x.ids.json").write_text('["a", "b", null, true]')
    with pytest.raises(DataError, match=r"id 2 \(from 0\): the id is None"):
        list(read_dense_vectors(path).ids())


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(
    tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(home.CHUNK_ROWS, "dense", 2)
    vectors = VECTORS.astype(np.float64)
    vectors[3, 1] = value
    np.save(tmp_path / "x.npy", vectors)
    (tmp_path / "x.ids.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError, match=r"vector 3 \(from 0\), dimension 1"):
        read_dense_vectors(tmp_path / "x.npy").array()
    for form in format_names("dense", written=True):
        with pytest.raises(DataError, match=r"row 3 \(from 0\), dimension 1"):
            write_dense_vectors(tmp_path / "y", IDS, [vectors[:2], vectors[2:]], form)
    assert {each.name for each in tmp_path.iterdir()} == {"x.npy", "x.ids.txt"}


# All forms


def test_unknown_forms_and_places(tmp_path: Path) -> None:
    cases: list[tuple[str, str | None, str]] = [
        ("x.csv", None, "no such file; expected vectors that end in .npy"),
        ("", None, "a folder; expected"),
        ("x.npy", None, "x.npy: no such file"),
        ("x.parquet", None, "no such file"),
        ("x.safetensors", None, "no such file"),
        ("x.jsonl", None, "no such file"),
        ("", "parquet", "a folder without parquet files"),
    ]
    for name, form, message in cases:
        with pytest.raises(DataError, match=message):
            read_dense_vectors(tmp_path / name, form)
    with pytest.raises(ConfigError, match="did you mean 'npy'"):
        read_dense_vectors(tmp_path / "x", "npi")
    with pytest.raises(ConfigError, match="read-only"):
        write_dense_vectors(tmp_path / "x", IDS, [VECTORS], "jsonl")


@pytest.mark.parametrize("form", format_names("dense", written=True))
def test_what_cannot_be_written(tmp_path: Path, form: str) -> None:
    path = tmp_path / ENDINGS[form]
    write_dense_vectors(path, ["old"], [VECTORS[:1]], form)
    cases: list[tuple[Any, Any, str]] = [
        (IDS[:3], [VECTORS], "expected one each"),
        ([*IDS, "e"], [VECTORS], "expected one each"),
        (["a"], [], "expected one each"),
        (IDS, [VECTORS[:2], VECTORS[2:, :2]], r"expected floats \[n, 3\]"),
        (IDS, [VECTORS.astype(int)], "int64"),
        (IDS, [VECTORS[0]], "expected numpy arrays"),
        (IDS, [[1.0]], "expected numpy arrays"),
        (["a", "b", "c", 4], [VECTORS], "expected a?.?text"),
        (["a", "b", "c", "\ud800"], [VECTORS], "surrogate"),
    ]
    if form != "parquet":
        cases.append((["a", "b", "c", "d\ne"], [VECTORS], "no line break"))
    for ids, chunks, message in cases:
        with pytest.raises(DataError, match=message):
            write_dense_vectors(path, ids, chunks, form)
    same(path, ["old"], VECTORS[:1])
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(".tmp")]
