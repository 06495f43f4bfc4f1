"""The words of a query in a text, and the part of the text that has most of them."""

import pytest

from sluice.retrieval.documents.snippet import best_part, matches


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
