"""The command line: journeys through every verb, and one clear line for every bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import Call
from small_world import write_beir


@pytest.fixture
def config(tmp_path: Path) -> Path:
    values = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": {"bm25": "bm25", "top5": "bm25 % 5"},
        "evaluate": {"latency_queries": 2},
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return file


def test_the_journey_from_index_to_comparison(sluice: Call, config: Path, tmp_path: Path) -> None:
    retriever = tmp_path / "out" / "retrievers" / "bm25"
    data = tmp_path / "data"
    code, out, _ = sluice("index", config)
    assert (code, "40 documents" in out) == (0, True)
    code, out, _ = sluice("evaluate", config, "evaluate.measures=[RR@10]")
    assert code == 0
    assert "RR@10" in out
    code, out, _ = sluice("run", config)
    assert "Try next:" in out
    code, out, _ = sluice("search", retriever, "word7", "-k", 3)
    assert "d07" in out
    code, out, _ = sluice("search", tmp_path / "out", "word7", "--pipeline", "top5", "--json")
    assert json.loads(out.splitlines()[0])["doc_id"] == "d07"
    run = tmp_path / "run.trec.gz"
    code, out, _ = sluice(
        "search", retriever, "--queries", data / "queries.jsonl", "-k", 20, "--output", run
    )
    assert (code, "28 queries" in out) == (0, True)
    qrels = data / "qrels" / "test.tsv"
    code, out, err = sluice("score", run, qrels, "-m", "ndcg_cut_10", "-m", "map", "-q")
    assert code == 0
    assert out.splitlines()[-2].startswith("nDCG@10\tall\t")
    assert len(out.splitlines()) == 2 * 9
    assert "20 queries of the run have no judgements" in err
    other = tmp_path / "out" / "runs" / "top5.trec.gz"
    code, out, _ = sluice("compare", run, other, "--qrels", qrels, "-m", "R@100")
    assert "win/tie/loss" in out
    for form in ("markdown", "csv", "latex", "html", "json"):
        assert sluice("compare", run, other, "--qrels", qrels, "--format", form)[0] == 0
    negatives = tmp_path / "negatives.jsonl"
    code, out, _ = sluice("mine", retriever, data, "--output", negatives, "--per-query", 2)
    assert code == 0
    assert len(json.loads(negatives.read_text().splitlines()[0])["neg"]) == 2
    assert (tmp_path / "negatives.report.json").exists()
    assert (tmp_path / "negatives.provenance.parquet").exists()
    arguments = ("mine", retriever, data, "--output", negatives, "--mode", "margin")
    also = ("--also", run, "--adaptive-margin", "0,0.1", "--audit", 0.1, "--split", "test")
    code, out, _ = sluice(*arguments, *also)
    assert (code, "found by: " in out, "decides by" in out) == (0, True, True)
    assert (tmp_path / "negatives.audit.md").read_text().startswith("| mode | decides by")
    assert sluice(*arguments, "--adaptive-margin", "a")[0] == 2
    code, out, _ = sluice("verify", tmp_path / "out")
    assert "are intact" in out
    code, out, _ = sluice("data", data)
    assert json.loads(out)["documents"] == 40


def test_add_and_delete_by_id(sluice: Call, config: Path, tmp_path: Path) -> None:
    retriever = tmp_path / "out" / "retrievers" / "bm25"
    sluice("index", config)
    new = tmp_path / "new.jsonl"
    new.write_text('{"_id": "n1", "title": "", "text": "brandnew words"}\n', encoding="utf-8")
    assert "1 added, 41 documents" in sluice("add", retriever, new)[1]
    assert "n1" in sluice("search", retriever, "brandnew")[1]
    code, _, err = sluice("add", retriever, new)
    assert (code, "'n1' is already there" in err) == (2, True)
    assert "2 deleted, 39 documents" in sluice("delete", retriever, "n1", "d00", "--compact")[1]
    assert sluice("search", retriever, "brandnew")[1] == "no hits\n"
    assert sluice("search", retriever, "brandnew", "--json")[1] == ""
    code, _, err = sluice("delete", retriever, "n1")
    assert (code, "no document 'n1'" in err) == (2, True)
    code, _, err = sluice("delete", retriever)
    assert code == 2
    assert f"{retriever}: 1 added, 40 documents" in sluice("add", tmp_path / "out", new)[1]
    _, out, err = sluice("search", tmp_path / "out", "brandnew", "--pipeline", "top5")
    assert ("n1" in out, "40 documents, 2 added, 2 deleted since the build" in err) == (True, True)
    code, _, err = sluice("index", config, "retrievers.bm25.encoder.k1=2.0")
    assert (code, "a rebuild would lose what was changed" in err, "--rebuild" in err) == (
        2,
        True,
        True,
    )
    assert "40 documents" in sluice("index", config, "seed=3", "--rebuild")[1]


def test_update_filter_and_explain(sluice: Call, config: Path, tmp_path: Path) -> None:
    retriever = tmp_path / "out" / "retrievers" / "bm25"
    sluice("index", config)
    new = tmp_path / "new.jsonl"
    lines = [
        {"_id": "d00", "text": "brandnew words", "metadata": {"lang": "en", "year": 2021}},
        {"_id": "n1", "text": "brandnew things", "metadata": {"lang": "de", "code": "7"}},
    ]
    new.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    out = sluice("update", retriever, new)[1]
    assert "1 added, 1 replaced, 0 unchanged, 41 documents" in out

    def found(*words: object) -> list[str]:
        out = sluice("search", retriever, "brandnew", "--json", *words)[1]
        return sorted(json.loads(line)["doc_id"] for line in out.splitlines())

    assert found() == ["d00", "n1"]
    assert found("--where", "lang=en") == ["d00"]
    assert found("--where", "lang=en", "--where", "year>=2022") == []
    assert found("--where", 'code="7"') == found("--where", "year=null") == ["n1"]
    code, _, err = sluice("search", retriever, "brandnew", "--where", "code=7")
    assert (code, "where.code: 7 is integer" in err) == (2, True)
    code, _, err = sluice("search", retriever, "x", "--where", "lnag=en")
    assert (code, "did you mean 'lang'?" in err) == (2, True)
    pipeline = ("search", tmp_path / "out", "brandnew", "--pipeline", "top5", "--where")
    _, out, _ = sluice(*pipeline, "lang=en")
    assert (out.count("\n"), "d00" in out) == (2, True)
    code, _, err = sluice(*pipeline, "lnag=en")
    assert (code, "did you mean 'lang'?" in err) == (2, True)

    _, out, _ = sluice("explain", retriever, "brandnew things", "n1")
    engine, _, out = out.partition("\n")
    assert engine.startswith("engine: ")
    assert out.startswith("n1  score ")
    assert "rank 1" in out
    assert {"brandnew", "thing"} <= set(out.split())
    _, out, _ = sluice("explain", retriever, "brandnew things", "-k", 2, "--json")
    hits = [
        json.loads(line)
        for line in sluice("search", retriever, "brandnew things", "--json")[1].splitlines()
    ]
    explained = [json.loads(line) for line in out.splitlines()]
    assert [(e["doc_id"], e["score"]) for e in explained] == [
        (hit["doc_id"], hit["score"]) for hit in hits
    ]
    assert explained[0]["terms"][0].keys() == {"term", "query_weight", "impact", "contribution"}
    assert "is not a hit" in sluice("explain", retriever, "brandnew", "d01")[1]
    code, _, err = sluice("explain", retriever, "brandnew", "nobody")
    assert (code, "no document 'nobody'" in err) == (2, True)


def bad(tmp_path: Path, name: str, content: str | bytes) -> Path:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n{broken\n', ":2: "),
        ("corpus.jsonl", '{"_id": "a"}\n', "text"),
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n' * 2, ":2: .*'a'"),
        ("corpus.jsonl", "", "empty|no documents"),
        ("corpus.jsonl", b'{"_id": "a", "text": "\xff"}\n', "UTF-8"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq20\td01\tgood\n", ":2: .*good"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq20\td01\n", ":2: "),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "no judgements|empty"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nx\td01\t1\n", "none"),
        ("queries.jsonl", '{"_id": "q20", "text": "a"}\n' * 2, ":2: .*'q20'"),
    ],
)
def test_bad_datasets_end_in_one_line(
    sluice: Call, config: Path, tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    import re

    file = bad(tmp_path / "data", name, content)
    code, _, err = sluice("run", config)
    last = err.strip().splitlines()[-1]
    assert code == 2
    assert last.startswith("error: ")
    assert str(file) in last
    assert re.search(message, last), last
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1 Q0 d1 1 0.5\n", r"(:|line )1\b"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d2 2 high t\n", r"(:|line )2\b.*high"),
        ("q1 Q0 d1 1 0.5 t\nq1 Q0 d1 2 0.4 t\n", "d1"),
        ("q1 Q0 d1 1 nan t\n", "nan"),
        ("", "empty"),
        (b"q1 Q0 d\xff 1 0.5 t\n", "UTF-8"),
    ],
)
def test_bad_runs_end_in_one_line(
    sluice: Call, tmp_path: Path, content: str | bytes, message: str
) -> None:
    import re

    run = bad(tmp_path, "x.trec", content)
    qrels = bad(tmp_path, "qrels.txt", "q1 0 d1 1\n")
    code, _, err = sluice("score", run, qrels)
    assert code == 2
    assert re.search(message, err)
    assert str(run) in err


def test_other_bad_input_ends_in_one_line(sluice: Call, config: Path, tmp_path: Path) -> None:
    run = bad(tmp_path, "x.trec", "q1 Q0 d1 1 0.5 t\n")
    qrels = bad(tmp_path, "qrels.txt", "q1 0 d1 1\n")
    cases = [
        (("score", run, qrels, "-m", "nDGC@10"), "nDCG"),
        (("score", tmp_path / "none.trec", qrels), "none.trec"),
        (("score", run, bad(tmp_path, "other.txt", "z 0 d1 1\n")), "do not match"),
        (("compare", run, "--qrels", qrels), "two runs"),
        (("compare", run, run, "--qrels", qrels, "--format", "xls"), "--format"),
        (("search", tmp_path, "x"), "retriever folder"),
        (("search", tmp_path, "x", "--queries", run), "not two"),
        (("verify", tmp_path), "neither"),
        (("run", tmp_path / "none.yaml"), "no such file"),
        (("run", config, "dataset=nowhere"), "nowhere"),
        (("run", config, "retrievers.bm25.encoder={type: dense, model: ./none}"), "./none"),
        (("index", config, "--only", "bm52"), "did you mean 'bm25'"),
        (("train", config), "an experiment, not one training"),
        (
            ("mine", tmp_path / "none", tmp_path / "data", "--output", "n.jsonl"),
            "does not exist",
        ),
        (("data", "nowhere"), "nowhere"),
        (("run", config, "evaluate.split=tset"), "did you mean 'test'"),
    ]
    for words, message in cases:
        code, _, err = sluice(*words)
        assert code == 2, words
        last = err.strip().splitlines()[-1]
        assert last.startswith("error: "), words
        assert message in last, (words, last)


@pytest.mark.parametrize("module", ["retrieval", "encoders", "indexing", "training"])
def test_imports_are_light(module: str) -> None:
    heavy = "{'torch', 'faiss', 'numba', 'transformers', 'ranx', 'datasets', 'pyarrow', 'pandas'}"
    code = f"import sys, {module}; found = {heavy} & set(sys.modules); sys.exit(str(found or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    "words", [["--help"], ["import", "-h"], ["export", "-h"], ["compare", "-h"]]
)
def test_help_is_light(words: list[str]) -> None:
    help_code = (
        f"import sys; sys.argv = ['sluice', *{words}]\n"
        "from sluice.retrieval.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'faiss', 'numba', 'transformers', 'numpy', 'scipy'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", help_code], capture_output=True, check=True)
