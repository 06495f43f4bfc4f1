"""Recorded verbs and power cuts at their moments; and that the model sees a missing flush."""

from pathlib import Path

import power_loss
import pytest

from sluice.encoders.foundation.disk import files as drafts

pytestmark = pytest.mark.thorough


def lost(work: Path, verb: str, monkeypatch: pytest.MonkeyPatch, tried: int, again: int) -> object:
    monkeypatch.setattr(power_loss, "TRIED", tried)
    monkeypatch.setattr(power_loss, "REPEATED", again)
    return power_loss.FUZZER.run(work, count=1, only=[verb]).wrong


def test_a_power_cut_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lost(tmp_path, "search", monkeypatch, 100, 1) == []
    assert lost(tmp_path, "delete bm25", monkeypatch, 4, 0) == []


def test_a_writer_that_does_not_flush_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "sync", lambda path: None)
    assert lost(tmp_path, "search", monkeypatch, 100, 0) != []
