"""Pairs from documents alone: what each kind is made of, and the key phrases' scores."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from sluice.training.generation.corpus_pairs import KINDS, PairMaker
from sluice.training.generation.inverse_cloze import Passage

GOLD = Passage(
    "g", "Gold washing", "Gold is found in rivers. The sluice box, a long wooden channel, holds "
    "the heavy gold back. Miners wash gravel through it.",
)  # fmt: skip
OTHERS = [
    Passage(f"o{n}", f"The thing {n}", f"The thing number {n} is in the house. It is the one.")
    for n in range(30)
]
MAKER = PairMaker.from_passages([GOLD, *OTHERS])


def pairs(kind: str, passage: Passage = GOLD, count: int = 40) -> list[tuple[str, str]]:
    made = [MAKER.pair(kind, passage, random.Random(n)) for n in range(count)]
    return [(pair.query, pair.document) for pair in made if pair is not None]


def test_a_title_and_its_text() -> None:
    assert pairs("titles", count=1) == [("Gold washing", GOLD.text)]
    begun = Passage("b", "Gold washing", "Gold washing in rivers")
    assert pairs("titles", begun, 1) == [("Gold washing", "in rivers")]


def test_a_sentence_and_the_rest() -> None:
    for query, document in pairs("sentences"):
        assert query in GOLD.text
        assert document.startswith("Gold washing")
    assert len({query for query, _ in pairs("sentences")}) == 3


def test_crops_are_two_spans_of_the_text() -> None:
    long = Passage("l", "A title", " ".join(f"w{n}" for n in range(200)))
    for query, document in pairs("crops", long):
        for part, most in ((query, 64), (document, 100)):
            assert part in long.text
            assert 4 <= len(part.split()) <= most
    assert len({query for query, _ in pairs("crops", long)}) > 30
    lengths = [len(document.split()) for _, document in pairs("crops", long, 400)]
    assert 10 <= min(lengths) < 16
    assert 94 < max(lengths) <= 100  # 5 to 50 % of 200 words


def test_phrases_are_scored_by_tf_idf() -> None:
    texts = [f"{each.title} {each.text}".lower() for each in (GOLD, *OTHERS)]
    df = Counter(word for text in texts for word in {w.strip(".,") for w in text.split()})
    tf = Counter(w.strip(".,") for w in texts[0].split())

    def score(phrase: str) -> float:
        return sum(
            tf[word] * math.log((len(texts) + 1) / (df[word] + 0.5)) for word in phrase.split()
        )

    phrases = MAKER.key_phrases(GOLD)
    assert {"gold washing", "sluice box", "rivers"} <= set(phrases)
    assert not any(word in phrase.split() for phrase in phrases for word in ("the", "is", "in"))
    scores = [score(phrase) for phrase in phrases]
    assert scores == sorted(scores, reverse=True)
    for query, document in pairs("phrases"):
        assert document == f"{GOLD.title} {GOLD.text}"
        assert 1 <= len(query.split()) <= 11


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_is_a_function_of_document_and_chance(kind: str) -> None:
    assert pairs(kind) == pairs(kind)
    assert pairs(kind)


@pytest.mark.parametrize("passage", [Passage("e", "", ""), Passage("b", " ", " \n ")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_document_gives_none(kind: str, passage: Passage) -> None:
    assert MAKER.pair(kind, passage, random.Random(1)) is None


def test_a_corpus_of_one_document_has_phrases() -> None:
    maker = PairMaker.from_passages([GOLD])
    assert maker.key_phrases(GOLD)
    assert PairMaker.from_passages([]).documents == 0


def test_one_word_documents() -> None:
    one = Passage("o", "", "gravel")
    assert {kind for kind in KINDS if pairs(kind, one)} == {"phrases"}
