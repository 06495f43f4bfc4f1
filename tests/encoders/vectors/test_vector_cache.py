"""Vectors on disk: the same bits cold and warm, bounds of the small forms, damage, eviction."""

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.files import new_draft
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, ModelError
from sluice.encoders.foundation.progress import Rate, counted_by, progress
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.table import ENCODERS
from sluice.encoders.vectors.cache import (
    BOUND,
    VectorCache,
    cache_bound,
    cache_root,
    cached_keys,
    keep_within,
    vector_identity,
)
from sluice.encoders.vectors.forms import (
    ROW_BITS,
    HashDirectory,
    Shard,
    checked_vectors,
    dense_rows,
    mean_cosine,
    put_together,
    sparse_rows,
    stored_form,
    text_hashes,
    token_rows,
    write_shard,
)

IDENTITY = {"fingerprint": "f", "store": "float32"}
TEXTS = [f"text {number}" for number in range(40)]
RNG = np.random.default_rng(3)
VECTORS = RNG.standard_normal((40, 6)).astype(np.float32)


def filled(root: Path, **changes: str) -> VectorCache:
    cache = VectorCache(root, IDENTITY | changes)
    with cache:
        cache.put(text_hashes(TEXTS[:25]), VECTORS[:25])
        cache.put(text_hashes(TEXTS[25:]), VECTORS[25:])
    return cache


def test_vectors_come_back_bit_by_bit_in_any_order(tmp_path: Path) -> None:
    warm = filled(tmp_path)
    order = RNG.permutation(40)
    hashes = text_hashes([TEXTS[at] for at in order])
    with VectorCache(tmp_path, IDENTITY) as again:
        for cache in (warm, again):
            assert len(cache) == 40
            np.testing.assert_array_equal(cache.gather(cache.locate(hashes)), VECTORS[order])
        assert again.locate(text_hashes(["another", TEXTS[0]])).tolist() == [-1, 0]


def test_another_identity_sees_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    for change in ({"fingerprint": "g"}, {"store": "int8"}, {"dtype": "bfloat16"}):
        with VectorCache(tmp_path, IDENTITY | change) as cache:
            assert (cache.locate(text_hashes(TEXTS)) == -1).all()


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("store", ["float32", "float16", "int8"])
def test_small_forms_keep_their_bounds(store: str, dense: bool) -> None:
    vectors = (RNG.standard_normal((30, 17)) * RNG.uniform(0.01, 50, (30, 1))).astype(np.float32)
    vectors[RNG.random(vectors.shape) < 0.3] = 0
    vectors[4] = 0
    arrays = stored_form(vectors if dense else sparse.csr_array(vectors), store)
    rows = RNG.permutation(30)[:20]
    if dense:
        found = dense_rows(arrays, rows)
    else:
        made = sparse_rows(arrays, rows, 17)
        assert made.shape == (20, 17)
        assert made.data.all()
        found = made.toarray()
    assert found.dtype == np.float32
    peaks = np.abs(vectors[rows]).max(axis=1, keepdims=True)
    bound = {"float32": 0 * peaks, "float16": peaks * 2.0**-10, "int8": peaks / 254 * 1.001}[store]
    assert (np.abs(found - vectors[rows]) <= bound).all()
    assert mean_cosine(found, vectors[rows]) > 0.9999


def ragged(lengths: list[int], dim: int = 6) -> TokenVectors:
    texts = [RNG.standard_normal((length, dim)).astype(np.float32) * 3 for length in lengths]
    return TokenVectors.of(texts, dim)


LENGTHS = [3, 0, 1, 7, 0, 2, 5, 1, 0, 4]


