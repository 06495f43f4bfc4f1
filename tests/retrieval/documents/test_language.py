"""The language of texts: English unless another is evident."""

import pytest

from sluice.retrieval.documents.text import guess_language

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
