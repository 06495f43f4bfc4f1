"""``sluice score`` and ``sluice compare`` on the files that users have."""

import json
from pathlib import Path

import pytest
import yaml
from command_line import Call
from small_world import write_beir

RUN = "q1 Q0 a 1 2.0 t\nq1 Q0 b 2 1.0 t\n"
QRELS = "q1 0 b 1\nq2 0 c 1\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "other.trec").write_text(RUN + "z Q0 a 1 1.0 t\n")
    (tmp_path / "qrels").write_text(QRELS)
    return tmp_path


def test_an_argument_written_as_an_option(sluice: Call) -> None:
    code, _, err = sluice("score", "run.trec", "--qrels", "qrels.tsv")
    assert code == 2
    assert err.endswith("; QRELS is a plain word, without --qrels\n")


def test_measures_of_every_kind(files: Path, sluice: Call) -> None:
    spelled = ["num_rel_ret", "NumRet", "Rprec", "bpref", "rbp", "iprec_at_recall_0.10", "R_cap@2"]
    options = [word for text in spelled for word in ("-m", text)]
    code, out, _ = sluice("score", files / "run.trec", files / "qrels", *options)
    assert code == 0
    assert dict(line.split("\tall\t") for line in out.splitlines()) == {
        "NumRelRet": "1.0000", "NumRet": "2.0000", "Rprec": "0.0000", "Bpref": "0.5000",
        "RBP(p=0.8)": "0.0800", "IPrec@0.1": "0.2500", "R_cap@2": "0.5000",
    }  # fmt: skip


def test_queries_of_one_file_alone_are_said(files: Path, sluice: Call) -> None:
    run, other, qrels = files / "run.trec", files / "other.trec", files / "qrels"
    _, out, err = sluice("compare", run, other, "--qrels", qrels, "--format", "json")
    assert [row["nDCG@10"] for row in json.loads(out)["systems"]] == [
        pytest.approx(0.3155, abs=1e-4)
    ] * 2
    assert err.splitlines() == [
        "run: 1 judged query is not in the run; scored 0",
        "other: 1 judged query is not in the run; scored 0",
        "other: 1 query of the run has no judgements; ignored",
    ]


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1 0 b 1.0\n", ":1: grade '1.0' is not a whole number"),
        ("q1 0 a 0\nq1 0 b 0.5\n", ":2: grade '0.5' is not a whole number"),
        ("q1 0 a 1\nq1 0 a 2\n", ":2: document 'a' of query 'q1' has grade 2"),
        ("q1 0 a 1\nq1 a 1\n", ":2: 3 columns"),
        ("\n", "no judgements"),
    ],
)
def test_bad_qrels_are_named_with_their_line(
    files: Path, sluice: Call, qrels: str, message: str
) -> None:
    (files / "bad").write_text(qrels)
    run, other, bad = files / "run.trec", files / "other.trec", files / "bad"
    for words in (("score", run, bad), ("compare", run, other, "--qrels", bad)):
        code, out, err = sluice(*words)
        assert (code, out) == (2, "")
        assert message in err
        assert str(bad) in err


def judged_by_both(folder: Path, sluice: Call, qrels: str) -> list[tuple[int, str]]:
    """Evaluate BM25 on a BEIR folder with these judgements, and score its run against the file."""
    data = folder / "data"
    if not data.exists():
        write_beir(data)
        config = {
            "dataset": str(data),
            "retrievers": {"bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}},
            "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0, "report": False},
        }
        (folder / "x.yaml").write_text(yaml.safe_dump(config))
        sluice("evaluate", folder / "x.yaml", f"output={folder / 'first'}")
    file = data / "qrels" / "test.tsv"
    file.write_text(qrels)
    code, _, err = sluice("evaluate", folder / "x.yaml", f"output={folder / 'out'}")
    said = err
    if code == 0:
        results = json.loads((folder / "out" / "results.json").read_text())
        said = f"{results['systems'][0]['measures']['nDCG@10']:.4f}"
    run = folder / "first" / "runs" / "bm25.trec.gz"
    again, out, complaint = sluice("score", run, file, "-m", "nDCG@10")
    return [(code, said), (again, out.split()[-1] if again == 0 else complaint)]


def test_evaluate_and_score_read_one_qrels_file_alike(tmp_path: Path, sluice: Call) -> None:
    write_beir(tmp_path / "beir")
    header, *lines = (tmp_path / "beir" / "qrels" / "test.tsv").read_text().splitlines()
    assert header.startswith("query-id")
    rows = [line.split("\t") for line in lines]
    forms = [
        "\n".join([header, *lines]),
        "\n".join(lines + lines[:1]),  # one pair twice alike
        "\n".join(f"{query} 0 {doc} {grade}" for query, doc, grade in rows),
        "\n".join(f"{query}\tQ0\t{doc}\t{grade}" for query, doc, grade in rows),
        "\n".join(f"{query}  {doc} {grade}" for query, doc, grade in rows),
    ]
    values = {pair for text in forms for pair in judged_by_both(tmp_path, sluice, text)}
    assert len(values) == 1
    (code, value) = values.pop()
    assert code == 0
    assert 0 < float(value) <= 1
    other = f"{rows[0][0]}\t{rows[0][1]}\t{int(rows[0][2]) + 1}"
    evaluated, scored = judged_by_both(tmp_path, sluice, "\n".join([*lines, other]))
    assert evaluated[0] == scored[0] == 2
    expected = f"has grade {int(rows[0][2]) + 1}, and {rows[0][2]} in"
    message = scored[1].strip().splitlines()[-1]
    assert expected in message
    assert f"test.tsv:{len(lines) + 1}: " in message
    assert message.removeprefix("Error: ") in evaluated[1]


def test_a_bad_run_among_good_ones_is_named(files: Path, sluice: Call) -> None:
    (files / "twice.trec").write_text(RUN + "q1 Q0 a 3 0.5 t\n")
    (files / "two.trec").write_text(RUN + "q2 Q0 c 1 2.0 other\n")
    words = ("compare", files / "run.trec", files / "twice.trec", "--qrels", files / "qrels")
    code, _, err = sluice(*words)
    assert code == 2
    assert f"{files / 'twice.trec'}:3: document 'a' is listed twice for query 'q1'" in err
    code, _, err = sluice("score", files / "two.trec", files / "qrels")
    assert code == 0
    assert f"{files / 'two.trec'}:3: tag 'other', the lines before have 't'" in err
