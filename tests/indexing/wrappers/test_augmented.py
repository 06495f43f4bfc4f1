"""Augmented indexes: a bias by one more dimension, and inner products found by distances."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import (
    INDEXES,
    AugmentedIndex,
    DocumentBias,
    FaissIndex,
    FlatIndex,
    FunnelIndex,
    Hits,
    MipsToL2,
    open_index,
)
from sluice.indexing.checks import Dense
from sluice.indexing.own.augmentations import NO_PARAMETERS, Augmentation, Parameters

QUICK = settings(derandomize=True, deadline=None, max_examples=25)


def whole(rng: np.random.Generator, *shape: int) -> Any:
    """Small whole numbers: sums are exact, ties are many."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def by_hand(scores: Any, k: int, possible: Any) -> Hits:
    hits = Hits.missing(len(scores), k)
    for place, line in enumerate(scores):
        order = np.lexsort((np.arange(len(line)), -line))
        best = order[possible[order]][:k]
        hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, line[best]
    return hits


def same(found: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)


@QUICK
@given(seed=st.integers(0, 2**32), k=st.integers(1, 50), weight=st.sampled_from([None, 0, 1, -2]))
def test_bias_equals_brute_force(seed: int, k: int, weight: Any) -> None:
    rng = np.random.default_rng(seed)
    documents, queries, bias = whole(rng, 40, 6), whole(rng, 5, 6), whole(rng, 40)
    augmentation = DocumentBias(bias[:25])
    index = AugmentedIndex(FlatIndex(), augmentation)
    index.add(documents[:10])
    index.add(documents[10:25])
    augmentation.append(bias[25:])
    index.add(documents[25:])
    scores = queries @ documents.T + (1 if weight is None else weight) * bias
    params = {} if weight is None else {"bias_weight": weight}
    live = rng.random(40) < 0.7
    same(index.search(queries, k, params=params), by_hand(scores, k, np.ones(40, bool)))
    index.delete(np.flatnonzero(~live))
    same(index.search(queries, k, params=params), by_hand(scores, k, live))
    keep = rng.random(40) < 0.5
    same(index.search(queries, k, keep=keep, params=params), by_hand(scores, k, live & keep))
    index.compact()
    all_live = np.ones(live.sum(), bool)
    same(index.search(queries, k, params=params), by_hand(scores[:, live], k, all_live))
    np.testing.assert_array_equal(augmentation.values, bias[live])
    np.testing.assert_array_equal(index.documents(np.arange(len(index))), documents[live])


def test_inverted_softmax_by_bias() -> None:
    """Query-bank normalisation: one log-normaliser a document, ranked by the plain index."""
    rng = np.random.default_rng(0)
    documents, bank, queries = (rng.standard_normal((n, 16)) for n in (200, 50, 20))
    documents[:5] += 1.5  # hubs
    beta = 2.0
    normaliser = np.log(np.exp(beta * bank @ documents.T).sum(axis=0))
    index = AugmentedIndex(FlatIndex(), DocumentBias(-normaliser / beta))
    index.add(documents)
    inverted = np.exp(beta * queries @ documents.T) / np.exp(normaliser)
    found = index.search(queries, 10)
    np.testing.assert_array_equal(found.rows, np.argsort(-inverted, axis=1)[:, :10])
    best = np.sort(inverted, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(np.exp(beta * found.scores), best, rtol=1e-4)


def test_biases_are_saved_and_go_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    documents, queries, bias = whole(rng, 30, 6), whole(rng, 4, 6), whole(rng, 30)
    index = AugmentedIndex(FlatIndex(), DocumentBias(bias[:20]))
    index.add(documents[:20])
    index.delete([4])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, AugmentedIndex)
    assert isinstance(opened.augmentation, DocumentBias)
    same(opened.search(queries, 9), index.search(queries, 9))
    with pytest.raises(DataError, match="row 20 has no bias, only 20 were given; append"):
        opened.add(documents[20:])
    assert opened.rows == 20
    opened.augmentation.append(bias[20:])
    opened.add(documents[20:])
    scores = queries @ documents.T + bias
    same(opened.search(queries, 9), by_hand(scores, 9, np.arange(30) != 4))


