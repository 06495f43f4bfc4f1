"""Sentences of English-like text, by rules: the same text always gives the same sentences."""

from __future__ import annotations

import re

# A full stop behind one of these ends no sentence, whatever follows it.
_ABBREVIATED = (
    "dr mr mrs ms prof st jr sr vs etc al fig figs eq eqs ref refs nos vol vols pp ed eds approx "
    "inc ltd co corp dept univ jan feb mar apr jun jul aug sep sept oct nov dec e.g i.e cf ca viz "
    "u.s u.k sp spp var resp gen sgt capt lt gov sen rev hon"
)
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_END = re.compile(r"[.!?…。！？]+[\"')\]”’»]*(?=\s)|[。！？]+|\n\s*\n")
_LAST_WORD = re.compile(r"([\w.]+)\.$")
_OPENING = "\"'([“‘«"


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, each without white space around it.

    A sentence ends with ``.``, ``!``, ``?`` and closing marks before white space, or with a blank
    line. It goes on after an abbreviation (Dr., e.g., et al.), a single initial (J. Smith), and
    where a small letter follows. Joined by spaces, the sentences are the text up to white space.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        stop = match.end()
        if match[0].strip() and not _ends(text[start:stop], text[stop:]):
            continue
        found.append(text[start:stop].strip())
        start = stop
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _ends(before: str, after: str) -> bool:
    following = after.lstrip()[:2].lstrip(_OPENING)
    if following[:1].islower():
        return False
    word = _LAST_WORD.search(before)
    if word is None:
        return True
    name = word[1]
    return not (name.lower() in ABBREVIATIONS or (len(name) == 1 and name.isupper()))
