"""A few failing calls and small limits; ``scripts/adversary faults`` runs them over all verbs."""

from pathlib import Path

import faults
import pytest

pytestmark = pytest.mark.thorough


def test_a_failing_call_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "VERBS", ("search", "mine", "delete bm25"))
    tally = faults.FUZZER.run(tmp_path, count=6)
    assert tally.wrong == []
    assert sum(tally.tried.values()) == 6
