"""Cross-encoders: order, padding, lengths, sentence-transformers both ways."""

from pathlib import Path

import numpy as np
import pytest

from encoders import CrossEncoder
from encoders.errors import ConfigError, ModelError
from encoders.registry import kind_of, open_encoder


@pytest.fixture
def pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(query, document) for query in texts[:3] for document in texts]


def test_order_and_batches_do_not_change_a_score(
    pair_bert: Path, pairs: list[tuple[str, str]]
) -> None:
    encoder = CrossEncoder.from_pretrained(pair_bert)
    together = encoder.score(pairs)
    encoder.batch_tokens = 80
    np.testing.assert_allclose(encoder.score(pairs[::-1])[::-1], together, atol=1e-5)
    assert together.dtype == np.float32
    assert len(encoder.score([])) == 0


def test_saved_folder_loads_in_sentence_transformers_and_back(
    pair_bert: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    ours = CrossEncoder.from_pretrained(pair_bert, max_length=40)
    ours.save_pretrained(tmp_path / "ours")
    theirs = Theirs(str(tmp_path / "ours"), device="cpu")
    expected = theirs.predict(pairs)
    np.testing.assert_allclose(ours.score(pairs), expected, atol=1e-5)
    theirs.save(str(tmp_path / "theirs"))
    again = open_encoder(tmp_path / "theirs")
    assert again.max_length == 40
    np.testing.assert_allclose(again.score(pairs), expected, atol=1e-5)
    assert open_encoder(tmp_path / "ours").fingerprint == ours.fingerprint


def test_a_fresh_head_is_drawn_by_seed(bert: Path, pairs: list[tuple[str, str]]) -> None:
    first, second = (CrossEncoder.from_pretrained(bert, seed=s).score(pairs) for s in (1, 1))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, CrossEncoder.from_pretrained(bert, seed=2).score(pairs))


def test_distilbert_has_no_segments(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    import transformers
    from tiny_models import save_tokenizer

    size = save_tokenizer(tmp_path / "m")
    config = transformers.DistilBertConfig(
        vocab_size=size, dim=32, n_layers=1, n_heads=2, hidden_dim=64, num_labels=1
    )
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path / "m")
    assert np.isfinite(CrossEncoder.from_pretrained(tmp_path / "m").score(pairs)).all()


def test_bad_input_is_named(pair_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_length: 1000"):
        CrossEncoder.from_pretrained(pair_bert, max_length=1000)
    with pytest.raises(ModelError, match="not a model folder"):
        kind_of(tmp_path)


def test_a_length_may_be_raised_after_saving(pair_bert: Path, tmp_path: Path) -> None:
    CrossEncoder.from_pretrained(pair_bert, max_length=20).save_pretrained(tmp_path / "m")
    assert CrossEncoder.from_pretrained(tmp_path / "m").max_length == 20
    assert CrossEncoder.from_pretrained(tmp_path / "m", max_length=50).max_length == 50
