"""``sluice gate``: its verdicts, exit codes and files, what it says first, and what it refuses."""

import html
import json
import re
import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call, verb_of
from places import ROOT
from report_world import QUERIES, query_id, world
from small_world import write_beir

from sluice import Run, gate
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.retrievers.measurements import _bounds
from sluice.retrieval.retrievers.pipeline_explanation import DocumentPath, Place
from sluice.retrieval.studies.gate.lost import _missed, lost_at
from sluice.retrieval.studies.gate.showing import as_html
from sluice.retrieval.studies.gate.system import Facts, System

COUNT = 80
CUT = "pipelines.found=bm25 >> rm3(bm25, documents=1) % 1"
QRELS = {f"q{n}": {f"d{n}": 1, f"x{n}": 0} for n in range(COUNT)}


def run_of(lost: int, gained: int = 0) -> Run:
    """Return a run in which all queries but ``lost`` find their document first or second."""
    rankings = {}
    for n in range(COUNT):
        first = n % 2 == 0 or n < gained
        ids = [f"d{n}", f"y{n}"] if first else [f"y{n}", f"d{n}"]
        rankings[f"q{n}"] = {doc: 2.0 - place for place, doc in enumerate(ids)}
        if n >= COUNT - lost:
            rankings[f"q{n}"] = {f"y{n}": 1.0}
    return Run(rankings)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, run in (("old", run_of(0)), ("bad", run_of(30)), ("few", run_of(2))):
        run.save(tmp_path / f"{name}.trec")
    lines = [f"{q} 0 {doc} {grade}" for q, own in QRELS.items() for doc, grade in own.items()]
    (tmp_path / "qrels").write_text("\n".join(lines) + "\n")
    return tmp_path


def record(sluice: Call, files: Path, *more: object) -> Path:
    made = files / "base.json"
    words = ["gate", "record", files / "old.trec", "--qrels", files / "qrels", "--output", made]
    code, out, err = sluice(*words, *more)
    assert (code, err) == (0, "")
    assert out.startswith(f"{made}: ")
    return made


@pytest.mark.parametrize(
    ("name", "budget", "more", "expected"),
    [
        ("old2", "nDCG@10=.01", [], 0),
        ("bad", "nDCG@10=.01", [], 1),
        ("bad", "ndcg_cut_10=1%", ["--test", "fisher"], 1),
        ("few", "nDCG@10=.01", [], 3),
        ("few", "nDCG@10=.01", ["--undecided", "pass"], 0),
        ("few", "nDCG@10=.01", ["--undecided", "fail"], 1),
        ("few", "nDCG@10=.2", [], 0),
    ],
)
def test_exit_codes(
    sluice: Call, files: Path, name: str, budget: str, more: list[str], expected: int
) -> None:
    shutil.copy(files / "old.trec", files / "old2.trec")
    base = record(sluice, files)
    words = [files / f"{name}.trec", "--qrels", files / "qrels", "--budget", budget, *more]
    for baseline in (base, files / "old.trec"):
        code, out, err = sluice("gate", baseline, *words)
        assert (code, err) == (expected, "")
        assert out.splitlines()[-1] in ("not worse", "worse", "cannot tell")


def test_a_recorded_baseline_is_small_and_reads_in_a_diff(sluice: Call, files: Path) -> None:
    made = record(sluice, files, "-m", "nDCG@10,P@1")
    text = made.read_text()
    assert '\n  "q1": [0.63093, 0, "y1"],\n' in text
    assert len(text) / COUNT < 40
    found = json.loads(text)
    assert (found["format"], found["version"]) == ("sluice.gate", 1)
    assert found["means"] == {"nDCG@10": 0.815465, "P@1": 0.5}
    assert found["unjudged"] == 0.1
    again = record(sluice, files, "-m", "nDCG@10,P@1")
    assert again.read_text() == text


def test_from_python() -> None:
    old, bad = run_of(0), run_of(30)
    found = gate(old, bad, budgets={"nDCG@10": 0.01, "P@1": "50%"}, qrels=QRELS)
    assert found.verdict == "worse"
    first, second = found.checked
    means = [evaluate(run, QRELS, ["nDCG@10"]).mean["nDCG@10"] for run in (old, bad)]
    assert [first.baseline, first.candidate] == pytest.approx(means, abs=1e-6)
    assert (first.decision is not None, second.budget) == (True, 0.25)
    assert len(found.lost) == 5
    assert found.lost[0].values == (1.0, 0.0)
    assert found.lost[0].documents == (("d50", "y50"), ("y50",))
    assert found.lost[0].first_relevant == (1, 0)
    assert any("unjudged of the first 10 documents: 10.0% to 10.0%" in note for note in found.notes)


