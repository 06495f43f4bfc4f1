"""Which of the thorough tests a sample has, and that their files are run first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Tests = Sequence[tuple[str, bool]]  # what pytest calls each, and whether it is thorough


def sampled(tests: Tests) -> list[int]:
    """Return the places of the tests to run where a sample of the thorough ones is enough.

    Those are all others, every tenth case of a thorough test of four or more (its first, its
    eleventh), and the first test of a file that would have none.
    """
    files = {_file(name) for name, thorough in tests if not thorough}
    cases = Counter(_function(name) for name, _ in tests)
    chosen, seen = list[int](), Counter[str]()
    for place, (name, thorough) in enumerate(tests):
        test = _function(name)
        in_turn = cases[test] >= 4 and seen[test] % 10 == 0
        if not thorough or in_turn or _file(name) not in files:
            chosen.append(place)
            files.add(_file(name))
        seen[test] += 1
    return chosen


def slow_first(tests: Tests) -> list[int]:
    """Return the places in the order in which several processes take the files.

    Files with thorough tests come first, then those of most tests, so that nothing slow is left to
    one process; a file's tests stay as they were.
    """
    slow = {_file(name) for name, thorough in tests if thorough}
    files = [_file(name) for name, _ in tests]
    counts = Counter(files)
    return sorted(
        range(len(tests)),
        key=lambda place: (files[place] not in slow, -counts[files[place]], files[place], place),
    )


def _file(test: str) -> str:
    return test.partition("::")[0]


def _function(test: str) -> str:
    return test.partition("[")[0]
