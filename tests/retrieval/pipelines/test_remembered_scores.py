"""One memory of scores: each missing key once, in blocks, and what a kill leaves."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sluice.retrieval.pipelines.scorer import ScoreMemory, remembered

KEYS = ["a", "b", "a", "c", "d", "c", "e"]
VALUES = {key: float(place) for place, key in enumerate("abcde")}


class Scoring:
    """Scores keys by ``VALUES``, notes each call, and stops at a key."""

    def __init__(self, keys: Sequence[str], stop_at: str = "") -> None:
        self.keys, self.stop_at = keys, stop_at
        self.calls: list[list[str]] = []

    def __call__(self, places: list[int]) -> NDArray[np.float32]:
        names = [self.keys[place] for place in places]
        if self.stop_at in names:
            raise KeyboardInterrupt
        self.calls.append(names)
        return np.array([VALUES[name] for name in names], np.float32)


def test_what_is_missing_is_scored_once_in_blocks() -> None:
    memory: ScoreMemory[str] = ScoreMemory({"b": 1.0})
    scoring = Scoring(KEYS)
    scores, misses = remembered(KEYS, memory.found, scoring, memory.add, block=3)
    assert scores.tolist() == [VALUES[key] for key in KEYS]
    assert scores.dtype == np.float32
    assert misses == 4
    assert scoring.calls == [["a", "c", "d"], ["e"]]
    assert remembered(KEYS, memory.found, scoring, memory.add).misses == 0
    assert len(scoring.calls) == 2


def test_a_kill_costs_one_block() -> None:
    memory: ScoreMemory[str] = ScoreMemory()
    with pytest.raises(KeyboardInterrupt):
        remembered(KEYS, memory.found, Scoring(KEYS, stop_at="e"), memory.add, block=2)
    assert sorted(memory) == ["a", "b", "c", "d"]


def test_without_blocks_one_call_and_nothing_for_nothing() -> None:
    memory: ScoreMemory[str] = ScoreMemory()
    scoring = Scoring(KEYS)
    remembered(KEYS, memory.found, scoring, memory.add)
    assert scoring.calls == [["a", "b", "c", "d", "e"]]
    assert len(remembered([], memory.found, scoring, memory.add).scores) == 0


def test_what_cannot_be_scored_is_asked_again() -> None:
    def unscored(places: list[int]) -> NDArray[np.float32]:
        return np.full(len(places), np.nan, np.float32)

    memory: ScoreMemory[str] = ScoreMemory()
    assert np.isnan(remembered(["a"], memory.found, unscored, memory.add).scores).all()
    assert remembered(["a"], memory.found, Scoring(["a"]), memory.add).misses == 1
