"""Slices add up in the record, one that was killed too, and the page has what the record has."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fuzzing import Case, Fuzzer
from places import ROOT
from run import tally_file


@pytest.fixture(scope="module")
def counts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("long_counts", ROOT / "scripts/long_counts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def some(case: Case) -> None:
    case.tally.counts["kills"] += 2
    if case.number == 4:
        case.wrong("a | in what\nis wrong", big="x" * 5000)


@pytest.fixture
def run(
    counts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Any]]:
    """Run the script with a fuzzer of six cases to a slice; the slices of the record."""
    record, page = tmp_path / "counts.jsonl", tmp_path / "page.md"
    page.write_text(f"before\n{counts.BEGIN}\nold\n{counts.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(counts, "RECORD", record)
    monkeypatch.setattr(counts, "PAGE", page)

    def go(cut: int = 0) -> list[Any]:
        def run_slice(fuzzer: str, seed: int, minutes: float, place: Path, facts: Any) -> None:
            begun = place / f"{fuzzer}-{seed}.begun.json"
            begun.write_text(json.dumps({"fuzzer": fuzzer, "seed": seed, **facts}))
            made = Fuzzer(fuzzer, {"some": (some, 1)})
            file = tally_file(place, fuzzer, seed)
            made.run(place / "work", count=cut or 6, seed=seed, file=file)
            if cut:  # as SIGKILL: nothing of the script runs any more
                monkeypatch.setattr(counts, "add_finished", lambda *_: [])
                raise KeyboardInterrupt

        monkeypatch.setattr(counts, "run_slice", run_slice)
        words = ["--only", "kills,results", "--minutes", "1", "--place", str(tmp_path / "place")]
        monkeypatch.setattr(sys, "argv", ["long_counts.py", *words])
        counts.main()
        return list(counts.recorded(record))

    return go


def test_slices_add_up_and_none_is_lost(
    counts: ModuleType, tmp_path: Path, run: Callable[..., list[Any]]
) -> None:
    add = counts.add_finished
    slices = run()
    assert {each["fuzzer"]: each["seed"] for each in slices} == {"kills": 1001, "results": 1001}
    assert [each["cases"] for each in slices] == [6, 6]
    with pytest.raises(KeyboardInterrupt):
        run(cut=3)
    counts.add_finished = add
    slices = run()
    cut = [each for each in slices if each["cases"] == 3]
    assert len(slices) == 5
    assert [(each["seed"], each["counts"]["kills"], each["wrong"]) for each in cut] == [
        (1002, 6, [])
    ]
    seeds = [(each["fuzzer"], each["seed"]) for each in slices]
    assert len(set(seeds)) == 5
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    both = [sum(each["cases"] for each in slices if each["fuzzer"] == name) for name in
            ("kills", "results")]  # fmt: skip
    wrong = [sum(len(each["wrong"]) for each in slices if each["fuzzer"] == name) for name in
             ("kills", "results")]  # fmt: skip
    assert f"| kills of commands | {2 * both[0]} | 1,000 | {wrong[0]} | {both[0]} |" in page
    assert f"| mutated inputs | {both[1]} | 100,000 | {wrong[1]} | {both[1]} |" in page
    assert page.count("a \\| in what is wrong |") == sum(wrong) == 4
    assert "`kills` 1001:4, some" in page


def test_a_slice_is_added_once(counts: ModuleType, tmp_path: Path) -> None:
    record = tmp_path / "counts.jsonl"
    for turn in range(2):  # killed between the record and the removal of what it was taken from
        (tmp_path / "kills-7.begun.json").write_text(json.dumps({"fuzzer": "kills", "seed": 7}))
        made = Fuzzer("kills", {"some": (some, 1)})
        made.run(tmp_path / "w", count=3, seed=7, file=tally_file(tmp_path, "kills", 7))
        assert len(counts.add_finished(tmp_path, record)) == (turn == 0)
    assert len(counts.recorded(record)) == 1


@pytest.mark.parametrize("end", ["os.abort()", "raise OSError"])
def test_a_fuzzer_that_crashes_is_wrong(
    counts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(counts, "ROOT", tmp_path)
    fuzzer, tally = tmp_path / "tests" / "adversary" / "run.py", tally_file(tmp_path, "kills", 8)
    fuzzer.parent.mkdir(parents=True)
    facts = {"next": 5, "tried": {"some": 5}, "counts": {}, "seconds": 3.0, "wrong": []}
    fuzzer.write_text(f"import os\nopen({str(tally)!r}, 'w').write({json.dumps(facts)!r})\n{end}")
    counts.run_slice("kills", 8, 1, tmp_path, {"commit": "c"})
    (added,) = counts.add_finished(tmp_path, tmp_path / "counts.jsonl")
    assert (added["cases"], added["commit"], len(added["wrong"])) == (5, "c", 1)
    assert f"ended with {-6 if 'abort' in end else 1}," in added["wrong"][0]["what"]


def test_two_runs_do_not_share_a_folder(counts: ModuleType, tmp_path: Path) -> None:
    with counts.alone(tmp_path), pytest.raises(SystemExit, match="another run"):  # noqa: SIM117
        with counts.alone(tmp_path):
            pass


def test_the_page_has_the_tables_of_the_record(counts: ModuleType) -> None:
    text = counts.PAGE.read_text(encoding="utf-8")
    between = text.partition(counts.BEGIN)[2].partition(counts.END)[0]
    assert between.strip() == counts.tables(counts.recorded(counts.RECORD)).strip()
