"""What worked in Python only is reached from the command line, with the same figures."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.retrieval import Retriever, Run, evaluate, load_dataset
from sluice.retrieval.cli.terminal.verbs import plural, split_measures
from sluice.retrieval.evaluation import hubness
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
from sluice.retrieval.pipelines.fusion import fit_fusion
from sluice.retrieval.runs import compare_rankings
from sluice.retrieval.studies import compatibility_matrix


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "data")


@pytest.fixture
def config(world: Path, tmp_path: Path) -> Path:
    values: dict[str, Any] = {
        "dataset": str(world),
        "output": str(tmp_path / "out"),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "small_world:WordEncoder"}},
        },
        "pipelines": {"hybrid": f"weighted(bm25, dense, fitted='{tmp_path}/fusion.json')"},
        "evaluate": {"latency_queries": 0, "report": False},
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return file


def saved_runs(folder: Path) -> tuple[Path, Path]:
    """Two runs over three queries; the second turns the first ranking of each around."""
    first = {f"q{n}": {f"d{k}": 9.0 - k for k in range(4 + n)} for n in range(3)}
    second = {q: {doc: -score for doc, score in hits.items()} for q, hits in first.items()}
    Run(first).save(folder / "a.trec")
    Run(second).save(folder / "b.trec")
    return folder / "a.trec", folder / "b.trec"


def test_a_fusion_is_fitted_on_dev_and_named_in_yaml(
    sluice: Call, config: Path, world: Path, tmp_path: Path
) -> None:
    code, _, err = sluice("evaluate", config)
    assert (code, "`sluice fit fusion`" in err) == (2, True)
    words = ("fit", "fusion", config, "bm25", "dense", "--method", "weighted")
    file = tmp_path / "fusion.json"
    code, out, err = sluice(*words, "--normalise", "z-score", "--output", file)
    assert code == 0, err
    fitted = FusionFit.load(file)
    assert f"nDCG@10 {fitted.value:.4f} on 8 dev queries" in out
    assert f"in a pipeline: weighted(bm25, dense, fitted='{file}')" in out
    dev = load_dataset(world, "dev")
    runs = []
    for name in ("bm25", "dense"):
        retriever = Retriever.open(
            tmp_path / "out" / "retrievers" / name, allow=["small_world:WordEncoder"]
        )
        runs.append(Run(dict(retriever.run(dev.queries, None, 1000)), name=name))
    expected = fit_fusion(runs, dev.qrels, methods=["weighted"], normalise=["z-score"])
    assert fitted.origin["pipelines"] == ["bm25", "dense"]
    assert replace(fitted, origin={}) == replace(expected, parts=("bm25", "dense"))
    code, out, err = sluice("evaluate", config)
    assert (code, "hybrid" in out) == (0, True), err


def test_what_a_fusion_cannot_be_fitted_to(sluice: Call, config: Path, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "f.json")
    for words, message in (
        (("bm25",), "expected at least two retrievers or pipelines"),
        (("bm25", "dnse"), "did you mean 'dense'"),
        (("bm25", "dense", "evaluate.split=dev"), "fitting on the test"),
        (("bm25", "dense", "--split", "test"), "never the test"),
        (("bm25", "dense", "--method", "weigthed"), "did you mean 'weighted'"),
    ):
        code, _, err = sluice("fit", "fusion", config, *words, *output)
        assert (code, message in err) == (2, True), (words, err)
    assert not (tmp_path / "f.json").exists()


def test_mining_by_the_mean_of_the_positives(sluice: Call, world: Path, tmp_path: Path) -> None:
    data = load_dataset(world, "train")
    scores = {q: {"d39": 0.9, "d38": 0.5, "d37": 0.2} for q in data.queries}
    for query, grades in data.qrels.items():
        relevant = [doc for doc, grade in grades.items() if grade > 0]
        scores[query] |= dict(zip(relevant, (1.0, 0.3), strict=False))
    Run(scores).save(tmp_path / "run.trec")
    counts = {}
    for which in ("lowest", "mean", "highest"):
        output = tmp_path / f"{which}.jsonl"
        words = ("mine", tmp_path / "run.trec", world, "--output", output, "--positives", which)
        code, _, err = sluice(*words)
        assert code == 0, err
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        counts[which] = sum(len(row["neg"]) for row in rows)
    assert counts["lowest"] < counts["mean"] < counts["highest"]
    code, _, err = sluice(*words[:-1], "most")
    assert (code, "--positives: 'most'" in err) == (2, True)


def test_overlap_of_two_runs(sluice: Call, tmp_path: Path) -> None:
    first, second = saved_runs(tmp_path)
    words = ("compare", first, second, "--overlap", "-k", 3, "-p", 0.8, "--format", "json")
    code, out, err = sluice(*words)
    assert code == 0, err
    (row,) = json.loads(out)["systems"]
    alike = compare_rankings(Run.load(first), Run.load(second), k=3, p=0.8)
    assert row == {
        "name": "b", "RBO": alike.rbo, "overlap@3": alike.overlap, "Kendall's tau": -1.0,
        "queries": 3,
    }  # fmt: skip
    qrels = tmp_path / "qrels"
    qrels.write_text("q0 0 d1 1\nq1 0 d2 1\nq2 0 d0 1\n")
    code, out, _ = sluice("compare", first, second, "--qrels", qrels, "--overlap")
    assert (code, "win/tie/loss" in out, "overlap@10" in out) == (0, True, True)
    for options, message in (
        ((), "no judgements; give --qrels FILE, or --overlap"),
        (("--overlap", "-m", "AP"), "--measure: is for judged runs"),
        (("--qrels", qrels, "-k", 5), "--k: is for --overlap"),
        (("--overlap", "-p", 1.5), "expected a number between 0 and 1"),
    ):
        code, _, err = sluice("compare", first, second, *options)
        assert (code, message in err) == (2, True), err


def test_hubness_of_a_run_and_of_a_retriever(sluice: Call, world: Path, tmp_path: Path) -> None:
    first, _ = saved_runs(tmp_path)
    code, out, err = sluice("diagnose", "hubness", first, "-k", 2, "--documents", 50, "--json")
    assert code == 0, err
    expected = hubness(Run.load(first), 2, documents=50)
    assert json.loads(out)["skewness"] == expected.skewness
    assert json.loads(out)["hubs"] == [["d0", 3], ["d1", 3]]
    data = load_dataset(world, "test")
    retriever = Retriever.build(BM25Encoder(), data.corpus, path=tmp_path / "bm25")
    expected = hubness(retriever.run(data.queries, None, 5), 5, documents=40)
    code, out, err = sluice("diagnose", "hubness", tmp_path / "bm25", "--dataset", world, "-k", 5)
    assert code == 0, err
    assert f"skewness of N_5    {expected.skewness:.4f}" in out
    assert f"never retrieved    {expected.never:.2%}" in out
    for words, message in (
        ((tmp_path / "bm25",), "--dataset: missing"),
        ((first, "--dataset", world), "--dataset: is for a retriever's folder"),
        ((tmp_path / "bm25", "--dataset", world, "--documents", 9), "a retriever knows its own"),
    ):
        code, _, err = sluice("diagnose", "hubness", *words)
        assert (code, message in err) == (2, True), err


def test_the_compatibility_matrix(sluice: Call, world: Path, tmp_path: Path) -> None:
    data = load_dataset(world, "test")
    opened = {}
    for name, b in (("old", 0.1), ("new", 0.9)):
        opened[name] = Retriever.build(BM25Encoder(b=b), data.corpus, path=tmp_path / name)
    words = ("diagnose", "compatibility", tmp_path / "old", tmp_path / "new", "--dataset", world)
    code, out, err = sluice(*words, "-m", "RR@10", "--format", "json")
    assert code == 0, err
    expected = compatibility_matrix(opened, data, "RR@10")
    rows = json.loads(out)["systems"]
    assert [row["name"] for row in rows] == ["old", "new"]
    assert [[row["on old"], row["on new"]] for row in rows] == list(map(list, expected.matrix))
    code, _, err = sluice(*words[:3], "--dataset", world)
    assert (code, "expected at least two retrievers" in err) == (2, True)


def test_the_schema_of_yaml_files(sluice: Call, tmp_path: Path) -> None:
    code, out, _ = sluice("config", "schema")
    assert code == 0
    parts = json.loads(out)["$defs"]
    assert {"dataset", "retrievers", "pipelines"} <= set(parts["ExperimentConfig"]["properties"])
    file = tmp_path / "schema.json"
    assert sluice("config", "schema", "--output", file)[0] == 0
    assert file.read_text() == out


def test_measures_separated_by_commas(sluice: Call, tmp_path: Path) -> None:
    first, _ = saved_runs(tmp_path)
    (tmp_path / "qrels").write_text("q0 0 d1 1\nq1 0 d2 1\n")
    words = ("score", first, tmp_path / "qrels", "-m", "ndcg@10,map", "-m", "RBP(p=0.8), P@5")
    code, out, err = sluice(*words)
    assert code == 0
    assert re.findall(r"^(\S+)\tall", out, flags=re.M) == ["nDCG@10", "AP", "RBP(p=0.8)", "P@5"]
    assert "1 query of the run has no judgements; ignored" in err
    scores = evaluate(Run.load(first), {"q0": {"d1": 1}, "q1": {"d2": 1}}, ["AP"])
    assert f"AP\tall\t{scores.mean['AP']:.4f}" in out
    assert split_measures(["f(a,b),c"]) == ["f(a,b)", "c"]
    assert split_measures(None, ["AP"]) == split_measures([","], ["AP"]) == ["AP"]


def test_counts_have_their_noun() -> None:
    assert [plural(n, "query") for n in (0, 1, 1200)] == ["0 queries", "1 query", "1,200 queries"]
    assert plural(1, "document") == "1 document"


def test_queries_come_from_a_prompt_or_from_the_input(
    sluice: Call, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.yaml").write_text(
        f"dataset: {world}\noutput: {tmp_path / 'out'}\nretrievers: {{bm25: bm25}}\n"
    )
    assert sluice("index", tmp_path / "x.yaml")[0] == 0
    folder = tmp_path / "out"

    def searched(text: str, *words: object, terminal: bool = False) -> tuple[int, str, str]:
        stream = io.StringIO(text)
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "stdin", stream)
        return sluice("search", folder, "-k", 2, *words)

    code, out, _ = searched("word7\n\n nowhere\n")
    assert code == 0
    assert out.startswith("> word7\n  1 ")
    assert out.endswith("> nowhere\nno hits\n")
    _, out, _ = searched("word7\nword3\n", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["query"], line["doc_id"]) for line in lines] == [
        ("word7", "d07"),
        ("word3", "d03"),
    ]
    assert searched("")[0] == 2
    code, out, err = searched("number\n:k 1\nnumber\n:k x\n\nword7\n", terminal=True)
    assert (code, out.count("  1  "), out.count("  2  ")) == (0, 2, 1)
    assert "d07" not in out
    assert "An empty line ends" in err
    assert ":k x: expected a number of hits" in err
    assert searched("word7", terminal=True)[0] == 0, "the end of the input ends it"


@pytest.mark.thorough
def test_one_bm25_query_loads_nothing_heavy(sluice: Call, world: Path, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        f"dataset: {world}\noutput: {tmp_path / 'out'}\n"
        "retrievers:\n  bm25: {encoder: {type: bm25}}\n"
        "rerankers: {cross: {type: cross_encoder, model: nowhere}}\n"
        "pipelines: {all: bm25 >> cross, top: bm25 % 5}\n"
    )
    assert sluice("index", tmp_path / "x.yaml")[0] == 0
    heavy = ["torch", "transformers", "datasets", "pandas", "numba", "scipy.stats", "faiss"]
    for folder in (tmp_path / "out", tmp_path / "out" / "retrievers" / "bm25"):
        code = (
            "import atexit, sys; from sluice.retrieval.cli import main; "
            f"sys.argv = ['sluice', 'search', {str(folder)!r}, 'word7']; "
            f"atexit.register(lambda: print([m for m in {heavy} if m in sys.modules])); main()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "d07" in done.stdout
        assert done.stdout.splitlines()[-1] == "[]"


class TestAnExperiment:
    """``search`` and ``explain`` over an experiment's output agree on what to open."""

    @pytest.fixture
    def output(self, sluice: Call, world: Path, tmp_path: Path) -> Path:
        output = tmp_path / "out"
        (tmp_path / "x.yaml").write_text(
            f"dataset: {world}\noutput: {output}\n"
            "retrievers: {bm25: {encoder: {type: bm25}}}\n"
            "pipelines: {top: bm25 % 5}\n"
        )
        assert sluice("index", tmp_path / "x.yaml")[0] == 0
        return output

    def test_the_only_pipeline_needs_no_name(self, sluice: Call, output: Path) -> None:
        named = sluice("search", output, "word7", "--pipeline", "top")[1]
        assert "d07" in named
        assert sluice("search", output, "word7") == (0, named, "")
        out = sluice("explain", output, "word7")[1]
        assert "d07" in out
        assert "top" in out or "bm25" in out
        assert sluice("search", output, "nowhere")[1] == "no hits\n"

    def test_the_last_of_several_is_taken_and_named(
        self, sluice: Call, output: Path, tmp_path: Path
    ) -> None:
        sluice("index", tmp_path / "x.yaml", "pipelines.all=bm25")
        for verb in ("search", "explain"):
            code, out, err = sluice(verb, output, "word7")
            assert (code, "d07" in out) == (0, True)
            assert err == "searching with the last pipeline, all; --pipeline takes top too\n"
        suite = tmp_path / "suite" / "datasets"
        suite.mkdir(parents=True)
        output.rename(suite / "mine")
        for verb in ("search", "explain"):
            code, _, err = sluice(verb, tmp_path / "suite", "word7")
            assert (code, f"name one of them: {suite}/NAME (mine)" in err) == (2, True)
