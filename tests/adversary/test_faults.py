"""A few failing calls and small limits; ``scripts/adversary faults`` runs them over all verbs."""

from pathlib import Path

import faults
import pytest


def test_a_failing_call_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "VERBS", ("search", "delete bm25", "export vectors"))
    tally = faults.FUZZER.run(tmp_path, count=12, seed=1)
    assert tally.wrong == []
    assert sum(tally.tried.values()) == 12
