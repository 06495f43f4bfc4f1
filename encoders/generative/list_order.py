"""Orders lists of documents by what a language model writes, window by window."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase as LETTERS
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.language_model import (
    LanguageModel,
    Prompt,
    Template,
    known_chances,
)

LISTWISE: Final = (
    "Below are {count} documents, each behind its number in brackets. Rank them by how relevant "
    "they are to the query.\n\nQuery: {query}\n\n{documents}\n\nQuery: {query}\n\n"
    "Write the numbers of all {count} documents, the most relevant first, in the form "
    "[2] > [1] > ..., and nothing else.\nRanking:"
)
LETTERED: Final = (
    LISTWISE.replace("its number", "its letter").replace("numbers", "letters")
    .replace("[2] > [1]", "[B] > [A]")
)  # fmt: skip
SEPARATOR: Final = " > "
TOKENS_EACH: Final = 6  # of an answer, such as "[12] > "
TOKENS_MORE: Final = 10  # of an answer, beside these
_BRACKETED = re.compile(r"\[\s*0*([0-9]{1,9})\s*\]")
_NUMBER = re.compile(r"(?<![0-9])0*([0-9]{1,9})(?![0-9])")
_THOUGHT = "</think>"  # ends the reasoning of some models


class Ordered(NamedTuple):
    """The places of each query's texts, the best first; prompts asked, and those in vain."""

    orders: dict[str, list[int]]
    asked: int
    silent: int


class ListOrder:
    """Orders texts for queries by windows of ``window`` of them, ``step`` apart, ``passes`` times.

    Windows go from the back of a list to its front, each ``step`` places before the last (half a
    window by default). ``window=None`` is full ranking: all texts in one prompt. What the model
    leaves out stays in the order it was in. (Sun et al., 2023, RankGPT, arXiv 2304.09542.)

    With ``first_token`` nothing is written: texts have letters, 26 in a prompt at most, and their
    order is that of the probability of each letter as the first of the answer. (Reddy et al.,
    2024, FIRST, arXiv 2406.15657.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = LISTWISE,
        window: int | None = 20,
        step: int | None = None,
        passes: int = 1,
        first_token: bool = False,
    ) -> None:
        self.model, self.first_token = model, first_token
        if first_token and prompt == LISTWISE:
            prompt = LETTERED
        self.template = Template(prompt, ["query", "documents"], ["count"])
        self.window = window
        usual = 1 if window is None else max(1, whole_number(window, "window", 2) // 2)
        self.step = usual if step is None else whole_number(step, "step", 1)
        self.passes = whole_number(passes, "passes", 1)
        if window is not None and window <= self.step:
            raise ConfigError(
                f"step: {step}; expected less than the window, {window}, so that windows overlap"
            )

    def ordered(self, queries: Mapping[str, str], texts: Mapping[str, Sequence[str]]) -> Ordered:
        """Return the order of each query's texts; windows of all queries are prompted together."""
        orders = {query: list(range(len(own))) for query, own in texts.items()}
        plans = {query: self._windows(len(own)) for query, own in texts.items()}
        asked = silent = 0
        for turn in range(max(map(len, plans.values()), default=0)):
            here = {query: plan[turn] for query, plan in plans.items() if turn < len(plan)}
            silent += self._ask(queries, texts, orders, here)
            asked += len(here)
        return Ordered(orders, asked, silent)

    def prompt(self, query: str, shown: Sequence[str]) -> Prompt:
        """Return what the model reads about texts in the order they are shown."""
        if self.first_token and len(shown) > len(LETTERS):
            raise ConfigError(
                f"first_token: {len(shown)} documents in one prompt, and there are {len(LETTERS)} "
                "letters; set window: 20, or leave first_token out"
            )
        labels = LETTERS if self.first_token else None
        return self.template.fill({"query": query, "documents": shown, "count": len(shown)}, labels)

    def _windows(self, count: int) -> list[slice]:
        """Return the windows over ``count`` texts, in the order of their prompts."""
        if count < 2:
            return []
        return windows(count, self.window or count, self.step) * self.passes

    def _ask(
        self,
        queries: Mapping[str, str],
        texts: Mapping[str, Sequence[str]],
        orders: dict[str, list[int]],
        here: Mapping[str, slice],
    ) -> int:
        """Reorder one window of each query; return how many answers named no text."""
        prompts = [
            self.prompt(queries[query], [texts[query][place] for place in orders[query][window]])
            for query, window in here.items()
        ]
        longest = max(window.stop - window.start for window in here.values())
        if self.first_token:
            answers: Sequence[Any] = list(
                known_chances(self.model, prompts, letter_choices(longest))
            )
        else:
            answers = self.model.completions(prompts, answer_room(longest))
        silent = 0
        for (query, window), answer in zip(here.items(), answers, strict=True):
            before = orders[query][window]
            if self.first_token:
                likely = answer[: len(before)]
                order = np.argsort(-likely, kind="stable").tolist()
                named = int(np.isfinite(likely).sum())
            else:
                order, named = read_order(answer, len(before))
            orders[query][window] = [before[place] for place in order]
            silent += not named
        return silent


def letter_choices(count: int) -> list[str]:
    """Return what the answers about ``count`` lettered texts begin with."""
    return [f"[{letter}]" for letter in LETTERS[:count]]


def answer_room(count: int) -> int:
    """Return how many tokens an order of ``count`` texts may take."""
    return TOKENS_EACH * count + TOKENS_MORE


def places_won(order: Sequence[int]) -> NDArray[np.float64]:
    """Return how many others each text is placed before, ``[texts]``."""
    won = np.empty(len(order))
    won[list(order)] = np.arange(len(order) - 1, -1, -1)
    return won


def windows(count: int, width: int, step: int) -> list[slice]:
    """Return windows over ``count`` places from the back to the front, the last one at place 0."""
    starts = list(range(count - width, 0, -step))
    return [slice(start, start + width) for start in starts] + [slice(0, min(width, count))]


def written_order(order: Sequence[int], *, letters: bool = False) -> str:
    """Return what a model is to write of an order of places: ``[3] > [1] > [2]``, or letters."""
    return SEPARATOR.join(f"[{LETTERS[place] if letters else place + 1}]" for place in order)


def read_order(text: str, count: int) -> tuple[list[int], int]:
    """Return a permutation of ``range(count)`` and how many of its places were written.

    ``text`` is like ``[3] > [1] > ...``, numbers from 1. Numbers in brackets count, or any numbers
    if none is in brackets. The first occurrence of each counts; unknown ones are left out;
    those that are missing follow in input order. (Sun et al., 2023, RankGPT, arXiv 2304.09542.)
    """
    said = spoken(text)
    found = _valid_numbers(_BRACKETED.findall(said), count) or _valid_numbers(
        _NUMBER.findall(said), count
    )
    named = set(found)
    return [*found, *(place for place in range(count) if place not in named)], len(found)


def spoken(text: str) -> str:
    """Return a model's answer without the reasoning that some write before it."""
    return text.rpartition(_THOUGHT)[2]


def _valid_numbers(numbers: Sequence[str], count: int) -> list[int]:
    places = (int(number) - 1 for number in numbers)
    return list(dict.fromkeys(place for place in places if 0 <= place < count))
