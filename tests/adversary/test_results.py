"""A few of the wrong values in results.json; ``scripts/long_counts.py`` tries many."""

from pathlib import Path

import pytest
from results import FUZZER

pytestmark = pytest.mark.thorough


def test_wrong_values_in_results(tmp_path: Path) -> None:
    tally = FUZZER.run(tmp_path, count=8, seed=7)
    assert not tally.wrong
