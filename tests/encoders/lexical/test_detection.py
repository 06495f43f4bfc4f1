"""The language of texts: English unless another is evident."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.lexical.analyzer import analyzer
from sluice.encoders.lexical.detection import guess_language

TEXTS = {
    "en": "The sluice is a channel for water, and the gold stays behind with it.",
    "de": "Die Rinne ist ein Kanal für das Wasser, und das Gold bleibt in der Rinne liegen.",
    "fr": "Le sluice est un canal pour les eaux, et l'or reste dans le fond avec les pierres.",
    "es": "La esclusa es un canal para el agua, y el oro se queda en el fondo de la corriente.",
    "it": "La chiusa è un canale per l'acqua, e il oro resta nel fondo della corrente con i sassi.",
    "nl": "De sluis is een kanaal voor het water, en het goud blijft op de bodem van de goot.",
    "ru": "Шлюз это канал для воды, и золото остаётся на дне.",
    "cjk": "水闸是水的通道,金子留在底部。",
}


@pytest.mark.parametrize("code", TEXTS)
def test_a_sentence(code: str) -> None:
    assert guess_language([TEXTS[code]]) == code


def test_nothing_to_go_by() -> None:
    assert guess_language([]) == guess_language(["x = 1", "Zürich 4711 Berlin"]) == "en"


def test_auto_analyses_each_text_in_its_own_language(tmp_path: Path) -> None:
    own = analyzer("auto")
    for code, text in TEXTS.items():
        assert own(text) == analyzer(code)(text)
        assert pickle.loads(pickle.dumps(own))(text) == own(text)
    texts = [*TEXTS.values(), "", "x.y, 4711 | |", "naïve|der"]
    encoder = BM25Encoder(language="auto")
    encoder.fit(texts)
    assert encoder.language == "auto"
    for text in texts:
        names = encoder.terms(encoder.encode_documents([text]).indices.tolist())
        assert set(names) == set(own(text))
    encoder.save_pretrained(tmp_path / "bm25")
    opened = BM25Encoder.from_pretrained(tmp_path / "bm25")
    query = [TEXTS["de"]]
    assert (opened.encode_queries(query) != encoder.encode_queries(query)).nnz == 0
    asked = encoder.encode_queries(["der Kanal und die Rinnen"])
    row = (asked @ encoder.encode_documents(texts).T).toarray()[0]
    assert int(np.argmax(row)) == 1
