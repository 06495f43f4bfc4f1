"""Pruning of sparse vectors after encoding, against dense loops."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st

from sluice.encoders import SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.splade.start import fit_term_floors, term_quantiles
from sluice.encoders.splade.terms import TermSelection, prune_terms
from sluice.encoders.tuning.soup import soup
from sluice.encoders.vectors.pool import EncodingPool

WEIGHTS = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0])
MATRICES = (
    st.integers(1, 6)
    .flatmap(
        lambda width: st.lists(
            st.lists(WEIGHTS, min_size=width, max_size=width), min_size=1, max_size=6
        )
    )
    .map(lambda rows: sp.csr_array(np.array(rows, np.float32)))
)


def selected(vectors: sp.csr_array, selection: TermSelection) -> np.ndarray:
    rows = np.zeros(vectors.shape, np.float32)
    for row, (start, stop) in enumerate(itertools.pairwise(vectors.indptr)):
        terms, weights = selection.of_text(
            vectors.indices[start:stop], vectors.data[start:stop], None
        )
        rows[row, terms] = weights
    return rows


@settings(max_examples=60, derandomize=True, deadline=None)
@given(vectors=MATRICES, k=st.integers(1, 7), share=st.sampled_from([0.1, 0.5, 0.6, 1.0]))
def test_each_way_equals_its_loop(vectors: sp.csr_array, k: int, share: float) -> None:
    dense = vectors.toarray()
    below = np.where(dense >= np.float32(share), dense, 0)
    np.testing.assert_array_equal(selected(vectors, TermSelection(below=share)), below)
    by_ratio = np.where(dense >= dense.max(1, keepdims=True) * np.float32(share), dense, 0)
    np.testing.assert_array_equal(selected(vectors, TermSelection(ratio=share)), by_ratio)
    top = np.zeros_like(dense)
    for row, values in enumerate(dense):
        kept = sorted(range(len(values)), key=lambda j: (-values[j], j))[:k]
        top[row, kept] = values[kept]
    np.testing.assert_array_equal(selected(vectors, TermSelection(top_k=k)), top)
    least = term_quantiles(vectors, share)
    by_term = np.zeros_like(dense)
    for term in range(dense.shape[1]):
        held = dense[:, term][dense[:, term] > 0]
        limit = np.float32(np.quantile(held.astype(np.float64), share)) if len(held) else 0
        assert least[term] == pytest.approx(limit)
        by_term[:, term] = np.where(dense[:, term] >= limit, dense[:, term], 0)
    found = prune_terms(vectors, least)
    np.testing.assert_array_equal(found.toarray(), by_term)
    assert found.has_sorted_indices
    assert found.dtype == np.float32


def test_quantiles_are_the_same_in_chunks_and_nothing_is_lost_at_zero() -> None:
    draw = np.random.default_rng(3)
    vectors = sp.csr_array(draw.random((50, 20)) * (draw.random((50, 20)) < 0.3))
    vectors = sp.csr_array(vectors.astype(np.float32))
    whole = term_quantiles(vectors, 0.4)
    parts = term_quantiles([vectors[:13], vectors[13:]], 0.4)
    np.testing.assert_array_equal(whole, parts)
    kept = prune_terms(vectors, whole)
    counts = np.diff(vectors.tocsc().indptr)
    left = np.diff(kept.tocsc().indptr)
    assert (left == counts - np.ceil(0.4 * (counts - 1)).clip(min=0)).all()  # no ties here
    assert (prune_terms(vectors, term_quantiles(vectors, 0.0)) != vectors).nnz == 0
    assert (vectors.max(axis=0).toarray() == kept.max(axis=0).toarray()).all()


def test_empty_vectors_stay_empty_and_wrong_numbers_are_refused() -> None:
    empty = sp.csr_array((3, 5), dtype=np.float32)
    pruned = prune_terms(empty, term_quantiles(empty, 0.5))
    assert pruned.shape == (3, 5)
    assert pruned.nnz == 0
    assert not selected(empty, TermSelection(below=1.0, ratio=0.5, top_k=2)).any()
    for call, words in (
        (lambda: TermSelection(below=0.0), "prune_below: 0.0"),
        (lambda: TermSelection(ratio=[1]), "prune_ratio: "),  # type: ignore[arg-type]
        (lambda: TermSelection(ratio=0.0), "prune_ratio: 0.0"),
        (lambda: term_quantiles(empty, 2.0), "quantile: 2.0"),
        (lambda: term_quantiles([], 0.5), "no vectors"),
        (lambda: prune_terms(empty, np.zeros(4, np.float32)), r"\[4\], expected .*\[5\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


def test_documents_of_an_encoder_lose_each_terms_lightest_weights(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    whole = SpladeEncoder.from_pretrained(masked_bert)
    vectors = whole.encode_documents(texts)
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.4)
    before = encoder.fingerprint
    assert encoder.needs_term_floors
    assert encoder.encode_documents([]).shape == (0, encoder.dim)
    with pytest.raises(ConfigError, match=r"prune_quantile: .* quantile 0\.4, are not known yet"):
        encoder.encode_documents(texts)
    fit_term_floors(encoder, iter(texts))
    expected = prune_terms(vectors, term_quantiles(vectors, 0.4))
    assert 0 < expected.nnz < vectors.nnz
    pruned = encoder.encode_documents(texts)
    assert (pruned != expected).nnz == 0
    assert (encoder.encode_queries(texts) != whole.encode_queries(texts)).nnz == 0
    assert len({whole.fingerprint, before, encoder.fingerprint}) == 3
    assert encoder.without_quantile().fingerprint == whole.fingerprint
    encoder.save_pretrained(tmp_path / "saved")
    again = open_encoder(tmp_path / "saved")
    assert again.fingerprint == encoder.fingerprint
    assert (again.encode_documents(texts) != expected).nnz == 0
    other = SpladeEncoder.from_pretrained(tmp_path / "saved", prune_quantile=0.2)
    assert other.needs_term_floors  # those of 0.4 are not its own


def test_an_encoder_with_query_weights_keeps_its_floors(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf", prune_quantile=0.5)
    fit_term_floors(encoder, texts)
    encoder.save_pretrained(tmp_path / "saved")
    for place in ("saved", "saved/document"):
        again = open_encoder(tmp_path / place)
        assert (again.encode_documents(texts) != encoder.encode_documents(texts)).nnz == 0


@pytest.mark.thorough
def test_other_processes_prune_alike(masked_bert: Path, texts: list[str]) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.4)
    fit_term_floors(encoder, texts)
    with EncodingPool(encoder, 1) as pool:
        vectors = pool.encode_documents(texts)
    np.testing.assert_allclose(
        vectors.toarray(), encoder.encode_documents(texts).toarray(), atol=1e-5
    )


def test_a_quantile_that_does_nothing_is_refused(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    for quantile in (0.0, 1.0, -0.5):
        with pytest.raises(ConfigError, match=f"prune_quantile: {quantile}; expected a share"):
            SpladeEncoder.from_pretrained(masked_bert, prune_quantile=quantile)
    whole = SpladeEncoder.from_pretrained(masked_bert)
    with pytest.raises(ConfigError, match="the encoder has none"):
        fit_term_floors(whole, texts)
    with pytest.raises(ConfigError, match="without the prune_quantile"):
        SpladeEncoder(whole.model, whole.tokenizer, term_floors=np.zeros(whole.dim, np.float32))
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.4)
    with pytest.raises(DataError, match="no documents"):
        fit_term_floors(encoder, [])
    with pytest.raises(ConfigError, match=r"document\.prune_quantile: not for a tower"):
        TowerEncoder(whole, encoder)
    fit_term_floors(encoder, texts)
    encoder.save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "term_floors.npy"
    for floors, words in (
        (np.zeros(3, np.float32), "3 term floors"),
        (np.zeros(encoder.dim), "float64"),
        (np.full(encoder.dim, np.nan, np.float32), "expected finite"),
    ):
        np.save(file, floors)
        with pytest.raises(ModelError, match=words):
            open_encoder(tmp_path / "saved")
    file.write_bytes(b"no array")
    with pytest.raises(ModelError, match="not readable as an array"):
        open_encoder(tmp_path / "saved")


def test_a_soup_reads_its_quantiles_anew(
    masked_bert: Path, texts: list[str], tmp_path: Path
) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.4)
    fit_term_floors(encoder, texts)
    encoder.save_pretrained(tmp_path / "one")
    mixed = open_encoder(soup([tmp_path / "one"] * 2, tmp_path / "soup"))
    assert mixed.prune_quantile == 0.4
    assert mixed.needs_term_floors
