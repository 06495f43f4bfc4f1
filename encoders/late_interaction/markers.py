"""Marks queries and documents by a token of their own before the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.encoders.encoder import Side

UNUSED: dict[Side, str] = {"query": "[unused0]", "document": "[unused1]"}  # ColBERT's, in BERTs
ADDED: dict[Side, str] = {"query": "[Q] ", "document": "[D] "}  # PyLate's, added to others


def usual_markers(tokenizer: Any) -> dict[Side, str]:
    """Return the markers of a new encoder: unused tokens of its vocabulary, else two new ones."""
    known = tokenizer.get_vocab()
    return UNUSED if all(marker in known for marker in UNUSED.values()) else ADDED


def know_markers(tokenizer: Any, markers: Mapping[Side, str]) -> None:
    """Let each marker that the vocabulary has, with or without a space after it, be one token.

    Where they were trained as tokens before the text, a tokenizer may yet take them apart
    (``[unused0]`` into ``[``, ``unused0`` and ``]``). Others stay ordinary text.
    """
    from transformers import AddedToken

    known = tokenizer.get_vocab()
    apart = list[str]()
    for marker in markers.values():
        forms: Sequence[str] = [marker, *marker.split()[:1]] if marker.strip() else ()
        form = next((form for form in forms if form in known), None)
        if form is not None and tokenizer.tokenize(form) != [form]:
            apart.append(form)
    tokens = [AddedToken(each, normalized=False, special=True) for each in apart]
    tokenizer.add_tokens(tokens, special_tokens=True)
