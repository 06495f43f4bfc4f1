"""Vectors of the last layers together, as DSE has them: both passes, saving, training, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.dense.encoder import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.transformer.text_encoder import token_states


def by_hand(encoder: DenseEncoder, text: str, top: int, pooling: str) -> np.ndarray:
    """The states of transformers' own pass, pooled layer by layer, in float64."""
    ids = torch.tensor([encoder.token_ids([text], "document")[0]])
    with torch.no_grad():
        states = encoder.model(input_ids=ids, output_hidden_states=True).hidden_states
    rows = [layer[0].double().numpy() for layer in states[::-1][:top]]
    pooled = [row[0] if pooling == "cls" else row.mean(0) for row in rows]
    vector = np.concatenate(pooled)
    return vector / np.linalg.norm(vector)


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("top", [1, 2])
def test_vectors_by_hand(
    top: int, pooling: Any, packed: bool, bert: Path, texts: list[str]
) -> None:
    encoder = DenseEncoder.from_pretrained(bert, top_layers=top, pooling=pooling)
    encoder.packed = packed
    assert encoder.dim == 32 * top
    plain = DenseEncoder.from_pretrained(bert, pooling=pooling)
    expected = np.stack([by_hand(plain, text, top, pooling) for text in texts])
    np.testing.assert_allclose(encoder.encode_documents(texts), expected, atol=2e-6)
    vectors = encoder.embed(encoder.tokenize(texts, "document"), "document")
    np.testing.assert_allclose(vectors.detach().numpy(), expected, atol=2e-6)
    vectors.sum().backward()
    lower = encoder.model.encoder.layer[0].output.dense.weight.grad
    assert float(lower.abs().max()) > 0


def test_the_first_dimensions_are_the_last_layers(bert: Path, texts: list[str]) -> None:
    both = DenseEncoder.from_pretrained(bert, top_layers=2, dim=32)
    plain = DenseEncoder.from_pretrained(bert)
    np.testing.assert_allclose(
        both.encode_documents(texts), plain.encode_documents(texts), atol=2e-6
    )


def test_token_vectors_are_as_wide(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, top_layers=2)
    assert token_states(encoder, ["gold river"], "document").values.shape[1] == 64
    assert token_states(encoder, [""], "document").values.shape == (0, 64)


def test_bad_settings(bert: Path, tmp_path: Path) -> None:
    for top in (0, 3, "2"):
        with pytest.raises(ConfigError, match="top_layers"):
            DenseEncoder.from_pretrained(bert, top_layers=top)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="top_layers: 2; the model has 1"):
        DenseEncoder.from_pretrained(bert, top_layers=2, layers=1)
    encoder = DenseEncoder.from_pretrained(bert, top_layers=2)
    with pytest.raises(ConfigError, match=r"encoder\.top_layers"):
        encoder.embed_layers(encoder.tokenize(["gold"], "document"), "document", [2, 1])
    DenseEncoder.from_pretrained(bert, projection=8).save_pretrained(tmp_path / "m")
    with pytest.raises(ModelError, match="expected 64"):
        DenseEncoder.from_pretrained(tmp_path / "m", top_layers=2)


def test_it_is_not_exported(bert: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from sluice.encoders.backends.export import export_onnx

    DenseEncoder.from_pretrained(bert, top_layers=2).save_pretrained(tmp_path / "m")
    with pytest.raises(ConfigError, match="top_layers: 2 cannot be exported as ONNX"):
        export_onnx(tmp_path / "m", tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


def test_without_its_settings_it_is_refused(bert: Path, masked_bert: Path, tmp_path: Path) -> None:
    from sluice.encoders.splade.encoder import SpladeEncoder

    DenseEncoder.from_pretrained(bert, top_layers=2).save_pretrained(tmp_path / "dense")
    sparse = SpladeEncoder.from_pretrained(masked_bert, term_frequency=True)
    sparse.save_pretrained(tmp_path / "splade")
    for name, setting in (("dense", "top_layers"), ("splade", "query_model")):
        (tmp_path / name / "sluice.json").unlink()
        with pytest.raises(ModelError, match=rf"has no {setting}.*copy sluice\.json"):
            open_encoder(tmp_path / name)