@pytest.mark.parametrize("store", ["float32", "float16", "int8"])
@pytest.mark.parametrize("rows", [[0, 1, 2], [9, 3, 3, 1], [4], [], list(range(10)), [8, 9]])
def test_token_vectors_come_back_by_text(store: str, rows: list[int]) -> None:
    vectors = ragged(LENGTHS)
    arrays = stored_form(vectors, store)
    found = token_rows(arrays, np.array(rows, np.int64))
    assert found.lengths.tolist() == [LENGTHS[row] for row in rows]
    assert found.shape == (len(rows), 6)
    for place, row in enumerate(rows):
        true = vectors.text(row)
        peaks = np.abs(true).max(axis=1, keepdims=True) if len(true) else 0
        bound = {"float32": 0, "float16": 2.0**-10, "int8": 1.001 / 254}[store] * peaks
        assert (np.abs(found.text(place) - true) <= bound).all()


def test_token_vectors_are_cached_in_shards_and_read_in_any_order(tmp_path: Path) -> None:
    vectors = ragged(LENGTHS * 4)
    hashes = text_hashes(TEXTS)
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put(hashes[:25], vectors[:25])
        cache.put(hashes[25:], vectors[25:])
    order = RNG.permutation(40)
    with VectorCache(tmp_path, IDENTITY) as again:
        places = again.locate(hashes[order])
        found = again.gather(places)
        assert isinstance(found, TokenVectors)
        assert again.lengths(places).tolist() == vectors.lengths[order].tolist()
        np.testing.assert_array_equal(found.values, vectors[order].values)
        np.testing.assert_array_equal(found.bounds, vectors[order].bounds)
        again.put(text_hashes(["wide"]), np.ones((1, 6), np.float32))
        with pytest.raises(DataError, match="under one fingerprint"):
            again.gather(again.locate(text_hashes([TEXTS[0], "wide"])))
    parts = [vectors[:3], vectors[3:8]]
    joined = put_together(parts, [np.array([4, 0, 2]), np.array([1, 3, 5, 7, 6])])
    assert joined.lengths.tolist() == [LENGTHS[at] for at in (1, 3, 2, 4, 0, 5, 7, 6)]


def test_token_vectors_are_checked() -> None:
    vectors = ragged(LENGTHS)
    assert checked_vectors(vectors, 10, "Mine") is vectors
    with pytest.raises(ModelError, match="10 vectors for 9 texts"):
        checked_vectors(vectors, 9, "Mine")
    vectors.values[4, 2] = np.inf
    with pytest.raises(DataError, match="not finite"):
        checked_vectors(vectors, 10, "Mine")
    one, other = ragged([2, 1]), ragged([2, 1])
    rows = zip(one.values, other.values, strict=True)
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in rows]
    assert mean_cosine(one, other) == pytest.approx(np.mean(cosines), abs=1e-6)


def test_float16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(DataError, match=r"float16 holds values up to 65,504.*int8"):
        stored_form(np.array([[1.0, 1e6]], np.float32), "float16")


def test_an_encoder_that_answers_wrongly_is_named() -> None:
    with pytest.raises(ModelError, match="3 vectors for 2 texts"):
        checked_vectors(np.zeros((3, 2), np.float32), 2, "Mine")
    with pytest.raises(ModelError, match=r"Mine: .* ndarray of shape \(4,\)"):
        checked_vectors(np.zeros(4), 4, "Mine")
    with pytest.raises(DataError, match="not finite"):
        checked_vectors(np.array([[np.nan]], np.float32), 1, "Mine")


