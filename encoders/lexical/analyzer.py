"""Analyses text into index terms: Lucene's English analyser, Snowball stemmers, character n-grams.

Text is split into words by Unicode's rules (UAX #29, word boundaries) as Lucene's
StandardTokenizer applies them: runs of letters and digits, also across underscores, across one of
``.`` ``'`` ``:`` between letters and one of ``.`` ``,`` ``'`` ``;`` between digits; each ideograph,
Hiragana sign and emoji by itself; words longer than 255 characters cut. Canonically equivalent
texts (UAX #15), such as a letter with its accent as one character or as two, have the same terms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import Stemmer

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.lexical.detection import guess_language
from sluice.encoders.lexical.languages import (
    AUTO,
    BY_NAME,
    CODE,
    ENGLISH,
    GRAMS,
    NO_LANGUAGE,
    STOP_WORDS,
)

LONGEST_WORD = 255
CACHED_WORDS = 1_000_000  # about 150 MB at most; then the cache is emptied

# Contents of a regular expression's [...], named after Unicode's word-break properties.
HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
HAN += "\U00020000-\U000323af"
HIRAGANA = "\u3041-\u3096\u309d-\u309f"
KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7fb"
THAI = "\u0e01-\u0e3a\u0e40-\u0e4e"
NO_SPACES = THAI + (  # Lao, Burmese, Khmer, Tai: UAX #29 leaves their words to dictionaries
    "\u0e81-\u0ecf\u0edc-\u0edf\u1000-\u103f\u104c-\u108f\u109a-\u109f\u1780-\u17df"
    "\u1950-\u1974\u1980-\u19cf\u1a20-\u1a5e\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaadf"
)
_SCRIPTS = {"cjk": HAN + HIRAGANA + KATAKANA + HANGUL, "th": THAI, "lo": NO_SPACES}
MID_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
MID_LETTER = MID_BOTH + ":\u00b7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a"
MID_NUMBER = (
    MID_BOTH + ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
)
JOINER = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
CIRCLED = "\u24b6-\u24e9"  # letters to UAX #29, symbols by their general category
FLAG = "\U0001f1e6-\U0001f1ff"
EMOJI = "\U0001f300-\U0001faff"
EMOJI_PART = "\ufe0f\U0001f3fb-\U0001f3ff"

Form: TypeAlias = Literal["NFC", "NFKC"]
Split = Callable[[str], list[str]]  # text to words
Term = Callable[[str], str]  # word to term, "" to leave it out


class Analyzer:
    """A callable from a text to the list of its terms, in order, repetitions included.

    ``analyzer(language)`` makes one. The term of each distinct word is remembered, because
    stemming is by far the slowest step. ``words`` splits a text, in lower case, and ``term`` turns
    a word into its term, or into "" to leave it out. ``lower`` is set if ``words`` only splits the
    text that ``lower`` lower-cased; such a text may be cut at spaces.
    """

    __slots__ = ("_terms", "language", "lower", "term", "words")

    def __init__(self, language: str, split: Split, term: Term, lower: Term | None = None) -> None:
        self.language = language
        self.words = split
        self.lower = lower
        self._terms = _Terms(term)
        self.term: Term = self._terms.__getitem__

    def __call__(self, text: str) -> list[str]:
        """Return the terms of ``text``."""
        return list(filter(None, map(self.term, self.words(text))))

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return analyzer, (self.language,)


class _Terms(dict[str, str]):
    """Word to term, filled as words are met."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self._term = term

    def __missing__(self, word: str) -> str:
        if len(self) >= CACHED_WORDS:
            self.clear()
        term = self[word] = self._term(word)
        return term


def analyzer(language: str) -> Analyzer:
    """Return the analyser of a language, given as an ISO 639-1 code or a Snowball name.

    - ``en``: Lucene's EnglishAnalyzer with Anserini's settings: words, possessive filter, lower
      case, 33 stop words, Porter's stemmer.
    - Snowball's other languages (``de``, ``fr``, ...): words, lower case, stemmer. No stop words:
      idf weighs them down, and lists differ from library to library.
    - ``cjk`` (``zh``, ``ja``, ``ko``): compatibility forms folded (NFKC), overlapping pairs of
      characters in runs of Han, Kana and Hangul, lower-cased words elsewhere.
    - ``th``: overlapping triples of characters in Thai runs, lower-cased words elsewhere; ``lo``
      (``km``, ``my``) the same in all scripts of South East Asia that write no spaces.
    - ``code``: as ``en``, and beside each name of several words its parts: ``raw_decode`` and
      ``JSONDecoder`` are found by "decode", "JSON decoder" and by the whole name.
    - ``none``: lower-cased words.
    - ``auto``: as the language of each text, English unless another is evident; of a query too,
      which may be too short to tell.

    ``sluice.encoders.lexical.languages`` has them all. ``ConfigError`` for any other name.
    """
    name = language.strip().lower() if isinstance(language, str) else ""
    found = BY_NAME.get(name)
    if found is None or (found.snowball and found.algorithm not in Stemmer.algorithms()):
        raise ConfigError(
            f"language: unknown language {language!r}; expected one of "
            f"{', '.join(sorted(BY_NAME))}{suggest(name, BY_NAME)}"
        )
    return _analyzer(found.algorithm)


