"""The words of a query in a text, and the part of the text that has most of them."""

import itertools
import random
import time

import pytest

from sluice.encoders.lexical.analyzer import analyzer
from sluice.retrieval.documents.text import LONGEST_WORD, WORD, best_part, matches


@pytest.mark.parametrize(
    ("line", "query", "words"),
    [
        ("Rivers of gold, a golden river", "the river of gold", ["Rivers", "gold", "river"]),
        ("nothing of it", "gold", []),
        ("黄金在河里", "黄金", ["黄金在河里"]),
        ("", "gold", []),
        ("to be, so", "to be or not to be", ["to", "be"]),
        ("+++ +", "+ ++", ["++", "+", "+"]),
        ("x" * 50 + " gold", "gold " + "x" * 50, ["gold"]),
    ],
)
def test_matches(line: str, query: str, words: list[str]) -> None:
    assert [line[start:end] for start, end, _ in matches(line, query)] == words


def test_the_part_has_most_words_and_cuts_none() -> None:
    line = "one " * 40 + "gold river stone " + "two " * 40
    first, last = best_part(line, matches(line, "gold river stone"), 60)
    assert "gold river stone" in line[first:last]
    assert last - first <= 60
    assert line[first - 1] == " "
    assert best_part("short", [], 60) == (0, 5)


def test_places_against_every_word() -> None:
    english, draw = analyzer("en"), random.Random(3)
    words = ["gold", "golden", "Rivers", "river", "the", "of", "stone", "x" * 41, "ü", "-"]
    met = 0
    for _ in range(60):
        line = " ".join(draw.choices(words, k=draw.randint(0, 40)))
        query = " ".join(draw.choices(words[:7], k=draw.randint(1, 4)))
        asked = set(english(query))
        expected = [
            (*word.span(), min(asked & set(english(word.group()))))
            for word in WORD.finditer(line)
            if len(word.group()) <= LONGEST_WORD and asked & set(english(word.group()))
        ]
        if expected:
            met += 1
            assert list(matches(line, query)) == expected
    assert met > 30


def test_the_part_against_every_window() -> None:
    """The first of the windows with most different terms, then most words, in its middle."""
    draw = random.Random(4)
    for _ in range(200):
        size, length = draw.randint(10, 120), draw.randint(5, 40)
        starts = sorted(draw.sample(range(size), draw.randint(0, min(size, 20))))
        places = [
            (start, min(start + draw.randint(1, 9), end), draw.choice("abc"))
            for start, end in itertools.pairwise([*starts, size])
        ]
        windows = [
            [place for place in places[number:] if place[1] <= places[number][0] + length]
            for number in range(len(places))
        ]
        best = max(windows, key=lambda w: (len({term for *_, term in w}), len(w)), default=[])
        first = 0
        if best:
            first = max(0, best[0][0] - (length - (best[-1][1] - best[0][0])) // 2)
        first = min(first, max(0, size - length))
        assert best_part("x" * size, places, length) == (first, min(size, first + length))


def test_long_texts_and_queries_are_marked_in_part() -> None:
    """A query of thousands of words against a long text without spaces takes no seconds."""
    draw = random.Random(5)
    text = "".join(chr(draw.randint(0x4E00, 0x9FFF)) for _ in range(200_000))
    query = " ".join(text[at : at + 2] for at in range(100_000, 120_000, 3))
    start = time.perf_counter()
    found = [place[:2] for _ in range(5) for place in matches(text, query)]
    assert time.perf_counter() - start < 1
    assert 100 <= len(found) // 5 <= 400
    assert min(found)[0] == 100_000
    marked = matches("x " * 30_000 + "gold " * 30_000, "gold")
    assert (marked[0][0], len(marked)) == (60_000, 4_001)


@pytest.mark.parametrize("word", ["gold", "金"])
def test_a_word_far_behind_is_not_looked_for(word: str) -> None:
    near, far = (f"{'x ' * (count // 2)}{word}" for count in (150_000, 250_000))
    assert matches(near, word)
    assert not matches(far, word)
