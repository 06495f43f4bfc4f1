"""What stands in for the compiled kernels writes what they write, bit for bit."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from sluice.indexing import FlatIndex
from sluice.indexing.flat.index import search_in_numpy
from sluice.indexing.inverted.segments import build, kernels, numpy_kernels
from sluice.indexing.inverted.segments.segment import Segment
from sluice.indexing.inverted.spooling.spool import Spool
from sluice.indexing.kernels import calls
from sluice.indexing.storage.exact_scores import METRICS, exact_scores, norms_of, numpy_scores

ROOMS = (build,)


def by(module: ModuleType, patch: pytest.MonkeyPatch) -> None:
    for room in ROOMS:
        patch.setattr(room, "kernels_for", lambda postings: module)


def corpus(rng: np.random.Generator, count: int, terms: int, kind: str) -> Any:
    share = min(1.0, rng.choice([4.0, 20.0]) / terms)
    matrix = sparse.csr_array(sparse.random(count, terms, share, "csr", rng=rng))
    sizes = {"whole": rng.integers(1, 4, matrix.nnz), "real": rng.lognormal(0, 1, matrix.nnz)}
    sizes["extreme"] = np.exp(rng.uniform(-100, 88, matrix.nnz))
    matrix.data = sizes[kind].astype(np.float32)
    matrix.sort_indices()
    return matrix.astype(np.float32)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 17, 300, 5_000]),
    terms=st.sampled_from([3, 200, 70_000]),
    kind=st.sampled_from(["whole", "real", "extreme"]),
    exact=st.booleans(),
    block=st.sampled_from([None, 1, 8, 256]),
    reordered=st.booleans(),
)
def test_a_segment_is_the_same(
    seed: int, count: int, terms: int, kind: str, exact: bool, block: int | None, reordered: bool
) -> None:
    rng = np.random.default_rng(seed)
    matrix = corpus(rng, count, terms, kind)
    spool = Spool()
    spool.append(matrix)
    order = rng.permutation(count).astype(np.uint32) if reordered else None
    rows = rng.integers(0, count, min(count, 9))
    segments, stored = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "STRETCH", 1 << 10)
        for module in (kernels, numpy_kernels):
            by(module, patch)
            segments.append(
                build.build_segment(spool, terms, exact=exact, block_size=block, order=order)
            )
            for documents in (16, 0):  # one by one, and by runs
                patch.setattr(build, "ONE_BY_ONE", documents)
                stored.append(build.stored_documents(segments[0], rows))
    for name in Segment._fields:
        compiled, plain = (getattr(segment, name) for segment in segments)
        assert (compiled.dtype, compiled.shape) == (plain.dtype, plain.shape), name
        assert compiled.tobytes() == plain.tobytes(), name
    for part in ("indptr", "indices", "data"):
        assert len({getattr(each, part).tobytes() for each in stored}) == 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e18, 3e37])
@pytest.mark.parametrize("width", [1, 31, 32, 100])
def test_a_dense_search_is_the_same(metric: Any, scale: float, width: int) -> None:
    rng = np.random.default_rng(width)
    base = rng.standard_normal((30, width)).astype(np.float32) * np.float32(scale)
    held = np.clip(base[rng.integers(0, 30, 200)], -3e38, 3e38)  # each many times over
    held[7], queries = 0, np.concatenate([held[:4], np.zeros((1, width), np.float32)])
    norms = norms_of(held)
    for query, norm in zip(queries, norms_of(queries), strict=True):
        both = [score(query, held, metric, norm, norms) for score in (exact_scores, numpy_scores)]
        assert both[0].tobytes() == both[1].tobytes()
    index = FlatIndex(metric)
    for part in np.array_split(held, 3):
        index.add(part)
    for keep in (None, rng.random(200) < 0.4):
        compiled = index.search(queries, 50, keep=keep)
        plain = search_in_numpy(index._vectors, metric, queries, 50, keep)
        assert compiled.rows.tobytes() == plain.rows.tobytes()
        assert compiled.scores.tobytes() == plain.scores.tobytes()


def test_numpy_works_until_its_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not calls.numpy_suffices(0.0), "the kernels are loaded"
    monkeypatch.setattr(calls, "kernels_loaded", lambda: False)
    monkeypatch.setattr(calls, "_done_in_numpy", 0.0)
    assert [calls.numpy_suffices(0.2) for _ in range(4)] == [True, True, False, False]
