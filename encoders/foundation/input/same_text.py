"""Decides when two texts count as the same."""

from __future__ import annotations

import unicodedata


def same_text_key(text: str) -> str:
    """Return the text without differences of case, white space and Unicode form (NFKC).

    Texts with equal keys are the same text: when test queries are excluded from training, when
    negatives are dropped, in folds and splits, and when a text is searched for in a document.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
