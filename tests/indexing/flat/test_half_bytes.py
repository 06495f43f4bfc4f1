"""Few queries over the codes of FlatIndex: the hits are those of brute force, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sluice.indexing.flat.half_bytes as half_bytes
import sluice.indexing.flat.index as flat
from sluice.encoders.foundation.measured import Measured
from sluice.indexing import FlatIndex
from sluice.indexing.storage.exact_scores import exact_scores, norms_of

pytestmark = pytest.mark.skipif(not half_bytes.MULTIPLIES, reason="no codes on this processor")
METRICS = ["ip", "cosine", "l2"]
Table = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(autouse=True)
def coded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes are made for the first query, whatever this machine measures."""
    monkeypatch.setattr(flat, "UNCODED", 0)
    monkeypatch.setattr(flat, "LEAST_CODED", 0)
    monkeypatch.setattr(flat, "SMALL", 0)
    monkeypatch.setattr(half_bytes, "pays", lambda width: True)


def normal(seed: int, count: int, width: int) -> Table:
    return np.random.default_rng(seed).standard_normal((count, width), np.float32)


@pytest.fixture(params=[half_bytes.PART, 256])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that hold all rows, and several."""
    monkeypatch.setattr(half_bytes, "PART", request.param)


def check(
    documents: Table, queries: Table, metric: Any, k: int = 10, keep: Any = None, parts: int = 1
) -> list[bool]:
    """Compare with brute force; return for which queries the codes gave the hits."""
    index = FlatIndex(metric)
    for part in np.array_split(documents, parts):
        index.add(part)
    live = np.ones(len(documents), np.bool_) if keep is None else keep
    rows, norms = np.arange(len(documents)), norms_of(documents)
    by_codes = []
    for query in queries:
        hits = index.search(query[None], k, keep=keep)
        norm = float(norms_of(query[None])[0])
        scores = exact_scores(query, documents, metric, norm, norms) + np.float32(0)
        best = np.lexsort((rows, -scores))
        best = best[live[best]][:k]
        np.testing.assert_array_equal(hits.rows[0, : len(best)], best)
        np.testing.assert_array_equal(hits.scores[0, : len(best)], scores[best])
        assert (hits.rows[0, len(best) :] == -1).all()
        assert index._half_bytes is not None
        answer = index._half_bytes.search(query[None], len(best), None if keep is None else keep)
        by_codes.append(answer is not None)
    return by_codes


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("width", [1, 3, 64, 129, 384])
def test_any_width(metric: Any, width: int) -> None:
    documents, queries = normal(width, 700, width), normal(1, 5, width)
    documents[[7, 300, 699]] = documents[40]  # equal scores go to the lower row
    documents[5], queries[2] = 0, 0
    check(documents, queries, metric, parts=3)
    check(documents, queries, metric, k=1)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("metric", METRICS)
def test_the_hard_cases(metric: Any) -> None:
    rng, width = np.random.default_rng(5), 48
    documents, queries = normal(2, 1_500, width), normal(3, 4, width)
    clusters = documents[rng.integers(0, 40, 1_500)] + 1e-3 * documents[::-1]
    assert any(check(clusters, clusters[:4], metric))
    check(documents[:1] + 1e-6 * documents, queries, metric)  # nearer than any code can tell
    check(np.repeat(documents[:30], 50, axis=0), queries, metric)
    check(np.zeros_like(documents), queries, metric)
    outlier = documents.copy()
    outlier[:, 7] *= 1_000
    check(outlier, queries, metric)
    for low, high in ((-25, 8), (-44, -20), (-3, 18), (30, 36)):  # denormal to nearly too large
        lengths = 10.0 ** rng.uniform(low, high, (1_500, 1))
        check((documents * lengths).astype(np.float32), queries, metric)
    for length in (1e-42, 1e-30, 1e18, 1e36):
        check(documents, queries * np.float32(length), metric)
    rising = np.sort(documents[:, :1], axis=0) * np.ones((1, width), np.float32)
    check(rising, np.ones((1, width), np.float32), metric)


@pytest.mark.parametrize("metric", METRICS)
def test_sparse_vectors_and_small_numbers_of_rows(metric: Any) -> None:
    documents = normal(4, 900, 80)
    check(np.where(np.abs(documents) > 2, documents, 0).astype(np.float32), documents[:4], metric)
    for count in (1, 2, 63, 64, 65):
        check(documents[:count], documents[:3], metric)
    check(documents[:200], documents[:3], metric, k=500)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.usefixtures("part")
def test_filters_deletes_and_several_queries(metric: Any) -> None:
    rng = np.random.default_rng(6)
    documents, queries = normal(6, 2_000, 32), normal(7, 12, 32)
    for share in (0.001, 0.6):
        check(documents, queries, metric, keep=rng.random(2_000) < share, parts=4)
    index, plain = FlatIndex(metric), FlatIndex(metric, first_pass="int8")
    for each in (index, plain):
        each.add(documents)
        each.delete(np.arange(0, 2_000, 3))
    for k in (1, 10, 60):
        found, expected = index.search(queries, k), plain.search(queries, k)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert index._half_bytes is not None


def test_a_bound_is_never_below_the_score() -> None:
    """Of each plane, for vectors that are coded badly: few large values, many small ones."""
    documents = normal(8, 300, 70) ** 5
    queries = normal(9, 10, 70) ** 3
    index = FlatIndex()
    index.add(documents)
    codes = half_bytes.HalfBytes(index._vectors, "ip")
    (held,), norms = codes._parts, norms_of(queries)
    asked = half_bytes._asked(0, queries, norms, codes._longest)
    factors = asked.codes.astype(np.int64)
    nibbles = [np.concatenate([plane & 15, plane >> 4], axis=1) for plane in held.codes]
    whole = 16 * nibbles[0].astype(np.int64) + nibbles[1] - 128
    for plane, units in enumerate((32 * (nibbles[0].astype(np.int64)) - 241, 2 * whole)):
        approximate = (units @ factors.T) * held.scales[:, None].astype(float) * asked.scales
        error = np.abs(approximate - documents.astype(float) @ queries.T.astype(float))
        bounds = asked.margins
        allowed = bounds.direct * held.reach[:, None] + bounds.lossy * held.losses[plane][:, None]
        assert (error <= allowed + bounds.constant).all()
        assert allowed.max() < 2 * (np.linalg.norm(documents, axis=1).max() * norms.max())


def test_when_there_are_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "UNCODED", 4)
    monkeypatch.setattr(flat, "LEAST_CODED", 0)
    monkeypatch.setattr(flat, "SMALL", 0)
    documents = normal(10, 400, 16)
    index = FlatIndex()
    index.add(documents)
    index.search(documents[:40], 3)  # a batch does not count
    for _ in range(4):
        index.search(documents[:1], 3)
        assert index._half_bytes is None
    index.search(documents[:1], 3)
    assert index._half_bytes is not None
    index.delete([0])
    assert index._half_bytes is None
    monkeypatch.setattr(flat, "SMALL", 2 * documents.nbytes)  # a small one waits longer
    monkeypatch.setattr(flat, "UNCODED_SMALL", 6)
    for _ in range(6):
        index.search(documents[:1], 3)
        assert index._half_bytes is None
    index.search(documents[:1], 3)
    assert index._half_bytes is not None
    index.delete([1])
    monkeypatch.setattr(flat, "SMALL", 0)
    assert index.search(documents[:6], 1).rows[0, 0] != 0
    assert index._half_bytes is not None
    assert FlatIndex(first_pass="int8")._half_bytes is None


@pytest.mark.parametrize(("missing", "made"), [(None, True), (0, True), (1, False)])
def test_vectors_beyond_free_memory_have_no_codes(
    missing: int | None, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, documents = FlatIndex(), normal(13, 400, 16)
    index.add(documents)
    free = None if missing is None else index.size_bytes - missing
    monkeypatch.setattr(flat, "free_memory_bytes", lambda: free)
    index.search(documents[:1], 3)
    assert (index._half_bytes is not None) == made


def test_a_scan_that_rules_out_nothing_is_given_up() -> None:
    documents = normal(11, 1, 24) + 1e-6 * normal(12, 800, 24)
    index = FlatIndex()
    index.add(documents.astype(np.float32))
    for place in range(half_bytes.IN_VAIN + 3):
        index.search(documents[place : place + 1], 5)
    assert index._half_bytes is not None
    assert index._half_bytes._in_vain == half_bytes.IN_VAIN + 1


@pytest.mark.parametrize("faster", ["codes", "vectors"])
def test_the_faster_way_is_taken(faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(flat, "UNCODED", 0)
    monkeypatch.setattr(flat, "LEAST_CODED", 0)
    monkeypatch.setattr(flat, "SMALL", 0)
    half_bytes.pays.cache_clear()

    def made_up(task: str, ways: Any) -> Measured:
        return Measured({way: 1.0 if way == faster else 2.0 for way in ways})

    monkeypatch.setattr(half_bytes, "measured", made_up)
    index = FlatIndex()
    index.add(normal(13, 300, 96))
    index.search(normal(14, 1, 96), 3)
    assert (index._half_bytes is not None) == (faster == "codes")
    half_bytes.pays.cache_clear()
