"""FunnelIndex: full search when the depth is the corpus, and a prefix before it otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import INDEXES, FaissIndex, FlatIndex, FunnelIndex, open_index

METRICS = ["ip", "cosine", "l2"]


def unit(rng: np.random.Generator, count: int, width: int) -> Any:
    """Unit vectors whose first dimensions say most, as Matryoshka models make them."""
    table = rng.standard_normal((count, width)) / np.sqrt(1 + np.arange(width))
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    metric=st.sampled_from(METRICS),
    dimensions=st.integers(1, 20),
    k=st.integers(1, 60),
    scale=st.sampled_from([1e-20, 1.0, 1e15]),
)
def test_a_depth_of_the_corpus_is_full_search(
    seed: int, metric: Any, dimensions: int, k: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    documents = rng.standard_normal((50, 20)).astype(np.float32) * np.float32(scale)
    documents[7] = documents[30] = documents[31]
    documents[11] = 0
    documents[12, :dimensions] = 0  # no prefix to go by
    queries = np.concatenate([documents[[7, 11, 12]], rng.standard_normal((3, 20))])
    funnel, flat = FunnelIndex(dimensions, 50, metric=metric), FlatIndex(metric)
    funnel.add(documents)
    flat.add(documents)
    same(funnel.search(queries, k), flat.search(queries, k))
    keep = rng.random(50) < 0.3
    same(funnel.search(queries, k, keep=keep), flat.search(queries, k, keep=keep))
    assert funnel.search(queries, 60, params={"depth": 1}).rows.shape == (6, 60)


@pytest.mark.parametrize("metric", METRICS)
def test_candidates_are_those_of_the_prefix_normalised_again(metric: Any) -> None:
    rng = np.random.default_rng(1)
    documents, queries = unit(rng, 400, 32), unit(rng, 10, 32)
    funnel = FunnelIndex(8, 15, metric=metric)
    funnel.add(documents)
    cut = documents[:, :8] / np.linalg.norm(documents[:, :8], axis=1, keepdims=True)
    cut_queries = queries[:, :8] / np.linalg.norm(queries[:, :8], axis=1, keepdims=True)
    nearest = np.argsort(-(cut_queries @ cut.T), axis=1)[:, :15]
    found = funnel.search(queries, 15).rows
    np.testing.assert_array_equal(np.sort(found), np.sort(nearest))
    for line, near, query in zip(funnel.search(queries, 5).rows, nearest, queries, strict=True):
        scores = documents[near] @ query
        np.testing.assert_array_equal(line, near[np.argsort(-scores)][:5])


def test_lengths_count_in_inner_products() -> None:
    documents = np.array([[1, 0, 0, 0], [2, 0, 0, 0], [0.1, 0, 0, 3]], np.float32)
    funnel = FunnelIndex(1, 1)
    funnel.add(documents)
    # The prefix of the last is short, the vector is the longest: all point the same way.
    assert funnel.search(np.ones((1, 4), np.float32), 1).rows[0, 0] == 2


def test_recall_rises_with_the_depth() -> None:
    rng = np.random.default_rng(2)
    documents, queries = unit(rng, 3000, 64), unit(rng, 40, 64)
    flat, funnel = FlatIndex(), FunnelIndex(16, 10)
    flat.add(documents)
    funnel.add(documents)
    best = flat.search(queries, 10).rows
    recalls = []
    for depth in (10, 100, 1000, 3000):
        rows = funnel.search(queries, 10, params={"depth": depth}).rows
        recalls.append(np.mean([np.isin(a, b).mean() for a, b in zip(best, rows, strict=True)]))
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.9
    assert recalls[-1] == 1


def test_three_steps_and_parameters_by_level() -> None:
    rng = np.random.default_rng(3)
    documents, queries = unit(rng, 500, 32), unit(rng, 6, 32)
    spec = {
        "type": "funnel",
        "dimensions": 16,
        "depth": 50,
        "first": {
            "type": "funnel",
            "dimensions": 8,
            "depth": 100,
            "first": {"type": "faiss", "factory": "HNSW16"},
        },
    }
    funnel, flat = build(spec, INDEXES, where="index"), FlatIndex()
    funnel.add(documents)
    flat.add(documents)
    assert set(funnel._parameters.names) >= {"depth", "first_depth", "efSearch"}
    everything = {"depth": 500, "first_depth": 500, "efSearch": 500}
    same(funnel.search(queries, 9, params=everything), flat.search(queries, 9))
    with pytest.raises(ConfigError, match="depth is 0, expected a whole number, 1 or more"):
        funnel.search(queries, 3, params={"depth": 0})
    with pytest.raises(ConfigError, match=r"first_depth is 0|depth is 0"):
        funnel.search(queries, 3, params={"first_depth": 0})
    with pytest.raises(ConfigError, match="unknown search parameter 'nprobe'"):
        funnel.search(queries, 3, params={"nprobe": 3})


def test_a_trained_first_pass_is_saved_with_its_settings(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    documents, queries = unit(rng, 900, 32), unit(rng, 6, 32)
    funnel = FunnelIndex(16, 40, FaissIndex("IVF16,SQ8"), metric="ip")
    funnel.train(documents)
    for part in np.array_split(documents, 3):
        funnel.add(part)
    funnel.delete([3, 700])
    funnel.default_params = {"nprobe": 8, "depth": 60}
    funnel.notes["why"] = "a test"
    expected = funnel.search(queries, 10)
    same(funnel.search(queries, 10, params={"nprobe": 8, "depth": 60}), expected)
    funnel.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert (opened.notes, opened.default_params) == (funnel.notes, funnel.default_params)
    same(opened.search(queries, 10), expected)
    np.testing.assert_array_equal(opened.documents([5, 0]), documents[[5, 0]])
    assert opened.resident_bytes < opened.size_bytes
    moved = opened.compact()
    assert opened.rows == opened.first.rows == 898
    np.testing.assert_array_equal(
        opened.search(queries, 10).rows, np.where(expected.rows >= 0, moved[expected.rows], -1)
    )


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first: metric 'ip', the funnel has 'l2'"):
        FunnelIndex(4, first=FlatIndex(), metric="l2")
    with pytest.raises(ConfigError, match="InvertedIndex has no metric"):
        FunnelIndex(4, first={"type": "inverted"})
    with pytest.raises(ConfigError, match="first: int, expected an index, or its spec"):
        FunnelIndex(4, first=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"first\.factry"):
        FunnelIndex(4, first={"type": "faiss", "factry": "Flat"})
    with pytest.raises(ConfigError, match="depth is 0"):
        FunnelIndex(4, 0)
    filled = FlatIndex()
    filled.add(np.ones((2, 4), np.float32))
    with pytest.raises(ConfigError, match="has 2 rows already"):
        FunnelIndex(4, first=filled)
    index = FunnelIndex(4)
    with pytest.raises(DataError, match="documents: 3 dimensions, the funnel searches the first 4"):
        index.add(np.ones((2, 3), np.float32))
    index.add(np.ones((2, 4), np.float32))
    index.save(tmp_path / "index")
    (tmp_path / "index" / "g000001" / "first" / "vectors.npy").unlink()
    with pytest.raises(IndexFormatError, match="missing"):
        open_index(tmp_path / "index")


class OwnFlat(FlatIndex):
    """Somebody's own class."""

    type_name = ""


def test_own_classes_inside_open_when_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_inner_module", sys.modules[__name__])
    monkeypatch.setattr(OwnFlat, "__module__", "own_inner_module")
    FunnelIndex(None, first=OwnFlat()).save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match=r"pass allow=\['own_inner_module:OwnFlat'\]"):
        open_index(tmp_path / "index")
    opened = open_index(tmp_path / "index", allow=["own_inner_module:OwnFlat"])
    assert isinstance(opened, FunnelIndex)
    assert type(opened.first) is OwnFlat
