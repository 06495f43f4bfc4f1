"""Reading an order of documents from what a language model wrote: always a permutation."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BRACKETED = re.compile(r"\[\s*0*([0-9]{1,9})\s*\]")
_NUMBER = re.compile(r"(?<![0-9])0*([0-9]{1,9})(?![0-9])")
_THOUGHT = "</think>"  # where some models end what they say to themselves


def read_order(text: str, count: int) -> tuple[list[int], int]:
    """Return a permutation of ``range(count)`` and how many of its places were written.

    ``text`` is like ``[3] > [1] > ...``, numbers from 1. Numbers in brackets count, or any numbers
    where there is none in brackets. The first occurrence of each counts; unknown ones are left out;
    those that are missing follow in input order. (Sun et al., 2023, RankGPT, arXiv 2304.09542.)
    """
    said = spoken(text)
    found = _known(_BRACKETED.findall(said), count) or _known(_NUMBER.findall(said), count)
    named = set(found)
    return [*found, *(place for place in range(count) if place not in named)], len(found)


def spoken(text: str) -> str:
    """Return what a model says after its thinking, all of it where it does not think aloud."""
    return text.rpartition(_THOUGHT)[2]


def _known(numbers: Sequence[str], count: int) -> list[int]:
    places = (int(number) - 1 for number in numbers)
    return list(dict.fromkeys(place for place in places if 0 <= place < count))
