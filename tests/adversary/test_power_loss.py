"""Two recorded verbs and a power cut at some of their moments; and that the model sees mistakes."""

from pathlib import Path

import pytest
from power_loss import FUZZER

from sluice.encoders.foundation import drafts, generations


def test_a_power_cut_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    tally = FUZZER.run(tmp_path, count=2, seed=1, only=["search", "delete bm25"])
    assert tally.wrong == []


def test_a_writer_that_does_not_flush_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drafts, generations):
        monkeypatch.setattr(module, "sync", lambda path: None)
    tally = FUZZER.run(tmp_path, count=2, seed=1, only=["delete bm25"])
    assert tally.wrong
