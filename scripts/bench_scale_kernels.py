"""Compiled loops of ``bench_scale.py``: the words of passages, and how often each occurs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

COMMON_SHIFT, TOPIC_SHIFT = 20.0, 500.0  # of the two laws: the flatter, the larger
TOPIC_SHARE = 0.45
TOPIC_WORDS = 80


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def word_at(shift: float, chance: float, words: int) -> Any:
    """Return the rank of a word: log-uniform, evened out below ``shift``."""
    return min(int((words + shift) ** chance * shift ** (1.0 - chance) - shift), words - 1)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def topic_word(topic: int, place: int, words: int) -> Any:
    """Return the word at a place of a topic's list, which is a hash of both."""
    x = np.uint64(topic) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(place + 1)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return word_at(TOPIC_SHIFT, float(x >> np.uint64(11)) / 2.0**53, words)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def draw_tokens(seed: int, lengths: Any, topics: int, words: int, tokens: Any) -> None:
    """Draw the words of documents of these lengths, one document after the other."""
    np.random.seed(seed)
    end = 0
    for document in range(len(lengths)):
        topic = np.random.randint(0, topics)
        for _ in range(lengths[document]):
            if np.random.random() < TOPIC_SHARE:
                tokens[end] = topic_word(topic, int(TOPIC_WORDS * np.random.random() ** 2.0), words)
            else:
                tokens[end] = word_at(COMMON_SHIFT, np.random.random(), words)
            end += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def count_tokens(lengths: Any, tokens: Any) -> Any:
    """Return starts, ascending terms, and how often each occurs in its document."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    terms = np.empty(len(tokens), np.int32)
    counts = np.empty(len(tokens), np.int32)
    begin = end = 0
    for document in range(len(lengths)):
        own = np.sort(tokens[begin : begin + lengths[document]])
        begin += lengths[document]
        for place in range(len(own)):
            if place and own[place] == own[place - 1]:
                counts[end - 1] += 1
            else:
                terms[end], counts[end] = own[place], 1
                end += 1
        starts[document + 1] = end
    return starts, terms[:end].copy(), counts[:end].copy()
