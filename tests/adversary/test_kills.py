"""A dozen kills over verbs that need no model; ``scripts/adversary kills`` runs them all."""

from pathlib import Path

from kills import FUZZER

KINDS = ("search", "delete bm25", "export vectors", "generate", "beside")


def test_no_kill_leaves_a_mixture_or_litter(tmp_path: Path) -> None:
    tally = FUZZER.run(tmp_path, count=10, seed=1, only=KINDS[:3])
    assert tally.wrong == []
    assert sum(tally.tried.values()) == 10
