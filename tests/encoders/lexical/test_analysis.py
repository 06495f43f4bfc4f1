"""The analysers against UAX #29's rules, Porter's own revision written out, and known words."""

import copy
import pickle
import re
import string
import unicodedata

import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.analyzer import STOP_WORDS, analyzer, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t.,;'_ ", []),
        ("Hello, world!", ["Hello", "world"]),
        ("don't 'quoted' dogs'", ["don't", "quoted", "dogs"]),
        ("U.S.A. e.g. v1.2", ["U.S.A", "e.g", "v1.2"]),
        ("v.2 2.v", ["v", "2", "2", "v"]),  # no full stop between a letter and a digit
        ("3,000.50 1;2 1,a", ["3,000.50", "1;2", "1", "a"]),
        ("foo:bar foo::bar", ["foo:bar", "foo", "bar"]),
        ("state-of-the-art a/b", ["state", "of", "the", "art", "a", "b"]),
        ("a_b __init__ ___ _1", ["a_b", "__init__", "_1"]),
        ("b2b 4x4 p53-dependent", ["b2b", "4x4", "p53", "dependent"]),
        ("café na\u00efve e\u0301te\u0301", ["café", "naïve", "e\u0301te\u0301"]),
        ("don\u2019t", ["don\u2019t"]),
        ("10m² ½ Ⅷ µg", ["10m", "Ⅷ", "µg"]),
        ("日本語のテスト カタカナ_b", ["日", "本", "語", "の", "テスト", "カタカナ_b"]),
        ("한국어 abc한국", ["한국어", "abc한국"]),
        ("สวัสดี ครับ", ["สวัสดี", "ครับ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("x 👍🏽 🇩🇪🇫🇷 👨\u200d👩\u200d👧", ["x", "👍🏽", "🇩🇪", "🇫🇷", "👨\u200d👩\u200d👧"]),
        ("𝐱+𠀀", ["𝐱", "𠀀"]),
        ("a" * 600, ["a" * 255, "a" * 255, "a" * 90]),
    ],
)
def test_words_are_those_of_unicode_text_segmentation(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(alphabet="aZé9_.,':;-\u2019 \u0301日あカ한ก", max_size=30))
def test_wider_patterns_agree_with_narrower_ones(text: str) -> None:
    # One astral character at the end sends the whole text through the widest pattern.
    assert words(text + " 𠀀") == [*words(text), "𠀀"]
    ascii_only = text.encode("ascii", "ignore").decode()
    assert words(ascii_only + " é") == [*words(ascii_only), "é"]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.text(alphabet="abZ09_.,':;- ", max_size=40))
def test_every_letter_and_digit_is_in_exactly_one_word(text: str) -> None:
    kept = "".join(words(text))
    assert re.sub(r"[^a-zA-Z0-9]", "", kept) == re.sub(r"[^a-zA-Z0-9]", "", text)


def test_english_is_lucenes() -> None:
    english = analyzer("en")
    assert len(STOP_WORDS) == 33
    assert english("The dog's, the DOGS and the dog\u2019s") == ["dog"] * 3
    assert english("running runs relational caresses ponies us") == [
        "run", "run", "relat", "caress", "poni", "us",
    ]  # fmt: skip
    assert english("The the of") == []
    assert english("It's") == []  # possessive first, stop words after it
    assert english("don't") == ["don't"]


# Porter's stemmer in the revision its author published as code, written out rule by rule.
STEP_2 = (  # pairs of a suffix and what takes its place
    "ational ate tional tion enci ence anci ance izer ize bli ble alli al entli ent eli e ousli "
    "ous ization ize ation ate ator ate alism al iveness ive fulness ful ousness ous aliti al "
    "iviti ive biliti ble logi log"
)
STEP_3 = "icate ic ative - alize al iciti ic ical ic ful - ness -"
STEP_4 = "al ance ence er ic able ible ant ement ment ent sion tion ou ism ate iti ous ive ize"


def consonant(word: str, i: int) -> bool:
    if word[i] == "y":
        return i == 0 or not consonant(word, i - 1)
    return word[i] not in "aeiou"


def form(word: str) -> str:
    return "".join("c" if consonant(word, i) else "v" for i in range(len(word)))


def measure(word: str) -> int:
    return form(word).count("vc")


def short(word: str) -> bool:
    return form(word).endswith("cvc") and word[-1] not in "wxy"


def double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and consonant(word, len(word) - 1)


def replaced(word: str, rules: str) -> str:
    suffixes, others = rules.split()[::2], rules.split()[1::2]
    pairs = zip(suffixes, others, strict=True)
    for suffix, other in sorted(pairs, key=lambda pair: -len(pair[0])):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + other.strip("-") if measure(stem) > 0 else word
    return word