@cache
def _analyzer(algorithm: str) -> Analyzer:
    """Return the one analyser of a language, so that all encoders share its cached terms."""
    if algorithm == ENGLISH:
        return _plain(algorithm, str.lower, _english(_stemmer("porter")))
    if algorithm in GRAMS:
        size, _ = GRAMS[algorithm]
        form: Form = "NFKC" if algorithm == "cjk" else "NFC"
        return Analyzer(algorithm, _grams(_SCRIPTS[algorithm], size, form), str)
    if algorithm == CODE:
        return Analyzer(algorithm, _code_words, _english(_stemmer("porter")))
    if algorithm == AUTO:
        return Analyzer(algorithm, _words_of_own, _term_of_own)
    if algorithm == NO_LANGUAGE:
        return _plain(algorithm, str.lower, str)
    lower = _turkish_lower if algorithm == "turkish" else str.lower
    return _plain(algorithm, lower, _snowball(_stemmer(algorithm)))


MARK = "|"  # ends a word's language, and is in no word


def _words_of_own(text: str) -> list[str]:
    """Return the words of a text, each after the language that is guessed for all of it."""
    language = guess_language([text], sure=False)
    return [f"{language}{MARK}{word}" for word in analyzer(language).words(text)]


def _term_of_own(word: str) -> str:
    language, _, plain = word.partition(MARK)
    return analyzer(language).term(plain)


def _plain(language: str, lower: Term, term: Term) -> Analyzer:
    def composed(text: str) -> str:
        lowered = lower(text)  # first: "\u03aa\u0301" is one character only in lower case
        return lowered if lowered.isascii() else unicodedata.normalize("NFC", lowered)

    return Analyzer(language, lambda text: words(composed(text)), term, composed)


def words(text: str) -> list[str]:
    """Return the words of ``text`` as Lucene's StandardTokenizer finds them."""
    if text.isascii():
        found = _finder(0x7F)(text)
    elif _ASTRAL.search(text):
        found = _finder(0x10FFFF)(text)
    else:
        found = _finder(0xFFFF)(text)
    if len(text) > LONGEST_WORD and max(map(len, found), default=0) > LONGEST_WORD:
        cuts = range(0, max(map(len, found)), LONGEST_WORD)
        found = [piece for word in found for i in cuts if (piece := word[i : i + LONGEST_WORD])]
    return found


# Parts of a name: JSON, Decoder, raw, decode, 2.
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")


def _code_words(text: str) -> list[str]:
    """Return the words of a text in lower case; behind a name of several words, its parts."""
    composed = unicodedata.normalize("NFC", text)
    return [part for word in words(composed) for part in _name_parts(word)]


