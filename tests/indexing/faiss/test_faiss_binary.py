"""Sign bits in FAISS: Hamming order, float rescoring, and 32 times less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing import FaissIndex, FlatIndex, open_index
from sluice.indexing.faiss.engines import BinaryEngine, sign_bits

QUICK = settings(derandomize=True, deadline=None, max_examples=25)


def codes_scores(queries: Any, documents: Any) -> Any:
    """Inner products of the +-1 codes by counting different bits."""
    different = sign_bits(queries)[:, None] ^ sign_bits(documents)[None]
    return queries.shape[1] - 2 * np.unpackbits(different, axis=2).sum(axis=2, dtype=np.int64)


@QUICK
@given(seed=st.integers(0, 2**32), width=st.integers(1, 40), count=st.integers(1, 60))
def test_the_order_is_that_of_the_popcount(seed: int, width: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    documents = rng.integers(-2, 3, (count, width)).astype(np.float32)  # zeros are bit 0
    queries = rng.integers(-2, 3, (4, width)).astype(np.float32)
    index = FaissIndex("BFlat")
    index.add(documents)
    scores = codes_scores(queries, documents)
    signs = [np.where(side > 0, 1, -1) for side in (queries, documents)]
    np.testing.assert_array_equal(scores, signs[0] @ signs[1].T)
    for k in (1, 7, count):
        hits = index.search(queries, min(k, count))
        np.testing.assert_array_equal(hits.scores, -np.sort(-scores, axis=1)[:, : min(k, count)])
        np.testing.assert_array_equal(np.take_along_axis(scores, hits.rows, axis=1), hits.scores)
    keep = rng.random(count) < 0.4
    hits = index.search(queries, 10, keep=keep)
    expected = -np.sort(-scores[:, keep], axis=1)[:, :10]
    np.testing.assert_array_equal(hits.scores[:, : expected.shape[1]], expected)
    assert (hits.rows[:, expected.shape[1] :] == -1).all()


@QUICK
@given(seed=st.integers(0, 2**32), count=st.integers(1, 50), metric=st.sampled_from(["ip"]))
def test_rescoring_the_whole_corpus_is_the_float_ranking(
    seed: int, count: int, metric: Any
) -> None:
    rng = np.random.default_rng(seed)
    documents = rng.integers(-2, 3, (count, 13)).astype(np.float32)
    queries = rng.standard_normal((3, 13)).astype(np.float32)
    index, truth = FaissIndex("BFlat", metric=metric, rescore=50), FlatIndex(metric)
    for each in (index, truth):
        each.add(documents)
    for k in (1, 5, 70):
        found, expected = index.search(queries, k), truth.search(queries, k)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_code_is_32_times_smaller(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((2000, 128)).astype(np.float32)
    bits, floats = FaissIndex("BFlat"), FaissIndex("Flat")
    for index in (bits, floats):
        index.add(vectors)
    header = 100
    assert vectors.nbytes == 32 * sign_bits(vectors).nbytes
    assert bits.size_bytes - header < floats.size_bytes / 32
    kept = FaissIndex("BFlat", rescore=2)
    kept.add(vectors)
    assert kept.size_bytes > vectors.nbytes
    bits.save(tmp_path / "bits")
    assert next((tmp_path / "bits").glob("g*/index.faiss_binary")).stat().st_size == bits.size_bytes


@pytest.mark.parametrize("factory", ["BFlat", "BHNSW8", "BIVF4", "BIVF4_HNSW8", "BHash8"])
def test_changes_equal_a_rebuild(factory: str) -> None:
    rng = np.random.default_rng(2)
    documents = rng.standard_normal((400, 20)).astype(np.float32)
    queries = rng.standard_normal((10, 20)).astype(np.float32)
    params = {"nprobe": 4} if "IVF" in factory else {}
    rescore = 3 if factory == "BHash8" else None  # hash tables give no codes back
    index = FaissIndex(factory, params=params, rescore=rescore)
    index.train(documents)
    index.add(documents[:250])
    dead = rng.choice(250, 100, replace=False)
    index.delete(dead)
    found = index.search(queries, 150)
    assert (found.rows >= 0).all()
    index.compact()
    index.add(documents[250:])
    rows = np.concatenate([np.setdiff1d(np.arange(250), dead), np.arange(250, 400)])
    rebuilt = FaissIndex(factory, params=params, rescore=rescore)
    rebuilt.train(documents)
    rebuilt.add(documents[rows])
    now, again = index.search(queries, 10).scores, rebuilt.search(queries, 10).scores
    # Graphs differ by their random levels; a code more or less at the end of a line.
    assert (now == again).mean() >= (0.9 if "HNSW" in factory else 1)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    index = FaissIndex("BFlat")
    index.add(np.eye(12, dtype=np.float32))
    index.save(tmp_path / "index")
    file = next((tmp_path / "index").glob("g*/index.faiss_binary"))
    assert BinaryEngine.open("BFlat", "ip", file, 12, 12).width == 12
    with pytest.raises(IndexFormatError, match=r"12 vectors of 16 dimensions, .* says 5 of 12"):
        BinaryEngine.open("BFlat", "ip", file, 12, 5)
    file.write_bytes(b"nonsense")
    with pytest.raises(IndexFormatError, match="faiss cannot read it"):
        BinaryEngine.open("BFlat", "ip", file, 12, 12)


def test_an_opened_index_grows(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 12)).astype(np.float32)
    index = FaissIndex("BFlat", rescore=4)
    index.add(vectors[:40])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    for each in (index, opened):
        each.add(vectors[40:])
    np.testing.assert_array_equal(opened.search(vectors, 3).rows, index.search(vectors, 3).rows)
    assert (opened.search(vectors, 1).rows[:, 0] >= 0).all()