def test_equal_rankings_pass_and_one_that_gained_does() -> None:
    assert (
        gate(run_of(0), run_of(0), budgets={"nDCG@10": 0.001}, qrels=QRELS).verdict == "not worse"
    )
    gained = gate(run_of(0), run_of(0, COUNT), budgets={"P@1": 0.01}, qrels=QRELS)
    assert gained.verdict == "cannot tell" if gained.checked[0].decision is None else "not worse"


def test_changed_judgements_are_a_note_or_an_error(sluice: Call, files: Path, output: Path) -> None:
    base = record(sluice, files)
    other = files / "other"
    other.write_text((files / "qrels").read_text().replace("x0 0", "x0 1"))
    words = ["--budget", "nDCG@10=.01", "--qrels", other]
    code, _, err = sluice("gate", base, files / "bad.trec", *words)
    assert code == 2
    assert "the judgements have changed since the values were recorded" in err
    changed = {q: {**own, f"x{q[1:]}": 1} for q, own in QRELS.items()}
    found = gate(run_of(0), run_of(0), budgets={"nDCG@10": 0.01}, qrels=changed)
    assert found.checked[0].baseline == found.checked[0].candidate


def test_folders_costs_and_forms(sluice: Call, output: Path, tmp_path: Path) -> None:
    slower = tmp_path / "slower"
    shutil.copytree(output, slower)
    results = json.loads((slower / "results.json").read_text())
    results["systems"][0]["index_bytes"] = 20_000
    (slower / "results.json").write_text(json.dumps(results))
    words = ["gate", output, slower, "--system", "bm25", "--budget", "nDCG@10=.01", "--budget"]
    code, out, err = sluice(*words, "bytes=10%")
    assert (code, err) == (1, "")
    assert "bytes: worse; 10,000 to 20,000; budget 1,000" in out
    assert "the first documents of every query are the same" in out
    code, out, _ = sluice(*words, "bytes=100%", "--format", "json")
    assert (code, json.loads(out)["verdict"]) == (0, "not worse")
    code, out, _ = sluice(*words, "p95_ms=20%", "--format", "junit")
    suite = ElementTree.fromstring(out)
    assert (code, suite.get("failures"), suite.get("skipped")) == (3, "0", "1")
    code, out, _ = sluice(*words, "bytes=10%", "--format", "markdown")
    assert out.startswith("## worse: ")
    assert "| bytes | 10,000 | 20,000 | 1,000 |" in out