@pytest.mark.parametrize("what", ["cut", "grown", "flipped", "header", "empty", "dtype"])
def test_a_damaged_shard_is_removed_and_its_texts_are_missing(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = filled(tmp_path)
    path = next(each for each in cache.folder.glob("*.vectors") if b"[25]" in each.read_bytes())
    data = bytearray(path.read_bytes())
    if what == "cut":
        data = data[:-100]
    elif what == "grown":
        data += b"x"
    elif what == "flipped":
        data[-40] ^= 1
    elif what == "header":
        data[20] = 0xFF
    elif what == "empty":
        data = bytearray()
    else:
        data = bytearray(bytes(data).replace(b"<f4", b"|O8"))
    path.write_bytes(data)
    caplog.set_level(logging.WARNING, "sluice")
    with VectorCache(tmp_path, IDENTITY) as again:
        places = again.locate(text_hashes(TEXTS))
        assert (places[:25] == -1).all()
        assert (places[25:] >= 0).all()
        assert "its texts will be encoded again" in caplog.text
        assert not path.exists()
        again.put(text_hashes(TEXTS[:25]), VECTORS[:25])
        found = again.gather(again.locate(text_hashes(TEXTS)))
    np.testing.assert_array_equal(found, VECTORS)


def test_a_shard_of_another_encoder_is_not_read(tmp_path: Path) -> None:
    one, other = filled(tmp_path), filled(tmp_path, fingerprint="g")
    for path in one.folder.glob("*.vectors"):
        path.replace(other.folder / path.name)
    with VectorCache(tmp_path, IDENTITY | {"fingerprint": "g"}) as cache:
        assert (cache.locate(text_hashes(TEXTS)) == -1).all()


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    manifest = cache.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"f"', '"h"'))
    with pytest.raises(IndexFormatError, match="delete it"), VectorCache(tmp_path, IDENTITY):
        pass


def test_drafts_of_killed_writers_go_and_those_being_written_stay(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    killed = cache.folder / ".x.vectors.1-01234567.tmp"
    killed.touch()
    with new_draft(cache.folder / "y.vectors") as written, VectorCache(tmp_path, IDENTITY):
        assert not killed.exists()
        assert written.exists()


@pytest.mark.parametrize("step", ["read", "locate", "gather", "put"])
def test_a_cache_that_is_deleted_while_it_is_read_is_one_error_or_read_again(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(tmp_path)
    if step == "read":  # between the list of the files and the first of them
        names = sorted(cache.folder.glob("*.vectors"))
        shutil.rmtree(cache.folder)
        monkeypatch.setattr(Path, "glob", lambda *_: names)
        with VectorCache(tmp_path, IDENTITY) as again:
            assert len(again) == 0
        return
    with VectorCache(tmp_path, IDENTITY) as again:
        places = again.locate(text_hashes(TEXTS)) if step == "gather" else None
        shutil.rmtree(tmp_path)
        gone = pytest.raises(IndexFormatError, match="was removed from the cache while")
        if step == "locate":
            assert (again.locate(text_hashes(TEXTS)) == -1).all()
        elif places is not None:
            with gone:
                again.gather(places)
        else:
            with gone:
                again.put(text_hashes(["new"]), VECTORS[:1])


def test_the_first_of_two_writers_of_one_shard_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.vectors"
    for value in (1, 2):
        write_shard(path, {"value": value}, {"values": np.full(3, value, np.float32)})
    assert Shard(path).facts["value"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["x.vectors"]


@pytest.mark.parametrize(("shape", "offset"), [([99], 0), ([3], 64), ([-3], 0), ([3], -8)])
def test_an_array_outside_of_its_shard_is_refused(
    tmp_path: Path, shape: list[int], offset: int
) -> None:
    path = tmp_path / "x.vectors"
    write_shard(path, {}, {"values": np.ones(3, np.float32)})
    data = path.read_bytes()
    header = data[16 : 16 + int.from_bytes(data[8:16], "little")]
    facts = {**json.loads(header), "arrays": {"values": ["<f4", shape, offset]}}
    path.write_bytes(data.replace(header, json.dumps(facts).encode().ljust(len(header))))
    with pytest.raises(IndexFormatError, match="not inside of the file"):
        Shard(path)


def test_the_least_recently_used_go_and_those_in_use_stay(tmp_path: Path) -> None:
    caches = [filled(tmp_path, fingerprint=name) for name in "abc"]
    for age, cache in zip((30, 20, 10), caches, strict=True):
        past = cache.folder.stat().st_mtime - age
        os.utime(cache.folder, (past, past))
    assert [key.fingerprint for key in cached_keys(tmp_path)] == ["a", "b", "c"]
    size = cached_keys(tmp_path)[0].bytes
    with caches[0]:
        os.utime(caches[0].folder, (0, 0))
        assert [key.fingerprint for key in keep_within(tmp_path, 2 * size)] == ["b"]
    assert [key.fingerprint for key in keep_within(tmp_path, 0)] == ["a", "c"]
    assert cached_keys(tmp_path) == []
    assert keep_within(tmp_path / "absent", 0) == []


def test_place_and_bound_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    assert cache_root() == tmp_path / "vectors"
    monkeypatch.setenv(BOUND, "5e9")
    assert cache_bound() == 5_000_000_000
    for wrong in ("much", "-1", "inf", "nan"):
        monkeypatch.setenv(BOUND, wrong)
        with pytest.raises(ConfigError, match=f"{BOUND}: '{wrong}'"):
            cache_bound()


def test_one_fingerprint_has_one_width(tmp_path: Path) -> None:
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put(text_hashes(["a"]), np.ones((1, 2), np.float32))
        cache.put(text_hashes(["b"]), np.ones((1, 3), np.float32))
        with pytest.raises(DataError, match=r"widths \[2, 3\]"):
            cache.gather(cache.locate(text_hashes(["a", "b"])))


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=12), st.integers(0, 11))
def test_the_directory_finds_as_a_dict_does(shards: list[list[int]], gone: int) -> None:
    directory, oracle = HashDirectory(), dict[int, set[int]]()
    for number, texts in enumerate(shards):
        places = (number << ROW_BITS) + np.arange(len(texts), dtype=np.int64)
        directory.add(text_hashes(map(str, texts)), places)
        for text, place in zip(texts, places.tolist(), strict=True):
            oracle.setdefault(text, set()).add(place)
    for forgotten in (False, True):
        if forgotten:
            directory.forget(gone)
            oracle = {text: {p for p in at if p >> ROW_BITS != gone} for text, at in oracle.items()}
        found = directory.find(text_hashes(map(str, range(62)))).tolist()
        for text, place in enumerate(found):
            assert place in (oracle.get(text) or {-1})


def test_hashes_tell_texts_from_fields_and_take_any_string() -> None:
    made = text_hashes(["a", {"a": "b"}, '{"a": "b"}', "", "\ud800", "a"])
    assert len(set(made.tolist())) == 5
    assert text_hashes([{"x": "1", "y": "2"}]) == text_hashes([{"y": "2", "x": "1"}])


def test_the_identity_names_what_decides_the_vectors() -> None:
    class Mine:
        fingerprint = "abc"
        dtype = "torch.bfloat16"

    assert vector_identity(Mine(), "int8") == {
        "encoder": f"{__name__}:{Mine.__qualname__}", "fingerprint": "abc", "dtype": "bfloat16",
        "backend": "", "store": "int8", "side": "document",
    }  # fmt: skip


def test_inner_progress_counts_for_the_outer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice")
    with progress("outer", 10, "documents", also=Rate("tokens", 7.0)) as advance:
        seen: list[int] = []

        def counted(amount: int = 1) -> None:
            seen.append(amount)
            advance(amount)

        with counted_by(counted), progress("inner", 10, "texts") as inner:
            inner(4)
            inner(6)
    assert seen == [4, 6]
    assert "inner" not in caplog.text
    assert "outer: 10 documents" in caplog.text
    assert "tokens/s" in caplog.text


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bm25", "a1a3b00168c82dd35e331a83b4030186"),
        ("dense", "911c381ee97f646dcd9d17fd91fe8c3f"),
        ("precomputed", "78168770eb40550d524e136f4a9c27b9"),
        ("splade", "9d87158fc249f8fdbb83574d87b0af39"),
        ("towers", "b26d426a6b296913766b78568e2f6aa4"),
        ("vocabulary", "d1cdd381a0d2745a3f42f3ea51d2ee9a"),
    ],
)
def test_vectors_cached_before_a_move_of_modules_are_found(
    name: str, key: str, tmp_path: Path
) -> None:
    made = resolve(ENCODERS[name].removesuffix(".from_pretrained"))
    attributes = {"__module__": made.__module__, "__qualname__": made.__qualname__}
    encoder = type(made.__name__, (), {**attributes, "fingerprint": "f"})()
    assert VectorCache(tmp_path, vector_identity(encoder, "float32")).key == key
