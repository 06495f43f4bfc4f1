"""Cutting texts into pieces first finds the terms that analysing each whole text finds."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sluice.encoders.lexical.term_counts
from sluice.encoders.lexical.analyzer import Analyzer, analyzer
from sluice.encoders.lexical.term_counts import END, TAGS, counted, pieces, terms

LANGUAGES = ["en", "none", "de", "fr", "tr", "zh", "th"]
ODD = "aAZé9_.,':;-()/\\\u2019\uff07 \t\n\x00\x1f\x85\xa0\u202f\u3000\u0301\u200d"
ODD += "日あカ한กΣςİıI\ud800👍🏽"
WORDS = ["don't", "dog's", "dogs'", "U.S.A.", "3,000.50", "the", "end.Next", "a::b", "foo_bar", "İ"]
TEXTS = st.lists(
    st.lists(st.one_of(st.text(ODD, max_size=6), st.sampled_from(WORDS)), max_size=6).map(" ".join),
    max_size=5,
)


def plainly(texts: list[str], analyse: Analyzer) -> list[list[str]]:
    return [[t for word in analyse.words(text) if (t := analyse.term(word))] for text in texts]


def by_pieces(texts: list[str], analyse: Analyzer) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for piece in pieces(texts, 1, analyse):
        if piece == END:
            found.append([])
        else:
            found[-1] += filter(None, terms(piece, analyse))
    assert found.pop() == []
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=150, derandomize=True, deadline=None)
@given(TEXTS)
def test_terms_are_those_of_the_whole_text(language: str, texts: list[str]) -> None:
    analyse = analyzer(language)
    assert by_pieces(texts, analyse) == plainly(texts, analyse) == [analyse(t) for t in texts]


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["en", "zh", "th"])
def test_every_character_beside_letters_spaces_and_punctuation(language: str) -> None:
    codes = [*range(0x3100), *range(0xFE00, 0x10000), *range(0x1F000, 0x1F700), sys.maxunicode]
    texts = [f"b{c}b {c}b.{c} 7{c}7 {c}\u0301'{c}" for c in map(chr, codes)]
    assert by_pieces(texts, analyzer(language)) == plainly(texts, analyzer(language))


def test_words_longer_than_the_longest_are_cut_alike() -> None:
    texts = ["a" * 255, "b" * 256 + ".", "c" * 600, "d" * 300 + "-" + "e" * 254 + ","]
    assert by_pieces(texts, analyzer("none")) == plainly(texts, analyzer("none"))


@pytest.mark.thorough
@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(TEXTS, st.integers(1, 4))
def test_fields_are_tagged_in_turn(language: str, texts: list[str], fields: int) -> None:
    analyse = analyzer(language)
    whole = texts[: len(texts) // fields * fields]
    found: list[list[bytes]] = [[]]
    for piece in pieces(whole, fields, analyse):
        if piece == END:
            found.append([])
        else:
            found[-1].append(piece)
    assert found.pop() == []
    for place, (cell, text) in enumerate(zip(found, whole, strict=True)):
        if fields > 1:
            assert all(piece[:1] == TAGS[place % fields] for piece in cell)
            cell = [piece[1:] for piece in cell]
        assert [t for p in cell for t in terms(p, analyse) if t] == plainly([text], analyse)[0]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(TEXTS, st.sampled_from([1, 3, 1 << 15]))
def test_counts_are_those_of_the_terms(texts: list[str], batch: int) -> None:
    vocabulary: dict[str, int] = {}
    rows = ((text,) for text in texts)

    def column(term: str) -> int | None:  # every third term has no column
        return None if len(term) % 3 == 0 else vocabulary.setdefault(term, len(vocabulary))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sluice.encoders.lexical.term_counts, "BATCH_CHARACTERS", batch)
        patched.setattr(sluice.encoders.lexical.term_counts, "CHUNK_WORDS", 4)
        patched.setattr(sluice.encoders.lexical.term_counts, "CACHED_WORDS", 2)
        chunks = list(counted(rows, analyzer("en"), column))
    place = 0
    for chunk in chunks:
        starts = np.cumsum([0, *chunk.sizes])
        for i, length in enumerate(chunk.lengths[:, 0].tolist()):
            expected = plainly([texts[place]], analyzer("en"))[0]
            assert length == len(expected)
            inside = slice(starts[i], starts[i + 1])
            columns, times = chunk.terms[inside].tolist(), chunk.counts[inside].tolist()
            found = dict(zip(columns, times, strict=True))
            known = [term for term in expected if len(term) % 3]
            assert found == {vocabulary[term]: known.count(term) for term in known}
            assert list(found) == sorted(found)
            place += 1
    assert place == len(texts)
    everything = (term for terms in plainly(texts, analyzer("en")) for term in terms)
    assert list(vocabulary) == list(dict.fromkeys(t for t in everything if len(t) % 3))
