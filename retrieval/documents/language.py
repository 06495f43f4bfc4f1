"""Guesses the language of texts from their commonest words and letters, for BM25's stemmer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

ENGLISH = "en"
WORDS = {
    "en": "the of and to in is that for it with as was on are be this by from at or not",
    "de": "der die und das nicht ist ein eine mit auf den von zu für im dem sich des auch wird",
    "fr": "le la les des et est une dans pour que qui pas du sur au avec ce il plus sont",
    "es": "el la los las de y que en una por con para del se no es un su al como",
    "it": "il di che è la per una del della non con un sono le nel si dei alla anche gli",
    "pt": "o os de que e do da em um para com não uma dos as no na se por mais",
    "nl": "de het een en van is dat niet op te met voor zijn aan er door bij ook naar wordt",
    "sv": "och att det som en på är av för med den till inte har ett om kan men från",
    "da": "og det at en den til er som på de med af for ikke der har et kan fra",
    "fi": "ja on ei se että oli hän ovat myös kuin mutta tai joka sen mukaan ole kun jos",
    "pl": "i w na nie się z do to jest że o jak po ale przez od są oraz dla która",
    "tr": "ve bir bu da de için ile olarak olan daha çok gibi ama en ne var kadar",
}
LISTS = {code: frozenset(words.split()) for code, words in WORDS.items()}
# Letters of scripts that stand for one language here (or for one analyser, as cjk).
SCRIPTS = {
    "ru": "\u0400-\u04ff", "el": "\u0370-\u03ff", "ar": "\u0600-\u06ff", "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f", "cjk": "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af",
}  # fmt: skip
PATTERNS = {code: re.compile(f"[{letters}]") for code, letters in SCRIPTS.items()}
LETTERS = 20_000  # characters of each text that are looked at
SCRIPT_SHARE = 0.3  # of all characters but spaces, for another script to decide
WORD_SHARE = 0.08  # of all words that are the language's commonest
LEAD = 1.5  # times English's share


def guess_language(texts: Iterable[str]) -> str:
    """Return a language code of ``BM25Encoder``: English unless another is evident."""
    words: Counter[str] = Counter()
    scripts: Counter[str] = Counter(dict.fromkeys(SCRIPTS, 0))
    characters = 0
    for text in texts:
        part = text[:LETTERS]
        words.update(re.findall(r"[^\W\d_]+", part.lower()))
        characters += sum(not each.isspace() for each in part)
        for code, pattern in PATTERNS.items():
            scripts[code] += len(pattern.findall(part))
    code, letters = scripts.most_common(1)[0]
    if letters > SCRIPT_SHARE * characters:
        return code
    total = max(words.total(), 1)
    shares = {code: sum(words[word] for word in known) / total for code, known in LISTS.items()}
    best = max(shares, key=lambda code: shares[code])
    evident = shares[best] >= WORD_SHARE and shares[best] >= LEAD * shares[ENGLISH]
    return best if evident else ENGLISH
