"""The language of texts, by their script and their commonest words: no model, no tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from sluice.encoders.lexical.languages import ENGLISH

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
ASKING = {  # what questions begin with, which are often too short for other common words
    "en": "what which who whom whose when where why how did does do were many much",
    "de": "was welche welcher welches welchen wer wen wem wann wo warum wie wie viele wurde hat",
    "fr": "quel quelle quels quelles qui quoi quand où pourquoi comment combien était",
    "es": "qué cuál cuáles quién quiénes cuándo dónde por qué cómo cuánto cuántos fue",
    "it": "quale quali chi cosa quando dove perché come quanto quanti quante era stato",
    "pt": "qual quais quem quê quando onde porque como quanto quantos quantas foi",
    "nl": "wat welke welk wie wanneer waar waarom hoe hoeveel werd heeft",
    "sv": "vad vilken vilket vilka vem när var varför hur många mycket",
    "da": "hvad hvilken hvilket hvilke hvem hvornår hvor hvorfor hvordan mange blev",
    "fi": "mikä mitä mitkä kuka ketkä milloin missä miksi miten kuinka montako",
    "pl": "co jaki jaka jakie który które kto kiedy gdzie dlaczego ile był została",
    "tr": "hangi kim kimin nedir neden niçin nasıl nerede nereye zaman kaç kaçtır mi mı",
}
LISTS = {code: frozenset(f"{words} {ASKING[code]}".split()) for code, words in WORDS.items()}
OWN_LETTERS = {  # beside those of English
    "en": "", "de": "äöüß", "fr": "àâçèêëîïôûœ", "es": "áíñóú", "it": "àèìòù", "pt": "ãâçêõ",
    "nl": "ëï", "sv": "åäö", "da": "åæø", "fi": "äö", "pl": "ąćęłńśźż", "tr": "çğıöşü",
}  # fmt: skip
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


def guess_language(texts: Iterable[str], *, sure: bool = True) -> str:
    """Return a language code of ``BM25Encoder``: English unless another is evident.

    A script decides, else the commonest words of the languages that have a list. Unless ``sure``,
    as of single texts, the most words decide that are such, or have letters of the language.
    """
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
    if not sure:
        for code, own in OWN_LETTERS.items():
            shares[code] += sum(n for word, n in words.items() if set(own) & set(word)) / total
    best = max(shares, key=lambda code: shares[code])
    evident = shares[best] >= WORD_SHARE and shares[best] >= LEAD * shares[ENGLISH]
    return best if evident or not sure else ENGLISH
