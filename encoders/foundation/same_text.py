"""When two texts count as the same."""

from __future__ import annotations

import unicodedata


def same_text_key(text: str) -> str:
    """Return the text without differences of case, white space and Unicode form (NFKC).

    Two texts are the same where their keys are equal: for what is left out of a training, dropped
    among negatives, kept in one fold or on one side of a split, and found in a document.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
