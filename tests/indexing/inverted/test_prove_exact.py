"""The differential proof: a small one holds, it continues, and it sees what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import ROOT

from sluice.indexing import InvertedIndex
from sluice.indexing.hits import Hits


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import prove_exact

    return prove_exact


def proof(script: ModuleType, path: Path, corpora: int) -> dict[str, Any]:
    made = script.Proof(path, 20)
    for _ in range(corpora):
        made.corpus(made.counts["seed"])
        made.counts["seed"] += 1
        made.save()
    counts: dict[str, Any] = json.loads(path.read_text())
    return counts


@pytest.mark.thorough
def test_no_search_is_wrong_and_a_stopped_proof_continues(
    script: ModuleType, tmp_path: Path
) -> None:
    first = proof(script, tmp_path / "state.json", 2)
    second = proof(script, tmp_path / "state.json", 3)
    whole = proof(script, tmp_path / "whole.json", 5)
    assert (first["seed"], second["seed"]) == (22, 25)
    assert second == whole
    assert second["searches"] > first["searches"] > 1_000
    assert (second["wrong"], second["faults"]) == (0, [])


def test_a_wrong_answer_is_counted(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = InvertedIndex.search

    def swapped(self: InvertedIndex, vectors: Any, k: int, **options: Any) -> Hits:
        hits = search(self, vectors, k, **options)
        hits.rows[:1, :1] += 1
        return hits

    monkeypatch.setattr(InvertedIndex, "search", swapped)
    monkeypatch.setattr(script, "QUERIES", 2)
    counts = proof(script, tmp_path / "state.json", 1)
    assert 0 < counts["wrong"] <= counts["searches"] / 2
    assert counts["faults"][0].startswith("seed 20, added: query 0, k 1, auto")
