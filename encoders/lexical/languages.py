"""The languages that texts are analysed in: by which names, into which terms."""

from __future__ import annotations

from typing import Final, NamedTuple

STOP_WORDS = frozenset({  # Lucene's English ones
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with",
})  # fmt: skip
ENGLISH: Final = "en"
NO_LANGUAGE: Final = "none"
CODE: Final = "code"
AUTO: Final = "auto"  # each text's own, which is guessed
WORDS: Final = "words"
# How many characters are a term in runs of a script that writes no spaces, and which those are.
GRAMS: Final = {"cjk": (2, "Han, Kana and Hangul"), "th": (3, "Thai"),
                "lo": (3, "Lao, Khmer, Burmese, Thai and Tai")}  # fmt: skip


class Language(NamedTuple):
    """One or several languages that are analysed alike.

    ``algorithm`` is Snowball's name of the stemmer, or ours: ``en``, those of ``GRAMS``, ``code``,
    ``none``, ``auto``.
    ``codes`` are what ``language`` may be beside it, ISO 639-1 codes and names.
    """

    name: str
    algorithm: str
    codes: tuple[str, ...]

    @property
    def snowball(self) -> bool:
        """Whether a stemmer of Snowball's stands behind it."""
        return self.algorithm not in (ENGLISH, CODE, NO_LANGUAGE, AUTO, *GRAMS)

    @property
    def names(self) -> tuple[str, ...]:
        """All that ``language`` may be."""
        return tuple(dict.fromkeys((*self.codes, self.algorithm)))

    @property
    def breaking(self) -> str:
        """What the text is broken into."""
        if self.algorithm == CODE:
            return f"{WORDS}, and the parts of names (`raw_decode`, `JSONDecoder`) beside them"
        if self.algorithm == AUTO:
            return "as the language of each text, which is guessed"
        if self.algorithm not in GRAMS:
            return WORDS
        size, scripts = GRAMS[self.algorithm]
        return f"{'pairs' if size == 2 else 'triples'} of characters in {scripts}; {WORDS}"

    @property
    def stemming(self) -> str:
        """How words become terms."""
        if self.algorithm in (ENGLISH, CODE):
            return "Porter, as Lucene has it"
        return f"Snowball, `{self.algorithm}`" if self.snowball else "none"

    @property
    def stop_words(self) -> int:
        """How many words are left out."""
        return len(STOP_WORDS) if self.algorithm in (ENGLISH, CODE) else 0


def _snowball(name: str, *codes: str) -> Language:
    return Language(name, name.lower(), codes)


LANGUAGES: Final = (
    Language("English", ENGLISH, ("en", "english")),
    _snowball("Arabic", "ar"), _snowball("Armenian", "hy"), _snowball("Basque", "eu"),
    _snowball("Catalan", "ca"), _snowball("Czech", "cs"), _snowball("Danish", "da"),
    _snowball("Dutch", "nl"), _snowball("Esperanto", "eo"), _snowball("Estonian", "et"),
    _snowball("Finnish", "fi"), _snowball("French", "fr"), _snowball("German", "de"),
    _snowball("Greek", "el"), _snowball("Hindi", "hi"), _snowball("Hungarian", "hu"),
    _snowball("Indonesian", "id"), _snowball("Irish", "ga"), _snowball("Italian", "it"),
    _snowball("Lithuanian", "lt"), _snowball("Nepali", "ne"),
    _snowball("Norwegian", "nb", "nn", "no"),
    _snowball("Persian", "fa"), _snowball("Polish", "pl"), _snowball("Portuguese", "pt"),
    _snowball("Romanian", "ro"), _snowball("Russian", "ru"), _snowball("Serbian", "sr"),
    _snowball("Sesotho", "st"), _snowball("Spanish", "es"), _snowball("Swedish", "sv"),
    _snowball("Tamil", "ta"), _snowball("Turkish", "tr"), _snowball("Yiddish", "yi"),
    Language("Chinese, Japanese, Korean", "cjk",
             ("zh", "chinese", "ja", "japanese", "ko", "korean")),
    Language("Thai", "th", ("th", "thai")),
    Language("Lao, Khmer, Burmese", "lo", ("lo", "lao", "km", "khmer", "my", "burmese")),
    Language("program code", CODE, ()),
    Language("any other", NO_LANGUAGE, ()),
    Language("several", AUTO, ()),
)  # fmt: skip
BY_NAME: Final = {name: each for each in LANGUAGES for name in each.names}
