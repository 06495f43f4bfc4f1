"""Starting SPLADE from an encoder without a language-model head: an ordinary folder comes out."""

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import SpladeEncoder, start_splade
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.splade.start import start_from_config

TEXTS = [
    f"{a} {b} in the {c} of the {d}"
    for a in ("gold", "river", "stone", "water", "deep")
    for b in ("query", "index", "term", "rank")
    for c in ("sluice", "vector", "model")
    for d in ("train", "learn", "score", "dense", "sparse")
]


def test_a_started_encoder_is_an_ordinary_splade_folder(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    encoder = start_splade(bert, TEXTS, document_length=20)
    vectors = encoder.encode_documents(TEXTS).toarray()
    own = np.zeros_like(vectors, dtype=bool)
    for row, ids in enumerate(encoder.token_ids(TEXTS, "document")):
        own[row, ids[1:-1]] = True
    assert (vectors[own] > 0).mean() > 0.95
    assert (vectors[~own] > 0).mean() < 0.8  # a random tiny model: real ones come to 0.002
    assert (vectors[:, encoder.tokenizer.all_special_ids] == 0).all()
    encoder.save_pretrained(tmp_path / "m")
    again = SpladeEncoder.from_pretrained(tmp_path / "m")
    np.testing.assert_allclose(again.encode_documents(TEXTS).toarray(), vectors, atol=1e-5)
    assert again.fingerprint == encoder.fingerprint
    theirs = SparseEncoder(str(tmp_path / "m"), device="cpu")
    expected = theirs.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    same = start_splade(bert, iter(TEXTS), document_length=20)
    assert same.fingerprint == encoder.fingerprint


def test_start_settings_are_checked(bert: Path) -> None:
    spec = {"type": "splade", "model": str(bert)}
    with pytest.raises(ConfigError, match=r"encoder.start: .*threshold"):
        start_from_config(spec, {"treshold": 0.3}, TEXTS, where="encoder", seed=1)
    with pytest.raises(ModelError, match="texts"):
        start_from_config(spec, True, [" "], where="encoder", seed=1)


@pytest.mark.thorough
@pytest.mark.parametrize("terms", [4.0, 9.0, 25.0])
def test_a_start_has_the_terms_it_is_asked_for(bert: Path, terms: float) -> None:
    encoder = start_splade(bert, TEXTS, document_length=20, terms=terms)
    found = encoder.encode_documents(TEXTS)
    assert found.nnz / len(TEXTS) == pytest.approx(terms, rel=0.15)
    assert (found.toarray()[:, encoder.tokenizer.all_special_ids] == 0).all()
    with pytest.raises(ConfigError, match=r"start\.terms"):
        start_splade(bert, TEXTS, terms=1000.0)
