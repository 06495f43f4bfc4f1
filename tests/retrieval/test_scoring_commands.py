"""``sluice score`` and ``sluice compare`` on the files that users have."""

import json
from pathlib import Path

import pytest
from command_line import Call

RUN = "q1 Q0 a 1 2.0 t\nq1 Q0 b 2 1.0 t\n"
QRELS = "q1 0 b 1\nq2 0 c 1\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "other.trec").write_text(RUN + "z Q0 a 1 1.0 t\n")
    (tmp_path / "qrels").write_text(QRELS)
    return tmp_path


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
        "run: 1 judged queries are not in the run; scored 0",
        "other: 1 judged queries are not in the run; scored 0",
        "other: 1 queries of the run have no judgements; ignored",
    ]


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1 0 b 1.0\n", ":1: grade '1.0' is no integer"),
        ("q1 0 a 0\nq1 0 b 0.5\n", ":2: grade '0.5' is no integer"),
        ("q1 0 a 1\nq1 0 a 2\n", ":2: document 'a' of query 'q1' has grade 2"),
        ("q1 0 a 1\nq1 a 1\n", ":2: 3 columns"),
        ("\n", "holds no judgements"),
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


def test_a_bad_run_among_good_ones_is_named(files: Path, sluice: Call) -> None:
    (files / "twice.trec").write_text(RUN + "q1 Q0 a 3 0.5 t\n")
    (files / "two.trec").write_text(RUN + "q2 Q0 c 1 2.0 other\n")
    words = ("compare", files / "run.trec", files / "twice.trec", "--qrels", files / "qrels")
    code, _, err = sluice(*words)
    assert code == 2
    assert f"{files / 'twice.trec'}:3: document 'a' is in the list of query 'q1'" in err
    code, _, err = sluice("score", files / "two.trec", files / "qrels")
    assert code == 0
    assert f"{files / 'two.trec'}:3: tag 'other', the lines before have 't'" in err
