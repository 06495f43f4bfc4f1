"""The sample of thorough tests that scripts/test runs, and the order of files."""

from collections.abc import Callable, Sequence

import pytest
from thorough import sampled, slow_first

TESTS = [
    ("c::one", False), ("a::quick", False), ("a::kill", True), ("a::many[1]", True),
    ("a::many[2]", True), ("b::first", True), ("b::second", True), ("b::many[1]", True),
    ("b::many[2]", True), ("d::one", False), ("d::two", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (sampled, "c::one a::quick a::many[1] b::first b::many[1] d::one d::two"),
        (
            slow_first,
            "a::quick a::kill a::many[1] a::many[2] b::first b::second b::many[1] b::many[2] "
            "d::one d::two c::one",
        ),
    ],
)
def test_choices(choose: Callable[[Sequence[tuple[str, bool]]], list[int]], expected: str) -> None:
    assert [TESTS[place][0] for place in choose(TESTS)] == expected.split()