def test_latencies_of_two_machines_are_multiples_of_a_fixed_task(
    sluice: Call, output: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for place, folder in enumerate(folders):
        shutil.copytree(output, folder)
        results = json.loads((folder / "results.json").read_text())
        slow = 1 + place  # the second machine takes twice as long for everything
        results["systems"][0]["latency_ms"] = {
            "p50": 2.0 * slow, "p95": 3.0 * slow, "reference": 1.0 * slow,
            "bounds": {"p50": [1.9 * slow, 2.1 * slow], "p95": [2.0 * slow, None]},
        }  # fmt: skip
        results["systems"][0]["origin"] = {"machine": {"platform": f"machine {place}"}}
        (folder / "results.json").write_text(json.dumps(results))
    words = ["gate", *folders, "--system", "bm25", "--budget"]
    assert sluice(*words, "p50_ms=10%")[0] == 0
    assert sluice(*words, "p50_ms=1%")[0] == 3
    assert sluice(*words, "p95_ms=50%")[0] == 3
    folders.reverse()
    assert sluice("gate", *folders, "--system", "bm25", "--budget", "p50_ms=10%")[0] == 0
    results["systems"][0]["origin"] = {"machine": {"platform": "machine 0"}}  # the same: directly
    (tmp_path / "two" / "results.json").write_text(json.dumps(results))
    assert sluice(*words, "p50_ms=10%")[0] == 1


def test_what_has_changed_is_a_note(sluice: Call, output: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for place, folder in enumerate(folders):
        shutil.copytree(output, folder)
        results = json.loads((folder / "results.json").read_text())
        results["contents"] = {"queries": "same", "qrels": f"hash {place}"}
        results["systems"][0]["fingerprints"] = {"bm25": "x"}
        (folder / "results.json").write_text(json.dumps(results))
    (folders[1] / "models" / "dense").mkdir(parents=True, exist_ok=True)
    noted = {"summary": {"overlap": {"queries": 30, "in_queries": 3, "in_documents": 0}}}
    (folders[1] / "models" / "dense" / "manifest.json").write_text(json.dumps(noted))
    code, out, _ = sluice("gate", *folders, "--system", "bm25", "--budget", "AP=.01")
    out = " ".join(out.split())
    assert code == 0
    assert "the judgements have changed since the baseline" in out
    assert "the queries have changed" not in out
    assert "the documents have changed" not in out
    assert "training texts hold 3 tested queries, those of the baseline 0" in out


def test_an_experiment_is_run(sluice: Call, tmp_path: Path) -> None:
    data = write_beir(tmp_path / "data")
    file = tmp_path / "search.yaml"
    retrievers = {"bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}}
    file.write_text(yaml.safe_dump({"dataset": str(data), "retrievers": retrievers}))
    base, output = tmp_path / "base.json", tmp_path / "out"
    code, _, err = sluice("gate", "record", file, f"output={output}", "--output", base)
    assert code == 0, err
    words = ["--budget", "nDCG@10=.01", "--budget", "bytes=1%"]
    code, out, _ = sluice("gate", base, file, f"output={output}-2", *words)
    assert (code, out.splitlines()[-1]) == (0, "not worse")
    code, out, _ = sluice("gate", base, file, f"output={output}-3", "dataset.level=9", *words)
    assert code == 2
    words = ["gate", output, "--budget", "nDCG@10=.01"]
    assert sluice(*words)[0] == 0
    results = output / "gated" / "results.json"
    results.write_text("damaged: never read again")
    code, out, _ = sluice(*words, "retrievers.bm25.encoder.k1=9")
    assert (code, json.loads(results.read_text())["systems"][0]["name"]) == (3, "bm25")
    assert f"{output}/gated: evaluated" in " ".join(out.split())
    for more in ([f"output={output}"], [file, f"output={output}/../out"]):
        code, _, err = sluice(*words, *more)
        assert (code, "is the baseline, whose parts would be reused" in err) == (2, True)
    code, _, err = sluice(*words, output / "gated", "retrievers.bm25.encoder.k1=9")
    assert (code, "and " in err, "is none that is run" in err) == (2, True, True)
    code, _, err = sluice("gate", base, "--budget", "nDCG@10=.01")
    assert (code, "has no experiment to run again" in err) == (2, True)


@pytest.mark.thorough
def test_the_stage_that_lost_a_document(sluice: Call, tmp_path: Path) -> None:
    folder = world(tmp_path)
    settings = yaml.safe_load((folder / "experiment.yaml").read_text())
    file, runs = tmp_path / "search.yaml", tmp_path / "runs"
    settings |= {"output": str(runs), "pipelines": {"found": "bm25 % 30"}}
    settings["evaluate"] = {"measures": ["R@100"], "report": False}
    file.write_text(yaml.safe_dump(settings))
    code, _, err = sluice("run", file)
    assert code == 0, err
    found = gate(runs, budgets={"R@100": 0.01}, system="found", overrides=[CUT])
    first, relevant = found.lost[0], _relevant(folder)
    assert found.verdict == "worse"
    assert first.stages.split()[0] in relevant[first.query]
    assert " lost by rm3(bm25, documents=1, … (bm25 " in first.stages
    page = as_html(found)
    assert page.startswith("<!DOCTYPE html>")
    assert "<script>" not in page
    assert all(each.stages in html.unescape(page) for each in found.lost)


def _relevant(folder: Path) -> dict[str, list[str]]:
    data = folder.with_name(folder.name.removesuffix("-out"))
    rows = [line.split("\t") for line in (data / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    relevant: dict[str, list[str]] = {}
    for query, document, grade in rows:
        if int(grade) > 0:
            relevant.setdefault(query, []).append(document)
    return relevant


def _path(*ranks: tuple[str, int | None], found_by: str = "a", moved: Any = None) -> DocumentPath:
    places = [Place(step, rank, None) for step, rank in ranks]
    return DocumentPath("d1", ranks[-1][1], None, places, [found_by] * bool(found_by), moved)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (_path(("a", None), ("b", None), found_by=""), "d1 not found by a, b"),
        (_path(("a", 3), ("b", None), ("c", None)), "d1 lost by b (a 3, b none, c none)"),
        (_path(("a", 3), ("b", 9), moved=("b", 3, 9)), "d1 moved down by b, 3 to 9 (a 3, b 9)"),
        (_path(("a", 9), ("b", 3), moved=("b", 9, 3)), "d1 a 9, b 3"),
        (_path(("a", 4)), "d1 a 4"),
    ],
)
def test_what_is_said_of_stages(path: DocumentPath, said: str) -> None:
    assert lost_at(path) == said


def test_the_document_that_is_followed_lost_most_of_dcg() -> None:
    old = Run({"q": {f"d{n}": 9.0 - n for n in range(4)}})
    new = Run({"q": {"d0": 4.0, "d2": 3.0, "d1": 2.0}})
    judged = {"q": {"d0": 3, "d1": 1, "d3": 2, "d8": 3, "x": 0}}
    # d0 stays, d1 falls from 2 to 3 (.131), d3 from 4 to nowhere (2 x .431)
    before, after = (System("", Facts(), run=run, qrels=judged) for run in (old, new))
    assert _missed(before, after, "q") == "d3"
    assert _missed(before, after, "other") is None


def test_bounds_of_percentiles_cover_them() -> None:
    inside, rng = [], np.random.default_rng(45)
    for _ in range(300):
        low, high = _bounds(rng.exponential(1.0, 200).tolist())["p95"]
        assert low is not None
        assert high is not None
        inside.append((low > -np.log(0.05), high < -np.log(0.05)))
    assert np.mean(inside, axis=0) == pytest.approx([0.04, 0.04], abs=0.03)
    assert _bounds([1.0] * 30)["p99"][1] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "nDCG@10=0"], "no number of queries proves that nothing is lost"),
        (["--budget", "nDCG@10"], "expected NAME=LOSS"),
        (["--budget", "nDCG@10=.1", "--budget", "ndcg_cut_10=.2"], "given twice"),
        (["--budget", "nDCG@10=low"], "expected NAME=LOSS"),
        (["--budget", "nDGC@10=.1"], "did you mean 'nDCG@10'"),
        (["--budget", "Hole@10=.1"], "the larger the better"),
        (["--budget", "AP=.1"], "has nDCG@10, R@100, not AP"),
        (["--budget", "bytes=10%"], "has no such cost"),
        ([], "none is given"),
        (["--budget", "P@1=.1", "--output", "x"], "is for gate record"),
    ],
)
def test_what_is_refused(sluice: Call, files: Path, words: list[str], message: str) -> None:
    base = record(sluice, files)
    before = sorted(files.iterdir())
    code, out, err = sluice("gate", base, files / "bad.trec", "--qrels", files / "qrels", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (('"version": 1', '"version": 2'), "made by a newer version of Sluice"),
        (("[1, 1,", "[NaN, 1,"), "queries.q0.0.float: Input should be a finite number"),
        (("[1, 1,", '["x", 1,'), "values, expected 2"),
        (('"q0"', '"other"'), "not the same queries"),
        (('"sluice.gate"', '"sluice.run"'), "not a recorded baseline"),
        (('"queries": {', '"queries": ['), "not readable as JSON"),
        (('"reference": null', '"reference": []'), "reference: "),
    ],
)
def test_damaged_and_foreign_baselines(
    sluice: Call, files: Path, edit: tuple[str, str], message: str
) -> None:
    base = record(sluice, files)
    text = base.read_text()
    assert edit[0] in text
    base.write_text(text.replace(*edit, 1))
    words = [files / "old.trec", "--qrels", files / "qrels", "--budget", "nDCG@10=.01"]
    code, out, err = sluice("gate", base, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_one_query_and_the_same_place_twice(sluice: Call, files: Path) -> None:
    one = {"q0": QRELS["q0"]}
    with pytest.raises(DataError, match="a single query says nothing"):
        gate(run_of(0), run_of(2), budgets={"nDCG@10": 0.01}, qrels=one)
    old = files / "old.trec"
    code, _, err = sluice("gate", old, old, "--qrels", files / "qrels", "--budget", "P@1=.1")
    assert (code, "is baseline and candidate" in err) == (2, True)


def test_which_system(sluice: Call, output: Path) -> None:
    words = ["gate", "record", output, "--output", output / "base.json"]
    code, _, err = sluice(*words)
    assert (code, "which system?" in err) == (2, True)
    assert sluice(*words, "--system", "bm25")[0] == 0
    found = json.loads((output / "base.json").read_text())
    assert (found["costs"]["bytes"], len(found["queries"])) == (10_000, QUERIES)
    assert query_id(1) in found["queries"]
    (output / "base.json").unlink()


def test_a_fault_of_the_program_is_no_verdict(
    sluice: Call, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sluice.retrieval.studies.gate.verdict.decide", broken)
    words = [files / "old.trec", files / "bad.trec", "--qrels", files / "qrels"]
    assert sluice("gate", *words, "--budget", "P@1=.1")[0] == 2


def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, re.S)
    exec(compile(code, "gate.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_the_action_calls_the_verb() -> None:
    action = yaml.safe_load((ROOT / "docs" / "examples" / "action.yml").read_text("utf-8"))
    script = action["runs"]["steps"][-1]["run"].replace("\\\n", " ")
    (line,) = [each for each in script.splitlines() if each.startswith("sluice ")]
    words = shlex.split(line.partition(" > ")[0].replace('"${arguments[@]}"', "--budget AP=.1"))
    assert verb_of(words[1:]).name == "gate"