@lru_cache(1 << 17)
def _name_parts(word: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in re.split("[.:]", word):
        parts = [part.lower() for part in _PARTS.findall(name)]
        found += parts if parts == [name.lower()] else [name.lower(), *parts]
    return tuple(found)


def _turkish_lower(text: str) -> str:
    composed = unicodedata.normalize("NFC", text)  # "I\u0307" is an İ
    return composed.replace("İ", "i").replace("I", "ı").lower()


def _stemmer(algorithm: str) -> Term:
    stem: Term = Stemmer.Stemmer(algorithm, 0).stemWord  # 0: the cache is ours
    return stem


def _snowball(stem: Term) -> Term:
    # Snowball knows elision ("l'avion") by the plain apostrophe only.
    return lambda word: stem(word.replace("\u2019", "'"))


def _english(snowball: Term) -> Term:
    porter = _porter(snowball)

    def term(word: str) -> str:
        if len(word) > 1 and word[-1] == "s" and word[-2] in "'\u2019\uff07":
            word = word[:-2]
        return "" if word in STOP_WORDS else porter(word)

    return term


def _porter(snowball: Term) -> Term:
    """Return Porter's stemmer in its author's own revision, which is Lucene's, from Snowball's.

    Snowball's `porter` follows the paper of 1980 to the letter; the revision also turns ``logi``
    into ``log`` and any ``bli`` into ``ble``, leaves words of two letters alone, and undoubles
    every consonant but l, s, z after removing ``ed`` or ``ing``. So cardiology meets cardiological,
    and possibly meets possible.
    """

    def stem(word: str) -> str:
        if len(word) <= 2:
            return word
        found = snowball(word)
        if word[-1] == "e":  # the rules below apply before a last e is dropped
            return found
        last = found[-1:]
        if last == "i":
            if found.endswith("bli") and _has_measure(found[:-3]):
                return snowball(found[:-1] + "e")
            if found.endswith("logi") and _has_measure(found[:-4]):
                return found[:-1]
            return found
        doubled = last == found[-2:-1] and last not in "aeioulsyz"
        return found[:-1] if doubled and word in (found + "ed", found + "ing") else found

    return stem


# Porter's m > 0: a vowel and then a consonant, where y after a consonant is a vowel.
_has_measure = re.compile(r"(?:[aeiou]|(?<=[^aeiouy])y)[^aeiou]").search


def _grams(script: str, size: int, form: Form) -> Split:
    """Return a splitter into n-grams of ``size`` in runs of ``script``, and words elsewhere."""
    runs = re.compile(f"([{script}]+)").split

    def split(text: str) -> list[str]:
        found: list[str] = []
        # re.split with a group: even places are what lies between the runs, odd places the runs.
        lowered = unicodedata.normalize(form, text).lower()
        for place, part in enumerate(runs(unicodedata.normalize("NFC", lowered))):
            if place % 2 == 0:
                found += words(part)
            else:
                last = max(len(part) - size, 0)
                found += [part[i : i + size] for i in range(last + 1)]
        return found

    return split


_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


@cache
def _finder(limit: int) -> Split:
    """Return the function that finds all words in a text without code points above ``limit``.

    Three limits are in use: ASCII matches several times faster than the rest, and code points
    above the basic plane slow down a regular expression's classes.
    """
    if limit < 0x80:
        return re.compile(_word("a-zA-Z", "0-9", ".':", ".';,", "_")).findall
    kinds = _kinds(limit)
    letter, digit, mark = kinds["L"] + CIRCLED, kinds["N"], kinds["M"]
    kept_whole = f"[{NO_SPACES}][{NO_SPACES}{mark}]*+"
    alternatives = [
        _word(letter, digit, MID_LETTER, MID_NUMBER, JOINER, mark, KATAKANA),
        f"[{HAN}{HIRAGANA}][{mark}]*+",
        kept_whole,
    ]
    if limit > 0xFFFF:
        emoji = f"[{EMOJI}][{EMOJI_PART}]*+"
        alternatives += [
            f"[{FLAG}]{{2}}",
            f"{emoji}(?:\u200d[{EMOJI}\u2190-\u2bff][{EMOJI_PART}]*+)*+",
        ]
    return re.compile("|".join(alternatives)).findall


def _word(
    letter: str,
    digit: str,
    mid_letter: str,
    mid_digit: str,
    joiner: str,
    mark: str = "",
    katakana: str = "",
) -> str:
    """Return the pattern of a word from the contents of its character classes.

    Marks belong to the character before them (rule WB4). The first branch, letters and nothing
    else, is a shortcut for most words; the second is rules WB5 to WB13.
    """
    marks = f"[{mark}]*+" if mark else ""
    letters = f"[{letter}][{letter}{mark}]*+(?:[{mid_letter}]{marks}[{letter}][{letter}{mark}]*+)*+"
    digits = f"[{digit}][{digit}{mark}]*+(?:[{mid_digit}]{marks}[{digit}][{digit}{mark}]*+)*+"
    unit = f"(?:{letters}|{digits})++"
    if katakana:
        unit = f"(?:[{katakana}][{katakana}{mark}]*+|{unit})"
    joiners = f"[{joiner}][{joiner}{mark}]*+"
    short = f"[{letter}]++(?![{digit}{joiner}{mark}]|[{mid_letter}]{marks}[{letter}])"
    full = f"(?:{joiners})?+{unit}(?:{joiners}{unit})*+(?:{joiners})?+"
    return f"(?=[{letter}{digit}{joiner}{katakana}])(?:{short}|{full})"


@cache
def marks() -> str:
    """Return the contents of a class, in a regular expression, of marks: parts of a word."""
    return _kinds(0xFFFF)["M"]


def _kinds(limit: int) -> dict[str, str]:
    """Return the classes of letters (L), digits (N) and marks (M) up to ``limit``.

    UAX #29's ALetter, Numeric, and Extend or Format, from the interpreter's general categories.
    Ideographs above U+20000 do not count as letters, and only marks follow them.
    """
    elsewhere = re.compile(f"[{HAN}{HIRAGANA}{KATAKANA}{NO_SPACES}]").match
    kinds = {"L": "a-zA-Z", "N": "0-9\u066b", "M": "\u200c\u200d\uff9e\uff9f"}
    if limit > 0xFFFF:
        kinds["M"] += "\U000e0020-\U000e007f\U000e0100-\U000e01ef"
    for kind, first, last in _runs(range(0x80, min(limit, 0x1FFFF) + 1), elsewhere):
        kinds[kind] += f"{first}-{last}"
    return kinds


def _runs(codes: range, elsewhere: Callable[[str], object]) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, first, last) for each run of characters of one kind."""
    start, current = codes.start, ""
    for code in codes:
        kind = _KIND.get(unicodedata.category(chr(code)), "")
        if kind == "L" and elsewhere(chr(code)):
            kind = ""
        if kind != current:
            if current:
                yield current, chr(start), chr(code - 1)
            start, current = code, kind
    if current:
        yield current, chr(start), chr(codes.stop - 1)


_KIND = {"Nd": "N", "Mn": "M", "Mc": "M", "Me": "M", "Cf": "M"}
_KIND |= dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "L")
