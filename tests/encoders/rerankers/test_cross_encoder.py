"""Cross-encoders: order, padding, lengths, sentence-transformers both ways."""

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import CrossEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import kind_of, open_encoder


@pytest.fixture
def pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(query, document) for query in texts[:3] for document in texts]


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


def test_texts_alone_are_the_first_tokens_states(pair_bert: Path, texts: list[str]) -> None:
    import torch

    encoder = CrossEncoder.from_pretrained(pair_bert)
    features = encoder.tokenize_texts(texts)
    vectors = encoder.embed_texts(features)
    assert vectors.shape == (len(texts), encoder.model.config.hidden_size)
    assert vectors.dtype is torch.float32
    for row, text in enumerate(texts):
        alone = encoder.tokenizer([text], truncation=True, max_length=64, return_tensors="pt")
        states = encoder.model.bert(**alone).last_hidden_state
        torch.testing.assert_close(vectors[row], states[0, 0], atol=1e-5, rtol=1e-4)
    vectors.sum().backward()
    assert encoder.model.bert.embeddings.word_embeddings.weight.grad is not None
    with pytest.raises(DataError, match="a single str"):
        encoder.tokenize_texts("one text")


def test_texts_alone_of_a_decoder_are_the_last_tokens_states(
    tmp_path: Path, texts: list[str]
) -> None:
    import torch
    import transformers
    from tiny_models import save_tokenizer

    size = save_tokenizer(tmp_path / "m")
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "m")
    encoder = CrossEncoder.from_pretrained(tmp_path / "m")
    features = encoder.tokenize_texts(texts)
    scores = encoder.model.score(encoder.embed_texts(features)).squeeze(-1)
    torch.testing.assert_close(scores, encoder.logits(features), atol=1e-5, rtol=1e-4)
