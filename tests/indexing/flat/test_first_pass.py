"""FlatIndex with every first pass against float64 brute force, one pair of vectors at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import sluice.indexing.flat.search
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.indexing import FlatIndex, Hits, open_index
from sluice.indexing.storage.exact_scores import exact_scores, norms_of

METRICS = ["ip", "cosine", "l2"]
EXACT = [None, "bf16", "int8"]
QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def brute_force(
    queries: Any, documents: Any, metric: Any, k: int, live: Any = None
) -> tuple[Any, Any]:
    norms = norms_of(documents)
    rows = np.full((len(queries), k), -1)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for place, query in enumerate(queries):
        line = exact_scores(query, documents, metric, float(norms_of(query[None])[0]), norms)
        order = np.lexsort((np.arange(len(line)), -line))
        order = order[live[order]] if live is not None else order
        order = order[:k]
        rows[place, : len(order)], scores[place, : len(order)] = order, line[order]
    return rows, scores


def same(found: Hits, expected: tuple[Any, Any]) -> None:
    np.testing.assert_array_equal(found.scores, expected[1])
    np.testing.assert_array_equal(found.rows, expected[0])


def awkward(seed: int, count: int, width: int) -> Any:
    """Vectors with exact and near duplicates, zeros, and lengths from tiny to large."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((max(1, count // 3), width)).astype(np.float32)
    table = base[rng.integers(0, len(base), count)]
    nudged = rng.random(count) < 0.5
    table[nudged, 0] *= np.float32(1 + 1e-7)
    table[rng.random(count) < 0.1] = 0
    if seed % 3 == 0:
        table *= np.float32(10.0) ** rng.integers(-24, 15, (count, 1)).astype(np.float32)
    return table


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("first_pass", EXACT)
@QUICK
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 400),
    width=st.integers(1, 70),
    queries=st.integers(1, 40),
    k=st.integers(1, 50),
)
def test_every_exact_first_pass_equals_brute_force(
    metric: Any, first_pass: Any, seed: int, count: int, width: int, queries: int, k: int
) -> None:
    documents, asked = awkward(seed, count, width), awkward(seed + 1, queries, width)
    index = FlatIndex(metric, first_pass=first_pass)
    for part in np.array_split(documents, 3):
        index.add(part)
    same(index.search(asked, k), brute_force(asked, documents, metric, k))


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("first_pass", EXACT)
def test_a_thousand_near_ties(
    metric: Any, first_pass: Any, emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents closer together than any first pass can tell: float32 products take over."""
    if emulated:
        monkeypatch.setattr(sluice.indexing.flat.search, "halves_are_faster", lambda: False)
    monkeypatch.setattr(sluice.indexing.flat.search, "SMALLEST_BLOCK", 64)
    rng = np.random.default_rng(1)
    centre = rng.standard_normal(96)
    documents = centre + 1e-7 * rng.standard_normal((3_000, 96))
    documents = (documents / np.linalg.norm(documents, axis=1)[:, None]).astype(np.float32)
    documents[1_000:1_500] = documents[:500]
    asked = (centre + 0.01 * rng.standard_normal((40, 96))).astype(np.float32)
    index = FlatIndex(metric, first_pass=first_pass)
    index.add(documents)
    for count in (1, 3, 40):
        expected = brute_force(asked[:count], documents, metric, 30)
        same(index.search(asked[:count], 30), expected)


@pytest.mark.parametrize("first_pass", [*EXACT, "binary"])
@pytest.mark.parametrize("metric", METRICS)
def test_deletes_keep_compact_and_folders(metric: Any, first_pass: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    documents = rng.standard_normal((900, 37)).astype(np.float32)
    asked = rng.standard_normal((19, 37)).astype(np.float32)
    index = FlatIndex(metric, first_pass=first_pass, depth=900 if first_pass == "binary" else None)
    for part in np.array_split(documents, 4):
        index.add(part)
    index.delete(np.arange(0, 900, 7))
    live = np.arange(900) % 7 > 0
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, FlatIndex)
    assert (opened.first_pass, opened.depth) == (index.first_pass, index.depth)
    assert opened.size_bytes == index.size_bytes
    keep = rng.random(900) < 0.3
    for held in (index, opened):
        same(held.search(asked, 12), brute_force(asked, documents, metric, 12, live))
        kept = brute_force(asked, documents, metric, 12, live & keep)
        same(held.search(asked, 12, keep=keep), kept)
        same(held.search(asked[:1], 12, keep=keep), (kept[0][:1], kept[1][:1]))
        held.compact()
        held.add(documents[:70])
        now = np.concatenate([documents[live], documents[:70]])
        same(held.search(asked, 12), brute_force(asked, now, metric, 12))
        held.save(tmp_path / "again")
        same(open_index(tmp_path / "again").search(asked, 12), brute_force(asked, now, metric, 12))


@pytest.mark.parametrize("metric", METRICS)
def test_binary_takes_the_nearest_by_signs(metric: Any) -> None:
    rng = np.random.default_rng(3)
    documents = rng.standard_normal((500, 70)).astype(np.float32)
    asked = rng.standard_normal((6, 70)).astype(np.float32)
    index = FlatIndex(metric, first_pass="binary", depth=40)
    for part in np.array_split(documents, 3):
        index.add(part)
    same(index.search(asked, 8, params={"depth": 500}), brute_force(asked, documents, metric, 8))
    found = index.search(asked, 8)
    for place, query in enumerate(asked):
        distances = ((documents > 0) != (query > 0)).sum(axis=1)
        nearest = np.zeros(500, dtype=bool)
        nearest[np.argsort(distances, kind="stable")[:40]] = True
        expected = brute_force(asked[place : place + 1], documents, metric, 8, nearest)
        same(Hits(found.rows[place : place + 1], found.scores[place : place + 1]), expected)
    assert (index.search(asked, 100).rows >= 0).all()  # never fewer candidates than k


@pytest.mark.parametrize("first_pass", [*EXACT, "binary"])
def test_several_threads_search_at_once(first_pass: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 3)
    monkeypatch.setattr(sluice.indexing.flat.search, "ALONE", 0.0)
    rng = np.random.default_rng(4)
    documents = rng.standard_normal((6_000, 32)).astype(np.float32)
    asked = rng.standard_normal((48, 32)).astype(np.float32)
    index = FlatIndex(first_pass=first_pass)
    index.add(documents)
    expected = index.search(asked, 20)
    if first_pass != "binary":
        same(expected, brute_force(asked, documents, "ip", 20))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: index.search(asked, 20), range(12)):
            same(found, (expected.rows, expected.scores))


def test_spooled_vectors_are_searched_and_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    documents = rng.standard_normal((300, 24)).astype(np.float32)
    for first_pass in EXACT:
        index = FlatIndex(first_pass=first_pass)  # type: ignore[arg-type]
        index.spool(tmp_path / f"spool-{first_pass}")
        for part in np.array_split(documents, 5):
            index.add(part)
        expected = brute_force(documents[:20], documents, "ip", 5)
        same(index.search(documents[:20], 5), expected)
        index.save(tmp_path / f"index-{first_pass}")
        same(open_index(tmp_path / f"index-{first_pass}").search(documents[:20], 5), expected)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'bf16'"):
        FlatIndex(first_pass="bf-16")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="depth is 5 with first_pass='int8'"):
        FlatIndex(first_pass="int8", depth=5)
    with pytest.raises(ConfigError, match="depth is 0"):
        FlatIndex(first_pass="binary", depth=0)
    index = FlatIndex(first_pass="binary")
    index.add(np.ones((2, 4), dtype=np.float32))
    with pytest.raises(ConfigError, match="params: depth is 0"):
        index.search(np.ones((1, 4), dtype=np.float32), 1, params={"depth": 0})
    index.save(tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"binary"', '"ternary"'))
    with pytest.raises(IndexFormatError):
        open_index(tmp_path / "index")
