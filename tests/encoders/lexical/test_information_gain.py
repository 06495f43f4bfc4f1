"""Squared lengths and the quadratic form against plain formulas, and on skip-gram vectors."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from places import ROOT

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.lexical.information_gain import information_gain


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    file = ROOT / "scripts" / "prove_information_gain.py"
    spec = importlib.util.spec_from_file_location("prove_information_gain", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_formulas() -> None:
    rng = np.random.default_rng(3)
    u, v, p = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), np.array([3.0, 1, 1, 4, 1])
    plain = [sum(x * x for x in row) for row in u.tolist()]
    np.testing.assert_allclose(information_gain(u), plain, rtol=1e-12)
    mean_u = [sum(0.1 * w * row[k] for w, row in zip(p, u, strict=True)) for k in range(3)]
    mean_v = [sum(0.1 * w * row[k] for w, row in zip(p, v, strict=True)) for k in range(3)]
    expected = []
    for row in u:
        total = 0.0
        for weight, other in zip(p, v, strict=True):
            dot = sum((row[k] - mean_u[k]) * (other[k] - mean_v[k]) for k in range(3))
            total += 0.1 * weight * dot * dot / 2  # half the variance of the logits
        expected.append(total)
    np.testing.assert_allclose(information_gain(u, p, v), expected, rtol=1e-10)
    assert len(information_gain(np.zeros((0, 4)))) == 0


def test_it_is_the_divergence_of_softmaxes_near_the_mean() -> None:
    """KL(softmax) to second order: 2 KL ~ u^T G u, exactly so as vectors shrink."""
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(30))
    v = rng.normal(size=(30, 4))
    u = 0.01 * rng.normal(size=(30, 4))
    around = p * np.exp((u - p @ u) @ v.T)
    around /= around.sum(axis=1, keepdims=True)
    truth = (around * np.log(around / p)).sum(axis=1)
    np.testing.assert_allclose(information_gain(u, p, v), truth, rtol=0.1)


@pytest.mark.thorough
def test_skip_gram_vectors_are_as_long_as_their_words_tell(proof: ModuleType) -> None:
    """Words as frequent as each other, each to its own degree at home in one of ten topics."""
    rng = np.random.default_rng(5)
    words, topics = 60, 10
    bound = (np.arange(words) // topics) / 6  # 0: anywhere; 5/6: nearly always in its topic
    texts = []
    chances = np.full((topics, words), 1.0)
    for topic in range(topics):
        own = np.arange(words) % topics == topic
        chances[topic] = (1 - bound) / topics + np.where(own, bound, 0.0)
    chances /= chances.sum(axis=1, keepdims=True)
    for _ in range(1_000):
        drawn = rng.choice(words, 12, p=chances[rng.integers(topics)])
        texts.append(" ".join(f"w{word:02d}" for word in drawn))
    corpus = proof.read(texts, 5)
    assert corpus.counts.sum() == 12_000
    vectors, contexts = proof.skip_gram(corpus, 8, 8)
    found: dict[str, Any] = proof.correlations(corpus, vectors, contexts, 1)
    assert found["squared length"] > 0.8
    assert found["quadratic form"] > 0.8
    assert found["log 1/p"] < 0.5  # how often they occur does not tell
    # The divergences counted: of a text of two words each is seen with the other.
    small = proof.read(["a b", "a b", "c d", "c d"], 1)
    np.testing.assert_allclose(proof.divergences(small), np.log(4.0))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"vectors \(3,\); expected finite numbers"):
        information_gain(np.zeros(3))
    with pytest.raises(DataError, match=r"expected finite numbers \[n, dim\]"):
        information_gain(np.full((2, 2), np.nan))
    with pytest.raises(DataError, match="shares and contexts go together; give both or neither"):
        information_gain(np.zeros((2, 2)), shares=[1, 1])
    with pytest.raises(DataError, match="expected one of each for every word, and shares above 0"):
        information_gain(np.zeros((2, 2)), [0, 0], np.zeros((2, 2)))