def test_missing_biases_and_training() -> None:
    rng = np.random.default_rng(2)
    documents, queries = whole(rng, 200, 6), whole(rng, 4, 6)
    augmentation = DocumentBias(missing=-1.0)
    index = AugmentedIndex(FaissIndex("IVF4,Flat"), augmentation)
    index.train(documents)
    assert len(augmentation.values) == 0  # a sample has no rows
    index.add(documents[:150])
    augmentation.append(np.full(50, 3.0))
    index.add(documents[150:])
    bias = np.where(np.arange(200) < 150, -1, 3).astype(np.float32)
    found = index.search(queries, 200, params={"nprobe": 4})
    everything = by_hand(queries @ documents.T + bias, 200, np.ones(200, bool))
    np.testing.assert_array_equal(found.scores, everything.scores)
    augmentation = DocumentBias([1.0, 2.0])
    AugmentedIndex(FaissIndex("IVF4,Flat"), augmentation).train(documents)
    np.testing.assert_array_equal(augmentation.values, [1, 2])


def test_bad_biases_are_refused() -> None:
    for values, message in (
        ([[1.0]], r"shape \(1, 1\)"),
        ([0.0, np.nan], "document 1 has nan"),
        ([1e39], "document 0 has inf"),
        (["a"], "expected an array of floats"),
    ):
        with pytest.raises(DataError, match=message):
            DocumentBias(values)
    with pytest.raises(ConfigError, match="missing is inf, expected a finite number"):
        DocumentBias(missing=np.inf)
    index = AugmentedIndex(FlatIndex(), DocumentBias(missing=0.0))
    index.add(np.ones((1, 3), np.float32))
    for weight in ("1", True, np.nan, 1e31):
        with pytest.raises(ConfigError, match="params: bias_weight is"):
            index.search(np.ones((1, 3), np.float32), 1, params={"bias_weight": weight})


@pytest.mark.parametrize("inner", ["l2", "cosine", "ip"])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_mips_order_is_inner_product_order(inner: Any, scale: float) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(0, 1, (300, 1))  # of very different lengths
    documents = (rng.standard_normal((300, 16)) * lengths * scale).astype(np.float32)
    documents[50] = documents[200]  # equal vectors tie exactly
    queries = rng.standard_normal((12, 16)).astype(np.float32)
    index, flat = AugmentedIndex(FlatIndex(inner), MipsToL2()), FlatIndex()
    index.add(documents)
    flat.add(documents)
    live = np.ones(300, bool)
    live[[7, 90]] = False
    keep = rng.random(300) < 0.5
    for step in range(2):
        for restricted in (None, keep if not step else keep[live]):
            found = index.search(queries, 40, keep=restricted)
            expected = flat.search(queries, 40, keep=restricted)
            np.testing.assert_array_equal(found.rows, expected.rows)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-5 * scale)
        for each in (index, flat):
            each.delete([7, 90])
            each.compact()
    np.testing.assert_allclose(index.documents([3]), flat.documents([3]), rtol=1e-6)
    assert (index.search(queries[:1] * 0, 5).scores == 0).all()


@QUICK
@given(seed=st.integers(0, 2**32), k=st.integers(1, 50))
def test_mips_with_rescoring_equals_brute_force(seed: int, k: int) -> None:
    """Ties between different vectors too: the reduction rounds them, the funnel does not."""
    rng = np.random.default_rng(seed)
    documents, queries = whole(rng, 40, 6), whole(rng, 5, 6)
    reduced = AugmentedIndex(FaissIndex("HNSW16", metric="l2"), MipsToL2(max_norm=6))
    index = FunnelIndex(None, 60, first=reduced)
    index.add(documents)
    live = rng.random(40) < 0.6
    index.delete(np.flatnonzero(~live))
    keep = rng.random(40) < 0.8
    params = {"efSearch": 100}
    scores = queries @ documents.T
    same(index.search(queries, k, params=params), by_hand(scores, k, live))
    same(index.search(queries, k, keep=keep, params=params), by_hand(scores, k, live & keep))