def step_1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if measure(word[:-3]) > 0 else word
    elif word.endswith(("ed", "ing")):
        stem = word[: -2 if word.endswith("ed") else -3]
        if "v" in form(stem):
            word = stem
            if word.endswith(("at", "bl", "iz")):
                word += "e"
            elif double(word):
                word = word if word[-1] in "lsz" else word[:-1]
            elif measure(word) == 1 and short(word):
                word += "e"
    return word[:-1] + "i" if word.endswith("y") and "v" in form(word[:-1]) else word


def porter(word: str) -> str:
    if len(word) <= 2:
        return word
    word = replaced(replaced(step_1(word), STEP_2), STEP_3)
    for suffix in sorted(STEP_4.split(), key=len, reverse=True):
        if word.endswith(suffix):
            cut = 3 if suffix in ("sion", "tion") else len(suffix)
            word = word[:-cut] if measure(word[:-cut]) > 1 else word
            break
    if word.endswith("e"):
        stem = word[:-1]
        if measure(stem) > 1 or (measure(stem) == 1 and not short(stem)):
            word = stem
    return word[:-1] if word.endswith("ll") and measure(word) > 1 else word


WORDS = (
    "cardiology cardiological biology biological possibly possible incredibly arguably trekking "
    "revving us as hopping falling hissing fizzed filing agreed feed skies happy sky formaliti "
    "electrical goodness revival adoption triplicate controlling roll rate cease bled y yes "
    "analogousli apologies hesitanci sensibiliti generalizations oscillators pharmacologie"
)


@pytest.mark.parametrize("word", WORDS.split())
def test_porter_is_the_authors_revision(word: str) -> None:
    assert analyzer("en").term(word) == ("" if word in STOP_WORDS else porter(word))


ENDINGS = ["", "s", "ed", "ing", "ly", "ational", "bly", "ability", "logy", "logies", "y", "ness"]
ENDINGS += ["ement", "ion", "izing", "fulness", "ically", "iveness", "ency", "eed", "e", "ll"]


@settings(max_examples=500, derandomize=True, deadline=None)
@given(st.text(alphabet=string.ascii_lowercase, min_size=1, max_size=7), st.sampled_from(ENDINGS))
def test_porter_on_random_words(start: str, ending: str) -> None:
    word = start + ending
    if word not in STOP_WORDS and "yy" not in word:
        assert analyzer("en").term(word) == porter(word)


def test_snowball_languages_by_code_and_name() -> None:
    assert analyzer("de")("Die Häuser") == ["die", "haus"] == analyzer("German")("Die Häuser")
    assert analyzer("fr")("l\u2019avion l'avion avions") == ["avion"] * 3
    assert analyzer("ru")("книги")[0] == analyzer("ru")("книга")[0]
    assert analyzer("tr")("IŞIK ışık")[0] == analyzer("tr")("ışık")[0]
    assert analyzer("none")("Running Dogs") == ["running", "dogs"]


def test_character_grams() -> None:
    assert analyzer("zh")("信息检索 BM25!") == ["信息", "息检", "检索", "bm25"]
    assert analyzer("ja")("ﾃｽﾄ、東") == ["テス", "スト", "東"]
    assert analyzer("ko")("한국어") == ["한국", "국어"]
    assert analyzer("th")("ครับ Go") == ["ครั", "รับ", "go"]
    assert analyzer("th")("กข") == ["กข"]


@pytest.mark.parametrize("language", ["en", "de", "fr", "ru", "ar", "tr", "el", "none", "zh", "th"])
def test_canonically_equivalent_texts_have_the_same_terms(language: str) -> None:
    text = "Café NAÏVE й Ångström \u212b \u2126 \u03aa\u0301 İx I\u0327\u0307 أب ガ \u1e69 한 क़ नी"
    analyse = analyzer(language)
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert analyse(forms[0]) == analyse(forms[1]) == analyse(text)
    assert analyse("\u03aa\u0301 I\u0307ki")[:1] == analyse("\u0390 İki")[:1]


@pytest.mark.parametrize("name", ["klingon", "", "porter", None])
def test_unknown_languages_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown language"):
        analyzer(name)


def test_the_nearest_language_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'german'"):
        analyzer("germann")


def test_analyzers_can_be_copied_and_sent_to_a_process() -> None:
    for copied in (pickle.loads(pickle.dumps(analyzer("en"))), copy.deepcopy(analyzer("en"))):
        assert copied("The runners") == ["runner"]
