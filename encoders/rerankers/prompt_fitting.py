"""Cutting the texts in a prompt so that it fits: the longest first, all to one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.prompt import Prompt


class Measure(Protocol):
    """How long texts and prompts are, in tokens."""

    def whole(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt, with all that is put around it."""
        ...

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of texts."""
        ...

    def cut(self, texts: Sequence[str], length: int) -> list[str]:
        """Return the beginnings of texts, ``length`` tokens of each at most."""
        ...


def common_length(lengths: Sequence[int], room: int) -> int:
    """Return the largest length such that texts cut to it take ``room`` together at most.

    Texts that are shorter keep all of theirs, and leave the others more.
    """
    left = max(0, room)
    ordered = sorted(lengths)
    for place, length in enumerate(ordered):
        share = left // (len(ordered) - place)
        if length > share:
            return share
        left -= length
    return ordered[-1] if ordered else 0


def fitted(prompt: Prompt, room: int, measure: Measure) -> Prompt:
    """Return the prompt with its texts cut, as little as needed, so that it takes ``room`` tokens.

    ``ConfigError`` where its fixed words alone take more.
    """
    over = measure.whole(prompt) - room
    if over <= 0:
        return prompt
    lengths = measure.lengths(prompt.slots)
    space = sum(lengths) - over
    while True:
        length = common_length(lengths, space)
        shorter = prompt.having(measure.cut(prompt.slots, length))
        over = measure.whole(shorter) - room
        if over <= 0:
            return shorter
        if length == 0:
            raise ConfigError(
                f"prompt: {room + over:,} tokens without any query or document, and there is room "
                f"for {room:,}; shorten it, or raise context_length"
            )
        # Words may join at a cut, so that a token more is needed than was counted.
        space = min(space, sum(min(own, length) for own in lengths)) - over
