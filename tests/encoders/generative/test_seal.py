from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import examples
from tiny_generators import save_gpt2, save_t5

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.generative import SealEncoder
from sluice.encoders.generative.constrained_decoding import key_weight
from sluice.encoders.model_files.registry import open_encoder
from sluice.indexing import FmIndex
from sluice.training import fit
from sluice.training.losses.contrastive.softmax import InfoNCE

DOCUMENTS = [
    "gold in the river and stone",
    "deep water",
    "rank the document by score and learn to rank dense and sparse vector",
    "gold on the river",
]
QUERIES = ["gold river", "water", "learn to rank a document"]


@pytest.fixture(scope="module", params=["t5", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    save = {"t5": save_t5, "gpt2": save_gpt2}[request.param]
    return save(tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SealEncoder:
    return SealEncoder.from_pretrained(folder, beams=3, length=4, unigrams=5, query_ngrams=2)


@pytest.fixture(scope="module")
def index(encoder: SealEncoder) -> FmIndex:
    filled = FmIndex()
    filled.add(encoder.encode_documents(DOCUMENTS))
    return filled


def log_probability(encoder: SealEncoder, query: str, ngram: tuple[int, ...]) -> float:
    """Of an n-gram after a query: one plain pass for each token."""
    features = encoder.tokenize([query], "query")
    total = 0.0
    with torch.no_grad():
        for place, token in enumerate(ngram):
            before = torch.tensor([ngram[:place]], dtype=torch.long)
            if encoder.encoder_decoder:
                start = torch.tensor([[encoder.model.config.decoder_start_token_id]])
                inputs = {**features, "decoder_input_ids": torch.cat([start, before], dim=1)}
            else:
                inputs = {"input_ids": torch.cat([features["input_ids"], before], dim=1)}
            logits = encoder.model(**inputs).logits[0, -1].double()
            total += float(logits[token] - logits.logsumexp(dim=0))
    return total


def test_keys_are_ngrams_of_the_corpus_with_their_probabilities(
    encoder: SealEncoder, index: FmIndex
) -> None:
    special = set(encoder.tokenizer.all_special_ids)
    found = encoder._keys(QUERIES, index)
    assert {len(ngram) for keys in found for ngram in keys} >= {1, 2, 3}
    for query, keys in zip(QUERIES, found, strict=True):
        for ngram, score in keys.items():
            assert index.count(ngram)
            assert special.isdisjoint(ngram)
            assert score == pytest.approx(
                log_probability(encoder, query, ngram), abs=1e-4, rel=5e-5
            )


def beams_by_hand(encoder: SealEncoder, query: str, texts: list[list[int]]) -> set[Any]:
    """Beam search that tries every n-gram of the corpus at every step."""
    special = set(encoder.tokenizer.all_special_ids)
    found: set[Any] = set()
    running: list[tuple[int, ...]] = [()]
    for size in range(1, encoder.length + 1):
        ngrams = {tuple(text[at : at + size]) for text in texts for at in range(len(text))}
        allowed = [
            ngram for ngram in ngrams
            if len(ngram) == size and ngram[:-1] in running and ngram[-1] not in special
        ]  # fmt: skip
        allowed.sort(key=lambda ngram: -log_probability(encoder, query, ngram))
        if size == 1:
            found.update(allowed[: encoder.unigrams])
        running = allowed[: encoder.beams]
        found.update(running)
    return found


def test_the_search_is_beam_search_over_the_corpus(encoder: SealEncoder, index: FmIndex) -> None:
    texts = [text.tolist() for text in encoder.encode_documents(DOCUMENTS)]
    keys = set(encoder._keys(QUERIES[:1], index)[0])
    assert keys >= beams_by_hand(encoder, QUERIES[0], texts)
    own = set(encoder._query_ngrams(QUERIES[0], set()))
    assert keys - own <= beams_by_hand(encoder, QUERIES[0], texts)
    assert all(ngram in keys for ngram in own if index.count(ngram))


def test_a_batch_is_decoded_like_single_queries(
    encoder: SealEncoder, index: FmIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = encoder._keys(QUERIES, index)
    monkeypatch.setattr("sluice.encoders.generative.encoder.OWN", 2)  # as of a long query
    for query, keys in zip(QUERIES, together, strict=True):
        alone = encoder._keys([query], index)[0]
        assert keys.keys() == alone.keys()
        values = [keys[each] for each in alone]
        np.testing.assert_allclose(values, [*alone.values()], atol=1e-4, rtol=5e-5)


def test_weights_are_the_log_odds_against_the_corpus(encoder: SealEncoder, index: FmIndex) -> None:
    keys = encoder._keys(QUERIES[:1], index)[0]
    written = encoder.decode_queries(QUERIES[:1], index).query(0)
    weights = {tuple(ngram.tolist()): weight for ngram, weight in written}
    for ngram, score in keys.items():
        usual = (index.count(ngram) + 5) / (index.tokens + 5)
        chance = math.exp(score)
        odds = chance * (1 - usual) / (usual * (1 - chance))  # 0 below the smallest float
        expected = math.log(odds) if odds else 0.0
        assert weights.get(ngram, 0.0) == pytest.approx(max(0.0, expected), abs=1e-6)


def test_a_key_that_says_nothing_weighs_nothing() -> None:
    usual = (7 + 5) / (1000 + 5)
    assert key_weight(math.log(usual), 7, 1000) == pytest.approx(0, abs=1e-12)
    assert key_weight(math.log(usual / 2), 7, 1000) == 0
    assert key_weight(math.log(2 * usual), 7, 1000) > 0
    assert key_weight(0.0, 7, 1000) < 1e3  # certain: finite
    assert key_weight(-5.0, 50, 50) == 0  # all of the corpus


def test_an_empty_index_and_a_query_without_known_words(encoder: SealEncoder) -> None:
    assert len(encoder.decode_queries(["gold", ""], FmIndex()).ngrams) == 0
    index = FmIndex()
    index.add(encoder.encode_documents(["", "gold"]))
    assert [ngram.tolist() for ngram, _ in encoder.decode_queries(["%"], index).query(0)] in (
        [], [encoder.encode_documents(["gold"]).ids.tolist()],
    )  # fmt: skip


def test_tokens_that_the_model_does_not_have_are_never_written(encoder: SealEncoder) -> None:
    from sluice.encoders.foundation.tokens import TokenSequences

    index = FmIndex()
    index.add(TokenSequences.of([[10_000, 10_001]]))
    assert len(encoder.decode_queries(["gold"], index).ngrams) == 0


def test_saved_and_opened(encoder: SealEncoder, tmp_path: Path, index: FmIndex) -> None:
    encoder.save_pretrained(tmp_path / "model")
    opened = open_encoder(tmp_path / "model")
    assert isinstance(opened, SealEncoder)
    assert (opened.fingerprint, dict(opened.settings())) == (
        encoder.fingerprint, dict(encoder.settings()),
    )  # fmt: skip
    one, other = (each.decode_queries(QUERIES, index) for each in (encoder, opened))
    np.testing.assert_allclose(one.weights, other.weights, rtol=5e-5)
    longer = SealEncoder.from_pretrained(tmp_path / "model", length=2)
    assert (longer.length, longer.beams) == (2, encoder.beams)
    assert longer.fingerprint != encoder.fingerprint


def test_documents_are_read_whole_and_without_special_tokens(encoder: SealEncoder) -> None:
    long = " ".join(["gold river"] * 100)
    first, second = encoder.encode_documents([long, ""])
    assert len(first) == 200
    assert not len(second)
    assert encoder.terms([first[:2].tolist(), int(first[0])]) == ["gold river", "gold"]
    assert hooks_of(encoder).lengths.get("document") is None


def test_what_it_refuses(folder: Path, bert: Path, masked_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="seal needs a model that writes text"):
        SealEncoder.from_pretrained(bert)
    with pytest.raises(ModelError, match="reads a text from both sides and cannot write one"):
        SealEncoder.from_pretrained(masked_bert)
    with pytest.raises(ConfigError, match=r"expected \{query\} once"):
        SealEncoder.from_pretrained(folder, prompt="no place")
    with pytest.raises(ConfigError, match="query_length: 1; the prompt takes"):
        SealEncoder.from_pretrained(folder, prompt="gold {query}", query_length=1)
    with pytest.raises(ConfigError, match="query_length: 9999; the prompt takes"):
        SealEncoder.from_pretrained(folder, query_length=9_999)
    with pytest.raises(ConfigError, match="query_ngrams: 99, expected at most"):
        SealEncoder.from_pretrained(folder, query_ngrams=99)
    with pytest.raises(ConfigError, match="beams"):
        SealEncoder.from_pretrained(folder, beams=0)
    with pytest.raises(ConfigError, match=r"info_nce trains .* a seal encoder takes spans"):
        fit(SealEncoder.from_pretrained(folder), examples(4), InfoNCE(), output=tmp_path / "fit")
    with pytest.raises(ModelError, match="written with the index that it searches"):
        SealEncoder.from_pretrained(folder).encode_queries(["gold"])