def test_a_trained_inner_index_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    documents = rng.standard_normal((3000, 24)) * rng.lognormal(0, 0.7, (3000, 1))
    documents, queries = documents.astype(np.float32), rng.standard_normal((50, 24))
    spec = {
        "type": "augmented",
        "inner": {"type": "faiss", "factory": "IVF32,Flat", "metric": "l2"},
        "augmentation": {"type": "mips_to_l2"},
    }
    reduced = build(spec, INDEXES, where="index")
    flat = FlatIndex()
    flat.add(documents)
    assert reduced.training_rows(3000) > 0
    reduced.train(documents)
    for part in np.array_split(documents, 3):
        reduced.add(part)
    rows = reduced.search(queries, 10, params={"nprobe": 32}).rows
    best = flat.search(queries, 10).rows
    assert np.mean([np.isin(a, b).mean() for a, b in zip(best, rows, strict=True)]) > 0.99
    rows = reduced.search(queries, 10, params={"nprobe": 6}).rows
    reduced.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    np.testing.assert_array_equal(opened.search(queries, 10, params={"nprobe": 6}).rows, rows)
    with pytest.raises(DataError, match=r"row 3,000 has norm .*, above max_norm .*give MipsToL2"):
        opened.add(documents[:1] * 1000)
    assert opened.rows == 3000
    opened.add(documents[:1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="inner: metric 'cosine', DocumentBias needs 'ip'"):
        AugmentedIndex(FlatIndex("cosine"), DocumentBias())
    with pytest.raises(ConfigError, match="InvertedIndex has no metric"):
        AugmentedIndex({"type": "inverted"}, DocumentBias())
    with pytest.raises(ConfigError, match=r"unknown type 'mips_to_l1'.*did you mean 'mips_to_l2'"):
        AugmentedIndex(FlatIndex("l2"), {"type": "mips_to_l1"})
    with pytest.raises(ConfigError, match="augmentation: NoneType, expected an Augmentation"):
        AugmentedIndex(FlatIndex(), None)  # type: ignore[arg-type]
    for norm in (0, -1, np.inf, True):
        with pytest.raises(ConfigError, match="max_norm is"):
            MipsToL2(norm)
    index = AugmentedIndex(FlatIndex(), DocumentBias(missing=0.0))
    with pytest.raises(ConfigError, match=r"unknown search parameter 'bias_wait'.*'bias_weight'"):
        index.add(np.ones((1, 3), np.float32))
        index.search(np.ones((1, 3), np.float32), 1, params={"bias_wait": 1})


class Doubled(Augmentation):
    """Somebody's own class: every vector twice, so scores double."""

    def augment_documents(self, vectors: Dense, rows: Any) -> Dense:
        return np.column_stack([vectors, vectors])

    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        return np.column_stack([vectors, vectors])

    def write(self, folder: Path) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Doubled:
        return cls()


def test_own_augmentations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_augmentation", sys.modules[__name__])
    monkeypatch.setattr(Doubled, "__module__", "own_augmentation")
    rng = np.random.default_rng(5)
    documents, queries = whole(rng, 20, 4), whole(rng, 3, 4)
    index = AugmentedIndex(FlatIndex(), {"type": "own_augmentation:Doubled"})
    index.add(documents)
    same(index.search(queries, 5), by_hand(2 * queries @ documents.T, 5, np.ones(20, bool)))
    index.save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match=r"pass allow=\['own_augmentation:Doubled'\]"):
        open_index(tmp_path / "index")
    opened = open_index(tmp_path / "index", allow=["own_augmentation:Doubled"])
    same(opened.search(queries, 5), index.search(queries, 5))
