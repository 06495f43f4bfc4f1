"""A report stands alone: its sentence, what was run, what columns mean; and two are compared."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from report_world import HOSTILE, QUERIES, SYSTEMS, world

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.provenance import command_line
from sluice.retrieval import Run, evaluate
from sluice.retrieval.evaluation.measure_table import MEASURES
from sluice.retrieval.evaluation.significance import paired_t_test
from sluice.retrieval.retrievers.corpus.encoding import READING
from sluice.retrieval.studies.report.compared import build_comparison
from sluice.retrieval.studies.report.data import COSTS, MEANINGS, conclusion, meanings, short
from sluice.retrieval.studies.report.evaluated import open_sets
from sluice.retrieval.studies.report.failures import judges_few
from sluice.retrieval.studies.report.origin import origin_of
from sluice.retrieval.studies.report.page import build_report


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("standalone"))


def changed(folder: Path, file: str, change: Any) -> None:
    read, write = (json.loads, json.dumps) if file.endswith("json") else (yaml.safe_load, yaml.dump)
    content = read((folder / file).read_text(encoding="utf-8"))
    change(content)
    (folder / file).write_text(write(content), encoding="utf-8")


@pytest.fixture
def copy(output: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(output, tmp_path / "later"))


def sentence(folder: Path, **changes: Any) -> str:
    given = open_sets(folder)[0]
    for system in given.systems:
        system["measures"]["nDCG@10"] = changes.get(system["name"], 0.1)
    for each in given.results["comparisons"]:
        each |= {"difference": 0.139, "low": 0.105, "high": 0.173, "significant": True}
        each |= changes.get("test", {})
    return conclusion(given)


def test_the_first_sentence_says_the_result(output: Path) -> None:
    assert sentence(output, reranked=0.511) == (
        "reranked is best: nDCG@10 .511, +.139 [+.105, +.173] over bm25, 4.5 ms a query; "
        "bm25 is the fastest, 1.5 ms a query."
    )
    doubtful = sentence(output, reranked=0.511, test={"significant": False})
    assert "over bm25, which may be chance, 4.5 ms" in doubtful
    first = sentence(output, bm25=0.511)
    assert (
        first == "bm25, the baseline, is best: nDCG@10 .511, 1.5 ms a query; it is the fastest too."
    )
    assert sentence(output, bm25=0.2, reranked=0.2).startswith("bm25 and reranked are best: ")
    assert [short(value) for value in (0.5114, -0.02, 1.25, 0.9996)] == [
        ".511", "−.020", "1.250", "1.000",
    ]  # fmt: skip


def test_what_was_run(copy: Path) -> None:
    section = {"type": "dense", "model": "ft", "document_length": 64}
    trained = {
        "encoder": {"type": "dense", "model": "tiny"}, "loss": {"type": "info_nce"},
        "trainer": {"max_steps": 7, "learning_rate": 0.5, "bf16": True},
    }  # fmt: skip
    changed(copy, "experiment.yaml", lambda config: config.update(
        retrievers={"bm25": {"encoder": "bm25"}, "dense": {"encoder": section}},
        rerankers={"cross": {"type": "cross_encoder", "model": "big"}}, train={"ft": trained},
        pipelines={**dict.fromkeys(SYSTEMS[:3], "bm25"), "reranked": "dense >> cross(depth=20)"},
        seed=77,
    ))  # fmt: skip
    changed(copy, "results.json", lambda results: results["origin"].update(
        command="sluice run x.yaml", packages={"torch": "9.9"}, git_commit="abcdef0123456789",
        machine={"platform": "Linux-x", "python": "3.11.1", "cpus": 2},
    ))  # fmt: skip
    made = {"part": "train.ft", "seconds": 130, "peak_memory_bytes": 1_234_567_890}
    old = {"part": "retrievers.dense", "seconds": 2.5, "peak_memory_bytes": None}
    changed(copy, "results.json", lambda results: results.update(parts=[made, old]))
    told = dict(read=1, cut=1)
    reading = {"documents": 60, "cut": 20, "tokens": 100, "unread": 25, "limit": 64}
    changed(copy / "retrievers" / "bm25", "retriever.json",
            lambda head: head["origin"].update({READING: reading, **told}))  # fmt: skip
    origin = origin_of(open_sets(copy)[0])
    parts = dict(origin["parts"])
    assert parts["bm25"] == (
        "bm25; 20 of 60 documents are longer than 64 tokens; 25 % of the text is not read"
    )
    assert parts["dense"] == "dense ft (document_length 64); made in 2.5 s"
    assert parts["cross"] == "reranker: cross_encoder big"
    assert parts["ft"] == (
        "trained: dense tiny; loss info_nce; steps 7, learning rate 0.5, bf16; made in 2 min 10 s, "
        "at most 1,235 MB of memory"
    )
    facts = dict(origin["facts"])
    assert facts["data"] == f"data, split test: 60 documents, {QUERIES} queries, 90 judgements"
    assert (facts["seed"], facts["command"]) == ("77", "sluice run x.yaml")
    assert facts["machine"] == "Linux-x, 2 CPUs"
    assert facts["versions"] == "Python 3.11.1, torch 9.9"
    assert facts["commit"] == "abcdef012345"
    assert yaml.safe_load(origin["config"])["pipelines"]["reranked"] == "dense >> cross(depth=20)"


def test_the_page_says_all_without_scripts(output: Path, tmp_path: Path) -> None:
    text = build_report(output, output=tmp_path / "page.html", queries=2).read_text("utf-8")
    body = text.split("<main", 1)[1].split("</main>")[0]
    assert conclusion(open_sets(output)[0]) in body
    assert "<caption>† differs from bm25" in body
    assert body.count('<th scope="row">') >= len(SYSTEMS) + 4
    assert "&lt;b&gt;bold&lt;/b&gt;" in body
    assert "onerror=window.hacked=1>" not in body
    assert "retrievers:\n" in body


def test_every_column_has_a_meaning() -> None:
    assert set(MEANINGS) == set(MEASURES)
    told = meanings(["nDCG@10", "R(rel=2)@100", "RR", *COSTS, "mine.module:own", "other"])
    assert told["nDCG@10"].startswith("gain of the first 10 documents")
    assert told["R(rel=2)@100"].endswith("the first 100 (relevant is a grade of 2 or more)")
    assert "among all retrieved" in told["RR"]
    assert set(told) == {"nDCG@10", "R(rel=2)@100", "RR", *COSTS}


def test_collections_of_one_positive_a_query_are_recognised() -> None:
    assert judges_few({"a": {"d": 1}, "b": {"e": 1, "f": 2}})
    assert not judges_few({"a": {"d": 1}, "b": {"e": 0}})
    assert not judges_few({"a": {"d": 1, "e": 1, "f": 1}})
    assert not judges_few({})


def test_the_command_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, expected in (
        ("/usr/bin/sluice", "sluice run 'a b.yaml'"),
        ("/lib/sluice/__main__.py", "python -m sluice run 'a b.yaml'"),
        ("/usr/bin/pytest", None),
    ):
        monkeypatch.setattr("sys.argv", [program, "run", "a b.yaml"])
        assert command_line() == expected


def test_two_reports_are_compared_query_by_query(
    sluice: Call, output: Path, copy: Path, tmp_path: Path
) -> None:
    runs = copy / "runs"
    shutil.copy(runs / "bm25.trec.gz", runs / "reranked.trec.gz")  # better by far
    (runs / f"{SYSTEMS[1]}.trec.gz").rename(runs / "new.trec.gz")
    changed(copy, "results.json", lambda results: results["systems"][1].update(name="new"))
    changed(copy, "experiment.yaml", lambda config: config.update(seed=99))
    target = tmp_path / "x" / "page.html"
    code, out, err = sluice("report", output, copy, "--output", target)
    assert (code, err) == (0, "")
    assert out == f"{target}: {target.stat().st_size:,} bytes\n"
    text = target.read_text(encoding="utf-8")
    qrels = open_sets(output)[0].dataset.qrels
    one, two = (
        np.array(list(evaluate(Run.load(each / "runs" / "reranked.trec.gz"), qrels, ["nDCG@10"])
                      .per_query["nDCG@10"].values()))
        for each in (output, copy)
    )  # fmt: skip
    difference = float((two - one).mean())
    row = text.split('class="">reranked</th>')[1].split("</tr>")[0]
    assert f">+{difference:.4f}†<" in row
    assert f">{paired_t_test(two, one) * 3:.2g}<" in row  # Holm over three systems, the least p
    assert "1 of 3 systems differs significantly from data-out: reranked +" in text
    assert "Only in later: new." in text
    assert f"Only in data-out: {SYSTEMS[1].replace('<', '&lt;').replace('>', '&gt;')}." in text
    assert ">seed</th>" in text
    assert ">99<" in text
    assert "window.hacked=1></script>" not in text
    assert HOSTILE not in text
    assert "<script" not in text
    assert "script-src" not in text
    assert "the queries that changed most in nDCG@10" in text


def test_what_cannot_be_compared_is_refused(output: Path, copy: Path, sluice: Call) -> None:
    with pytest.raises(ConfigError, match="given twice"):
        build_comparison(output, output)
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        build_comparison(output, copy, output="x.pdf")
    code, _, err = sluice("report", output, copy, output)
    assert (code, "or two to compare" in err) == (2, True)
    code, _, err = sluice("report", output, copy, "--queries", 3)
    assert (code, "--queries" in err) == (2, True)
    changed(copy, "results.json", lambda results: results.update(dataset="elsewhere"))
    with pytest.raises(DataError, match="no dataset with the same queries"):
        build_comparison(output, copy)
