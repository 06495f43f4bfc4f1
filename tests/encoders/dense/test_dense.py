"""Dense encoders: invariance, poolings against formulas, sentence-transformers both ways."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import save_model

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.pooling import POOLINGS
from sluice.encoders.foundation.errors import ConfigError, ModelError


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", list(POOLINGS))
@pytest.mark.parametrize("normalize", [True, False])
def test_batches_order_and_padding_do_not_change_a_vector(
    bert: Path, texts: list[str], pooling: str, normalize: bool
) -> None:
    encoder = DenseEncoder.from_pretrained(bert, pooling=pooling, normalize=normalize)
    together = encoder.encode_documents(texts)
    tolerance = 1e-6 if normalize else 1e-5
    alone = np.vstack([encoder.encode_documents([text]) for text in texts])
    encoder.batch_tokens = 70
    backwards = encoder.encode_documents(texts[::-1])[::-1]
    assert together.dtype == np.float32
    np.testing.assert_allclose(alone, together, atol=tolerance)
    np.testing.assert_allclose(backwards, together, atol=tolerance)
    np.testing.assert_array_equal(together[0], together[6])
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)


def test_poolings_equal_their_formulas_on_both_padding_sides() -> None:
    states = torch.arange(24, dtype=torch.float64).reshape(1, 4, 6).repeat(2, 1, 1)
    states[0, 3], states[1, 0] = 1e6, 1e6  # padding must not leak
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    for row, real in ((0, [0, 1, 2]), (1, [1, 2, 3])):
        kept = states[row, real]
        weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        expected = {
            "cls": kept[0],
            "mean": kept.sum(0) / 3,
            "mean_sqrt": kept.sum(0) / 3**0.5,
            "max": kept.max(0).values,
            "last": kept[-1],
            "weighted_mean": (kept * weights[:, None]).sum(0) / 6,
        }
        for name, vector in expected.items():
            torch.testing.assert_close(POOLINGS[name](states, mask)[row], vector)


@pytest.mark.thorough
@pytest.mark.parametrize("pooling", list(POOLINGS))
def test_saved_folder_loads_in_sentence_transformers_and_back(
    bert: Path, texts: list[str], tmp_path: Path, pooling: str
) -> None:
    from sentence_transformers import SentenceTransformer

    ours = DenseEncoder.from_pretrained(
        bert, pooling=pooling, projection=16, normalize=pooling != "max",
        query_prompt="query: ", document_prompt="passage: ",
    )  # fmt: skip
    ours.save_pretrained(tmp_path / "ours")
    theirs = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    for side, encode in (("query", ours.encode_queries), ("document", ours.encode_documents)):
        expected = theirs.encode(texts, prompt_name=side)
        np.testing.assert_allclose(encode(texts), expected, atol=1e-5)
    theirs.save(str(tmp_path / "theirs"))  # the new spelling
    again = DenseEncoder.from_pretrained(tmp_path / "theirs")
    np.testing.assert_allclose(again.encode_queries(texts), ours.encode_queries(texts), atol=1e-6)
    assert (again.pooling, again.normalize, again.dim) == (pooling, pooling != "max", 16)


def test_lengths_per_side_and_settings_survive_saving(bert: Path, tmp_path: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, query_length=8, document_length=20, pooling="cls")
    assert len(encoder.token_ids(["gold " * 50], "query")[0]) == 8
    encoder.save_pretrained(tmp_path / "model")
    again = DenseEncoder.from_pretrained(tmp_path / "model")
    assert again.lengths == {"query": 8, "document": 20}
    assert again.fingerprint == encoder.fingerprint
    assert DenseEncoder.from_pretrained(bert, pooling="cls").fingerprint != encoder.fingerprint


def test_fingerprint_follows_every_change(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    before = encoder.fingerprint
    assert before == DenseEncoder.from_pretrained(bert).fingerprint
    changes = ({"pooling": "max"}, {"query_prompt": "q: "}, {"normalize": False})
    others = {DenseEncoder.from_pretrained(bert, **change).fingerprint for change in changes}
    with torch.no_grad():
        next(encoder.module.parameters()).add_(1e-3)
    assert len({before, encoder.fingerprint, *others}) == 5


def test_bfloat16_is_close_and_leaves_the_weights_alone(bert: Path, texts: list[str]) -> None:
    encoder = DenseEncoder.from_pretrained(bert, dtype="bfloat16")
    exact = DenseEncoder.from_pretrained(bert)
    cosines = (encoder.encode_queries(texts) * exact.encode_queries(texts)).sum(axis=1)
    assert cosines.min() > 0.99
    assert encoder.fingerprint == exact.fingerprint


def test_no_texts_give_no_vectors(bert: Path) -> None:
    assert DenseEncoder.from_pretrained(bert).encode_queries([]).shape == (0, 32)


def test_bad_input_is_named(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        DenseEncoder.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"query_length: 900.*64 tokens"):
        DenseEncoder.from_pretrained(bert, query_length=900)
    with pytest.raises(ConfigError, match="dtype"):
        DenseEncoder.from_pretrained(bert, dtype="float8")  # type: ignore[arg-type]
    broken = save_model(tmp_path / "broken", "Model")
    (broken / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="not whole safetensors"):
        DenseEncoder.from_pretrained(broken)
    with pytest.raises(ModelError, match="text 1 is a int"):
        DenseEncoder.from_pretrained(bert).encode_queries(["a", 3])  # type: ignore[list-item]
