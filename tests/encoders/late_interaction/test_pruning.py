"""Pruning of tokens: the losses of MaxSim by brute force, folders, names, and small documents."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders import TokenEncoder
from sluice.encoders.late_interaction.pruning import kept_tokens, least_loss, pruned_tokens
from tests.encoders.late_interaction.test_pooling import DOCUMENTS, unit


def by_brute_force(products: np.ndarray, most: int, protected: int) -> list[int]:
    """Remove the token without which the sum of maxima, in float64, falls least, the last first."""
    left = list(range(products.shape[1]))
    values = products.astype(np.float64)
    while len(left) > most:
        losses = {
            token: values[:, left].max(axis=1).sum()
            - values[:, [each for each in left if each != token]].max(axis=1).sum()
            for token in left
            if token >= protected
        }
        least = min(losses.values())
        left.remove(max(token for token, loss in losses.items() if loss <= least + 1e-9))
    return left


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 14), st.integers(1, 13), st.integers(0, 3), st.integers(0, 10**6))
def test_what_goes_costs_least(count: int, most: int, protected: int, seed: int) -> None:
    products = unit(30, 6, seed) @ unit(count, 6, seed + 1).T
    protected = min(protected, count - 1)
    most = max(min(most, count), protected, 1)
    assert least_loss(products, most, protected).tolist() == by_brute_force(
        products, most, protected
    )


def test_a_copy_goes_first_and_small_documents_stay() -> None:
    vectors = unit(4, 8, 1)[[0, 1, 2, 3, 1, 0]]
    assert kept_tokens(vectors, 1.5, 0).tolist() == [0, 1, 2, 3]
    assert kept_tokens(vectors[:1], 3, 1).tolist() == [0]
    counts = np.array([10, 0, 1, 2, 37])
    values = unit(int(counts.sum()), 8, 3)
    kept, after = pruned_tokens(values, counts, 3, protected=1)
    assert after.tolist() == [1 + 3, 0, 1, 2, 1 + 12]
    assert {row.tobytes() for row in kept} <= {row.tobytes() for row in values}
    assert len(pruned_tokens(values[:0], counts[:0], 3, protected=1)[0]) == 0


def test_an_encoder_prunes_is_saved_and_names_what_stays(bert: Path, tmp_path: Path) -> None:
    options = {"dim": 8, "skip_words": [], "pool_factor": 3}
    pruned = TokenEncoder.from_pretrained(bert, pool_by="voronoi", **options)  # type: ignore[arg-type]
    pooled = TokenEncoder.from_pretrained(bert, **options)  # type: ignore[arg-type]
    whole = TokenEncoder.from_pretrained(bert, dim=8, skip_words=[])
    vectors, every = pruned.encode_documents(DOCUMENTS), whole.encode_documents(DOCUMENTS)
    for text in range(len(DOCUMENTS)):
        own = [row.tobytes() for row in every.text(text)]
        assert [row.tobytes() in own for row in vectors.text(text)] == [True] * len(
            vectors.text(text)
        )
    assert len({each.fingerprint for each in (pruned, pooled, whole)}) == 3
    pruned.save_pretrained(tmp_path / "saved")
    opened = TokenEncoder.from_pretrained(tmp_path / "saved")
    assert (opened.pool_by, opened.pool_factor, opened.protected_tokens) == ("voronoi", 3, 1)
    assert opened.encode_documents(DOCUMENTS).values.tobytes() == vectors.values.tobytes()
    names = opened.token_texts(DOCUMENTS, "document")
    assert list(map(len, names)) == vectors.lengths.tolist()
    with pytest.raises(Exception, match="there is none"):
        TokenEncoder.from_pretrained(bert, pool_by="voronoi")
