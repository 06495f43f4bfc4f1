"""Texts to pieces: what stands between spaces, cut in one go, to be looked up instead of analysed.

No word holds a space, a control character or most of ASCII's punctuation, so a lower-cased text may
be cut there first. Texts repeat few pieces many times; only a piece that is new is split into words
and stemmed. Pieces are UTF-8 bytes, because those are cut and looked up fastest.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import chain

from sluice.encoders.lexical.analyzer import LONGEST_WORD, Analyzer, words

END = b"A"  # stands behind each text: what is in lower case has no capitals of ASCII
TAGS = [letter.encode() for letter in string.ascii_uppercase[1:]]  # before pieces of a field
MIDDLE = b".':,;"  # these may stand inside a word, though never at its end
KEPT = (string.ascii_letters + string.digits + "_").encode() + MIDDLE
TABLE = bytes(byte if byte >= 0x80 or byte in KEPT else 0x20 for byte in range(0x100))


def pieces(texts: Sequence[str], fields: int, analyzer: Analyzer) -> list[bytes]:
    """Return the pieces of ``texts``, one text after the other, with ``END`` behind each.

    With several ``fields`` the texts belong to them in turn, and field n's pieces begin with
    ``TAGS[n]``.
    """
    if fields == 1:
        return _spaced(texts, analyzer).split()
    by_field = [
        (b" " + _spaced(texts[field::fields], analyzer)).replace(b" ", b" " + tag).split(tag + END)
        for field, tag in zip(range(fields), TAGS, strict=False)
    ]
    in_turn = chain.from_iterable(zip(*(cells[:-1] for cells in by_field), strict=True))
    return b" ".join([part for cell in in_turn for part in (cell, END)]).split()


def terms(piece: bytes, analyzer: Analyzer) -> list[str]:
    """Return the terms of an untagged piece, in order; those left out are empty."""
    core = piece.strip(MIDDLE)
    if core.isalnum() and len(core) <= LONGEST_WORD:  # ASCII's letters and digits: one word
        return [analyzer.term(core.decode())]
    text = piece.decode("utf-8", "surrogatepass")
    return [analyzer.term(word) for word in (words(text) if analyzer.lower else [text])]


def _spaced(texts: Sequence[str], analyzer: Analyzer) -> bytes:
    if analyzer.lower is None:  # not to be cut at spaces: the words themselves are the pieces
        parts = [" ".join([*analyzer.words(text), "A "]) for text in texts]
        return "".join(parts).encode("utf-8", "surrogatepass")
    lowered = " A ".join([*map(analyzer.lower, texts), ""])
    return lowered.encode("utf-8", "surrogatepass").translate(TABLE)
