"""Term frequency and length in SPLADE documents: the formula, BM25, both passes, saving."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.splade.encoder import SpladeEncoder
from sluice.encoders.splade.terms import TermFrequency

SPECIAL = torch.tensor([0, 1])
ROWS = [[1, 5, 5, 7, 1], [1, 9, 1], [1, 5, 5, 5, 5, 1], [1, 1], [1, 4, 1]]  # the fourth is blank


def plain(row: list[int], term: int, k1: float, b: float, length: float) -> float:
    tokens = [token for token in row if token not in (0, 1)]
    tf = max(Counter(tokens)[term], 1)
    return tf * (1 + k1) / (tf + k1 * (1 - b + b * len(tokens) / length))


@pytest.mark.parametrize(("k1", "b", "length"), [(0.9, 0.4, 128), (1.2, 1.0, 3), (0.01, 0.4, 10)])
def test_factors_by_the_formula(k1: float, b: float, length: float) -> None:
    frequency = TermFrequency(k1, b, length)
    width = max(map(len, ROWS))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in ROWS])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ROWS])
    found = frequency.of_batch(ids, mask, SPECIAL, 12).numpy()
    expected = [[plain(row, term, k1, b, length) for term in range(12)] for row in ROWS]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    terms = np.arange(12, dtype=np.int32)
    for row, factors in zip(ROWS, expected, strict=True):
        tokens = np.array([token for token in row if token > 1], np.int32)
        np.testing.assert_allclose(frequency.of_text(terms, tokens), factors, rtol=1e-6)
        some = frequency.of_text(terms[[2, 5, 11]], tokens)
        np.testing.assert_allclose(some, np.array(factors)[[2, 5, 11]], rtol=1e-6)
        assert frequency.of_text(terms[:0], tokens).shape == (0,)


def test_binary_weights_become_bm25() -> None:
    """Sums of idf over shared terms, times the factors, order documents as Lucene's BM25."""
    rng = np.random.default_rng(4)
    rows = [rng.integers(2, 12, size).tolist() for size in (4, 9, 30, 17)]
    mean = float(np.mean([len(row) for row in rows]))
    idf = rng.random(12) * 3
    query = [3, 5, 8]
    frequency = TermFrequency(1.2, 0.75, mean)
    for row in rows:
        counts = Counter(row)
        expected = sum(
            idf[t] * counts[t] / (counts[t] + 1.2 * (0.25 + 0.75 * len(row) / mean)) for t in query
        )
        terms = np.unique(row).astype(np.int32)
        weights = dict(
            zip(terms.tolist(), frequency.of_text(terms, np.array(row, np.int32)), strict=True)
        )
        found = sum(idf[t] * weights.get(t, 0.0) for t in query)
        assert found == pytest.approx(expected * 2.2, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("options", [{}, {"lexical": "both"}, {"document_top_k": 5}])
def test_both_passes_weigh_alike(
    options: dict[str, Any], packed: bool, masked_bert: Path, texts: list[str]
) -> None:
    repeated = [*texts, "gold gold gold river", " "]
    plain_one = SpladeEncoder.from_pretrained(masked_bert)
    encoder = SpladeEncoder.from_pretrained(masked_bert, term_frequency={"length": 4}, **options)
    encoder.packed = packed
    features = encoder.tokenize(repeated, "document")
    trained = encoder.embed(features, "document").detach().numpy()
    found = encoder.encode_documents(repeated).toarray()
    np.testing.assert_allclose(found, trained, atol=1e-5)
    if not options:
        factors = TermFrequency(length=4).of_batch(
            features["input_ids"], features["attention_mask"],
            torch.tensor(encoder.tokenizer.all_special_ids), encoder.dim,
        )  # fmt: skip
        whole = plain_one.encode_documents(repeated).toarray()
        np.testing.assert_allclose(found, whole * factors.numpy(), atol=1e-5)
        queries = encoder.encode_queries(repeated).toarray()
        np.testing.assert_allclose(queries, plain_one.encode_queries(repeated).toarray(), atol=1e-5)


def test_it_is_saved_and_part_of_the_fingerprint(masked_bert: Path, tmp_path: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, term_frequency={"k1": 1.5, "length": 60})
    usual = SpladeEncoder.from_pretrained(masked_bert, term_frequency=False)
    assert encoder.fingerprint != usual.fingerprint
    assert usual.fingerprint == SpladeEncoder.from_pretrained(masked_bert).fingerprint
    encoder.save_pretrained(tmp_path / "m")
    again = open_encoder(tmp_path / "m")
    assert again.term_frequency == TermFrequency(1.5, 0.4, 60)
    off = SpladeEncoder.from_pretrained(tmp_path / "m", term_frequency=False)
    assert off.term_frequency is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"k1": -1}, r"term_frequency\.k1"),
        ({"k1": 0}, r"term_frequency\.k1: 0 leaves every weight as it is"),
        ({"b": 1.5}, r"term_frequency\.b"),
        ({"length": 0}, r"term_frequency\.length"),
        ({"lenght": 9}, "did you mean 'length'"),
        ("bm25", "expected true, or some of"),
    ],
)
def test_bad_settings(setting: Any, message: str, masked_bert: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SpladeEncoder.from_pretrained(masked_bert, term_frequency=setting)
