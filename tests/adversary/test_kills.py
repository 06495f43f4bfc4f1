"""A few kills over verbs that need no model; ``scripts/adversary kills`` runs them all."""

from pathlib import Path

import pytest
from kills import FUZZER

pytestmark = pytest.mark.thorough


def test_no_kill_leaves_a_mixture_or_litter(tmp_path: Path) -> None:
    tally = FUZZER.run(tmp_path, count=6, only=["search", "delete bm25", "mine"])
    assert tally.wrong == []
    assert sum(tally.tried.values()) == 6
