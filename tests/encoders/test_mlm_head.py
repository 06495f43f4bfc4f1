"""The closed-form head: sparse at once, the text's own terms first, weights as asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from encoders import SpladeEncoder, start_splade
from encoders.errors import ConfigError, ModelError
from encoders.mlm_head import build_mlm_head
from encoders.splade_start import start_from_config

TEXTS = [
    f"{a} {b} in the {c} of the {d}"
    for a in ("gold", "river", "stone", "water", "deep")
    for b in ("query", "index", "term", "rank")
    for c in ("sluice", "vector", "model")
    for d in ("train", "learn", "score", "dense", "sparse")
]


def test_separable_states_give_each_token_its_weight_and_nothing_else() -> None:
    torch.manual_seed(1)
    size, width, per_token = 40, 24, 60
    centres = torch.randn(size, width) * 4
    token_ids = torch.arange(size).repeat_interleave(per_token)
    hidden = centres[token_ids] + 0.1 * torch.randn(len(token_ids), width)
    idf = torch.linspace(1.0, 9.0, size)
    head = build_mlm_head(
        torch.randn(size, 8), hidden, token_ids, idf, silent=[3], threshold=0.8, power=1.0
    )
    states = torch.nn.functional.gelu(hidden @ head.dense.T + head.dense_bias)
    states = torch.nn.functional.layer_norm(states, (width,))
    weights = torch.log1p(torch.relu(states @ head.decoder.T + head.decoder_bias))
    own = weights[torch.arange(len(token_ids)), token_ids].view(size, per_token).mean(dim=1)
    expected = 0.3 * idf
    expected[3] = 0.0
    torch.testing.assert_close(own, expected, atol=0.25, rtol=0.05)
    assert (weights > 0).sum(dim=1).float().mean() < 2.0


def test_bad_shapes_and_too_few_positions_are_named() -> None:
    with pytest.raises(ModelError, match="expected"):
        build_mlm_head(torch.randn(4, 2), torch.randn(9, 2), torch.zeros(8).long(), torch.ones(4))
    with pytest.raises(ModelError, match="more texts"):
        build_mlm_head(torch.randn(4, 9), torch.randn(9, 9), torch.zeros(9).long(), torch.ones(4))


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
