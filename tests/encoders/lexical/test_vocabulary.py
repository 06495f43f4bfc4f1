"""The encoder of imported indexes: counts of known tokens, and a folder that opens again."""

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import VocabularyEncoder
from sluice.encoders.encoder import Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import open_encoder

TERMS = ["gold", "##ing", "river", "a b"]


def test_queries_are_counts_of_known_tokens() -> None:
    encoder = VocabularyEncoder(TERMS)
    assert isinstance(encoder, Encoder)
    vectors = encoder.encode_queries(["river gold river ##ing", "", "Gold a b gold:3", "  gold\n"])
    expected = [[1, 1, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors.toarray(), expected)
    assert vectors.has_sorted_indices
    assert encoder.encode_queries([]).shape == (0, 4)
    with pytest.raises(DataError, match="a single str"):
        encoder.encode_queries("gold")


def test_a_language_analyses_queries() -> None:
    encoder = VocabularyEncoder(["river", "run"], language="en")
    vectors = encoder.encode_queries(["The RIVERS, running! run?"])
    assert vectors.toarray().tolist() == [[1, 2]]
    with pytest.raises(ConfigError, match="language"):
        VocabularyEncoder([], language="klingon")


def test_documents_cannot_be_encoded() -> None:
    encoder = VocabularyEncoder(TERMS)
    assert encoder.encode_documents([]).shape == (0, 4)
    with pytest.raises(ModelError, match="encodes queries only"):
        encoder.encode_documents(["gold"])


def test_the_fingerprint_is_of_terms_order_and_language() -> None:
    prints = {
        VocabularyEncoder(TERMS).fingerprint,
        VocabularyEncoder(TERMS[::-1]).fingerprint,
        VocabularyEncoder(TERMS[:3]).fingerprint,
        VocabularyEncoder(TERMS, language="en").fingerprint,
    }
    assert len(prints) == 4
    growing = VocabularyEncoder(TERMS[:3])
    assert growing.fingerprint in prints
    assert growing.column("a b") == growing.column("a b") == 3
    assert growing.fingerprint == VocabularyEncoder(TERMS).fingerprint
    assert growing.terms([3, 0]) == ["a b", "gold"]


def test_a_term_occurs_once() -> None:
    for terms in (["gold", "river", "gold"], ["gold", "gold"]):
        with pytest.raises(DataError, match="'gold' occurs twice"):
            VocabularyEncoder(terms)


@pytest.mark.parametrize("language", [None, "en"])
def test_it_opens_again(tmp_path: Path, language: str | None) -> None:
    terms = [*TERMS, "", "\n", "ç\t"]
    encoder = VocabularyEncoder(terms, language)
    encoder.save_pretrained(tmp_path / "v")
    opened = open_encoder(str(tmp_path / "v"))
    assert isinstance(opened, VocabularyEncoder)
    assert list(opened.vocabulary) == terms
    assert (opened.fingerprint, opened.language) == (encoder.fingerprint, language)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["a", "a"]', "["])
def test_a_damaged_vocabulary_is_one_clear_error(tmp_path: Path, text: str) -> None:
    VocabularyEncoder(TERMS).save_pretrained(tmp_path / "v")
    (tmp_path / "v" / "vocabulary.json").write_text(text)
    with pytest.raises(ModelError, match=str(tmp_path)):
        open_encoder(str(tmp_path / "v"))
