"""Pooling of tokens: Ward's clusters as scipy finds them, and what is left alone."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from sluice.encoders import TokenEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.late_interaction.pooling import cluster_means, pooled_tokens, ward_labels

DOCUMENTS = ["the river, stone. water!", "gold", "", "a deep, sparse query " * 20]


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def members(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(1, 30), st.integers(2, 16), st.integers(0, 10**6))
def test_clusters_are_those_of_scipy(count: int, clusters: int, dim: int, seed: int) -> None:
    vectors = unit(count, dim, seed)
    clusters = min(clusters, count - 1)
    cosines = vectors @ vectors.T
    distances = np.clip(1 - cosines.astype(np.float64), 0, 2)
    np.fill_diagonal(distances, 0)
    tree = hierarchy.linkage(squareform((distances + distances.T) / 2), method="ward")
    theirs = hierarchy.fcluster(tree, t=clusters, criterion="maxclust")
    ours = ward_labels(np.ascontiguousarray((cosines + cosines.T) / 2), clusters)
    assert members(ours) == members(theirs)
    firsts = [int(np.flatnonzero(ours == label)[0]) for label in range(ours.max() + 1)]
    assert firsts == sorted(firsts)


def test_equal_tokens_share_a_vector() -> None:
    vectors = unit(3, 8, 1)[[0, 1, 0, 2, 1, 0]]
    labels = ward_labels(np.ascontiguousarray(vectors @ vectors.T), 3)
    assert labels.tolist() == [0, 1, 0, 2, 1, 0]
    np.testing.assert_allclose(cluster_means(vectors, labels, normalize=True), unit(3, 8, 1),
                               atol=1e-6)  # fmt: skip


def test_means_in_float64() -> None:
    vectors, labels = unit(9, 4, 2), np.array([0, 1, 0, 2, 1, 0, 2, 2, 2])
    for normalize in (False, True):
        means = cluster_means(vectors, labels, normalize)
        for label, mean in enumerate(means):
            expected = vectors[labels == label].astype(np.float64).mean(axis=0)
            expected /= np.linalg.norm(expected) if normalize else 1.0
            np.testing.assert_allclose(mean, expected, atol=1e-6)


@pytest.mark.parametrize("factor", [1.5, 2.0, 7.0, 1000.0])
def test_counts_and_protected_tokens(factor: float) -> None:
    counts = np.array([10, 0, 1, 2, 37])
    values = unit(int(counts.sum()), 8, 3)
    pooled, after = pooled_tokens(values, counts, factor, protected=2, normalize=True)
    rest = np.maximum(counts - 2, 0)
    clusters = np.where(rest > 0, np.maximum(rest // factor, 1), 0)
    assert after.tolist() == (np.minimum(counts, 2) + clusters).tolist()
    starts, before = np.cumsum(after) - after, np.cumsum(counts) - counts
    for text in range(len(counts)):
        fixed = min(2, counts[text])
        np.testing.assert_array_equal(
            pooled[starts[text] : starts[text] + fixed],
            values[before[text] : before[text] + fixed],
        )


def test_encoder_pools_documents_and_not_queries(bert: Path) -> None:
    plain = TokenEncoder.from_pretrained(bert, dim=8, skip_words=[])
    factor_one = TokenEncoder.from_pretrained(bert, dim=8, skip_words=[], pool_factor=1)
    pooled = TokenEncoder.from_pretrained(
        bert, dim=8, skip_words=[], pool_factor=2, protected_tokens=2
    )
    whole = plain.encode_documents(DOCUMENTS)
    assert factor_one.encode_documents(DOCUMENTS).values.tobytes() == whole.values.tobytes()
    assert factor_one.fingerprint == plain.fingerprint != pooled.fingerprint
    rest = whole.lengths - 2
    assert (
        pooled.encode_documents(DOCUMENTS).lengths.tolist()
        == (2 + np.maximum(rest // 2, 1)).tolist()
    )
    queries = pooled.encode_queries(["gold"]).values.tobytes()
    assert queries == plain.encode_queries(["gold"]).values.tobytes()


def test_settings_that_would_do_nothing_are_refused(bert: Path) -> None:
    for options, message in (
        ({"protected_tokens": 2}, "there is none"),
        ({"pool_factor": 0.5}, "pool_factor"),
        ({"pool_factor": 2, "normalize": False}, "normalize: true"),
        ({"expand_queries": False, "attend_to_expansion": True}, "not filled up"),
        ({"expand_queries": 40}, "raise query_length"),
        ({"expand_queries": 0}, "expand_queries"),
        ({"projection": True}, "projection: true"),
        ({"projection": 8, "dim": 8}, "remove one"),
    ):
        with pytest.raises(ConfigError, match=message):
            TokenEncoder.from_pretrained(bert, **options)  # type: ignore[arg-type]


def test_words_that_are_no_token_are_named(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        words = ["river", "riverside", "x y"]
        encoder = TokenEncoder.from_pretrained(bert, dim=8, skip_words=words)
    assert "riverside x y: not one token each" in caplog.text
    assert encoder.encode_documents(["river"]).lengths.tolist() == [
        encoder.encode_documents(["gold"]).lengths[0] - 1
    ]
