"""Published runs: the list is whole, a run is compared with it, and what cannot be is said."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Call
from places import ROOT
from small_world import write_beir

from sluice.retrieval import Run, evaluate, load_dataset
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.reproduction import listed, recorded
from sluice.retrieval.experiments.reproduction.listed import published_run, published_runs


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small collection in place of SciFact, under $SLUICE_DATA, and its figures on the list."""
    write_beir(tmp_path / "scifact")
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    known = published_run("bm25-scifact")
    changed = {
        "bm25-scifact": replace(known, figures={"nDCG@10": 0.9999, "R@100": 1.0}, within=0.5),
        "bm25-nfcorpus": published_run("bm25-nfcorpus"),
    }
    monkeypatch.setattr(listed, "published_runs", lambda: changed)
    return tmp_path


def test_every_run_of_the_list_can_be_run() -> None:
    runs = published_runs()
    assert len(runs) > 30
    for name, run in runs.items():
        assert name == f"{run.system}-{run.dataset}"
        assert [str(parse_measure(m)) for m in run.figures] == list(run.figures)
        assert all(0 < value <= 1 for value in run.figures.values()), name
        assert 0 < run.within <= 0.005
        assert run.source
        assert run.why
    for run in {run.system: run for run in runs.values()}.values():
        check_experiment(checked({**run.config, "output": "x"}, ExperimentConfig), None)


def test_what_was_repeated_is_within_the_tolerance() -> None:
    """The figures that docs/experiments.md has of these runs hold by the list's own rule."""
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    compared = 0
    for run in published_runs().values():
        row = re.search(rf"^\| {run.dataset} \|(.*)\|(.*)\|.*\|$", page, re.M)
        if not run.repeated or row is None:
            continue
        cell = row[{"bm25": 1, "minilm": 2}[run.system]]
        here = [float(each) for each in re.findall(r"\.\d+", cell.partition("(")[0])]
        for value, published in zip(here, run.figures.values(), strict=True):
            assert abs(value - published) <= run.within, run.name
            compared += 1
    assert compared == 10


def test_a_run_that_holds_and_one_that_is_off(small: Path, sluice: Call) -> None:
    code, out, err = sluice("reproduce", "--published", "bm25-scifact")
    assert code == 0, err
    run = Run.load(small / "runs/published/bm25-scifact/runs/bm25.trec.gz")
    expected = evaluate(run, load_dataset("scifact", "test"), ["nDCG@10", "R@100"])
    for measure, published in (("nDCG@10", 0.9999), ("R@100", 1.0)):
        here = expected.mean[measure]
        row = next(line for line in out.splitlines() if line.startswith(measure)).split()
        assert row[1:] == [
            f"{published:.4f}", f"{here:.4f}", f"{here - published:+.4f}", "0.5", "holds",
        ]  # fmt: skip
        assert f"{measure} {here:.4f} ({published:.4f} published)" in out
    (log,) = [line for line in out.splitlines() if line.startswith("- 20")]
    assert "`bm25-scifact`" in log
    assert "holds within 0.5; Sluice " in log
    code, out, _ = sluice("reproduce", "--published", "bm25-scifact", "--tolerance", "0")
    assert code == 1
    assert " off\n" in out
    assert ", off within 0; Sluice" in out
    other = write_beir(small / "elsewhere" / "copy", 50)
    words = ["--dataset", other, "--output", small / "out"]
    assert sluice("reproduce", "--published", "bm25-scifact", *words)[0] == 0
    assert (small / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--published", "bm25-scifac"], "did you mean 'bm25-scifact'"),
        (["--published", "bm25-nfcorpus"], "bm25-nfcorpus: no folder nfcorpus in BEIR layout"),
        (["--published", "bm25-nfcorpus"], "with a network, --dataset beir/NAME downloads"),
        (["x", "--published", "bm25-scifact"], "x: goes without --published and --list"),
        (["x", "--dataset", "y"], "--dataset: is for --published NAME"),
        (["--list", "--dataset", "y"], "--dataset: is for --published, not for --list"),
        (["--list", "--allow", "hub"], "--allow: is for the reproduction of a folder"),
        (["--published", "bm25-scifact", "--tolerance", "-1"], "expected a number of 0 or more"),
        (["--published", "bm25-scifact", "--tolerance", "nan"], "expected a number of 0 or more"),
        (
            ["--published", "bm25-scifact", "--published", "bm25-nfcorpus", "--output", "o"],
            "--output: is for one published run, not for several",
        ),
        ([], "give the output folder of run or evaluate, or --published NAME"),
    ],
)
def test_what_is_wrong_is_said(small: Path, sluice: Call, words: list[str], said: str) -> None:
    code, _, err = sluice("reproduce", *words)
    assert (code, said in " ".join(err.split())) == (2, True), err
    assert not (small / "runs").exists()


def test_the_list_is_printed(sluice: Call) -> None:
    code, out, _ = sluice("reproduce", "--list")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if re.match(r"[a-z]\S+ +0\.", line)]
    assert names == list(published_runs())
    assert str(recorded.listing(published_runs().values())) + "\n" == out
    assert "Pyserini's two-click reproductions" in out
