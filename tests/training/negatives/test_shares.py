"""Negatives of several lists in shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.negatives.mining import mine_lists
from sluice.training.negatives.settings import Mining

QUERIES = [f"q{number}" for number in range(200)]
POSITIVES = {query: {"p": 1} for query in QUERIES}


def ranked(prefix: str, count: int = 30) -> dict[str, list[tuple[str, float]]]:
    hits = [(f"{prefix}{rank:02d}", 50.0 - rank) for rank in range(count)]
    return {query: [("p", 99.0), *hits] for query in QUERIES}


def mined(lists: Any, **settings: Any) -> dict[str, tuple[str, ...]]:
    return dict(mine_lists(lists, POSITIVES, Mining(**settings), seed=3).negatives)


def counted(negatives: dict[str, tuple[str, ...]]) -> list[Counter[str]]:
    return [Counter(document[0] for document in own) for own in negatives.values()]


def test_whole_shares_are_exact_and_the_best_of_each_list() -> None:
    lists = {"a": ranked("a"), "b": ranked("b"), "c": ranked("c")}
    found = mined(lists, per_query=20, shares=(0.35, 0.35, 0.3))
    assert all(own == {"a": 7, "b": 7, "c": 6} for own in counted(found))
    assert {"a00", "a06", "b06", "c05"} <= set(found["q0"])


@pytest.mark.parametrize("shares", [(7, 13), (0.35, 0.65)])
def test_fractions_hold_on_average(shares: tuple[float, float]) -> None:
    found = counted(mined({"a": ranked("a"), "b": ranked("b")}, per_query=3, shares=shares))
    assert {sum(own.values()) for own in found} == {3}
    assert {own["a"] for own in found} == {1, 2}  # 1.05 of three
    of_all = sum(own["a"] for own in found) / (3 * len(found))
    assert abs(of_all - 0.35) < 0.02


def test_a_share_of_zero_gives_none_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    found = counted(mined({"a": ranked("a"), "b": ranked("b")}, per_query=4, shares=(0, 1)))
    assert all(own == {"b": 4} for own in found)
    (warning,) = caplog.messages
    assert warning.startswith("negatives.shares: 0 for a: ")
    mined({"a": ranked("a"), "b": ranked("b")}, per_query=4, shares=(1, 1))
    assert caplog.messages == [warning]


def test_what_a_list_lacks_the_others_fill() -> None:
    lists = {"a": ranked("a", count=1), "b": ranked("b")}
    assert all(own == {"a": 1, "b": 5} for own in counted(mined(lists, per_query=6, shares=(5, 1))))


def test_a_document_of_two_lists_counts_for_the_one_that_takes_it() -> None:
    hits = sorted([*ranked("a")["q0"][1:4], *ranked("b")["q0"][1:]], key=lambda hit: -hit[1])
    lists = {"a": ranked("a"), "b": dict.fromkeys(QUERIES, hits)}
    found = mined(lists, per_query=4, shares=(1, 1))
    assert set(found["q0"]) == {"a00", "a01", "a02", "b00"}  # a02 is in both


def test_limits_and_equal_texts_hold_within_shares() -> None:
    lists = {"a": ranked("a"), "b": ranked("b")}
    texts = {name: name for own in lists.values() for name, _ in own["q0"]}
    texts |= {"a01": "a00", "b00": "p", "b01": "a02", "a02": "a02"}
    result = mine_lists(
        lists, POSITIVES, Mining(per_query=4, shares=(1, 1), max_positive_ratio=0.5),
        texts=lambda ids: {name: texts[name] for name in ids},
    )  # fmt: skip
    # 49.5 is the limit: a00 and b00 are above it.
    assert set(result.negatives["q0"]) == {"a01", "a02", "b02", "b03"}


def test_the_same_again_and_others_by_seed() -> None:
    lists = {"a": ranked("a"), "b": ranked("b")}
    mining = Mining(per_query=1, shares=(1, 1))
    one, same, other = (
        mine_lists(lists, POSITIVES, mining, seed=seed).negatives for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize("shares", [(), (0, 0), (-1, 2), ("a",), 3, (float("nan"),)])
def test_bad_shares(shares: Any) -> None:
    with pytest.raises(ConfigError, match=r"negatives.shares: .*a number of 0 or more for each"):
        Mining(shares=shares)


def test_one_for_each_list() -> None:
    with pytest.raises(ConfigError, match=r"shares: 2 for 1 lists \(a\); expected one for each"):
        mined({"a": ranked("a")}, shares=(1, 1))
