"""A few seeded searches and formulas; scripts/adversary runs many."""

from pathlib import Path

import pytest
from searches import FUZZER

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("kind", FUZZER.kinds)
def test_nothing_differs_from_its_reference(tmp_path: Path, kind: str) -> None:
    tally = FUZZER.run(tmp_path, count=4 if kind == "retrievers" else 12, seed=5, only=[kind])
    assert tally.wrong == []
    assert kind not in ("indexes", "retrievers") or tally.counts["searches"] > 300
