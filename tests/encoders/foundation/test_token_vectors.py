"""Token vectors: rows, joining, MaxSim by its formula and as sentence-transformers computes it."""

import numpy as np
import pytest

from sluice.encoders.foundation import tokens as token_vectors
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.tokens import TokenVectors, max_sim


def drawn(lengths: list[int], seed: int, dim: int = 6) -> TokenVectors:
    chance = np.random.default_rng(seed)
    return TokenVectors.of([chance.standard_normal((n, dim)) for n in lengths], dim)


@pytest.mark.parametrize("products", [1, 50, 1 << 22])
def test_max_sim_is_the_sum_of_the_best_products(
    monkeypatch: pytest.MonkeyPatch, products: int
) -> None:
    monkeypatch.setattr(token_vectors, "_PRODUCTS", products)
    queries, documents = drawn([3, 0, 1, 7], 1), drawn([0, 5, 1, 0, 12, 2, 0], 2)
    scores = max_sim(queries, documents)
    for row, query in enumerate(queries):
        for place, document in enumerate(documents):
            dots = query.astype(np.float64) @ document.astype(np.float64).T
            expected = sum(line.max() if len(line) else -np.inf for line in dots)
            assert scores[row, place] == pytest.approx(expected, abs=1e-5)


def test_max_sim_is_that_of_sentence_transformers() -> None:
    from sentence_transformers.util import maxsim

    queries, documents = drawn([3, 1, 7], 1), drawn([5, 1, 12, 2], 2)
    theirs = maxsim(list(queries), list(documents)).numpy()
    np.testing.assert_allclose(max_sim(queries, documents), theirs, atol=1e-5)


def test_max_sim_of_nothing_and_of_other_widths() -> None:
    none = drawn([], 0)
    assert max_sim(none, drawn([2], 1)).shape == (0, 1)
    assert max_sim(drawn([2], 1), none).shape == (1, 0)
    with pytest.raises(DataError, match="6 dimensions, documents 5"):
        max_sim(drawn([2], 1), drawn([2], 1, dim=5))


def test_rows_and_joining_keep_each_text() -> None:
    texts = drawn([3, 0, 1, 7], 1)
    chosen = texts.rows([3, 1, 3])
    assert [len(text) for text in chosen] == [7, 0, 7]
    np.testing.assert_array_equal(chosen.text(2), texts.text(3))
    halves = [texts.rows(slice(0, 2)), texts.rows(slice(2, 4))]
    joined = TokenVectors.joined(halves, 6)
    np.testing.assert_array_equal(joined.values, texts.values)
    np.testing.assert_array_equal(joined.bounds, texts.bounds)
    every_third = texts.rows(slice(None, None, 3))
    expected = np.concatenate([texts.text(0), texts.text(3)])
    np.testing.assert_array_equal(every_third.values, expected)


@pytest.mark.parametrize("bounds", [[0, 2], [1, 3], [0, 2, 1, 3], [0, 5]])
def test_bounds_that_do_not_fit_are_refused(bounds: list[int]) -> None:
    with pytest.raises(DataError, match="bounds"):
        TokenVectors(np.zeros((3, 2), np.float32), np.array(bounds))
