import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.runs import columns
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.trec_files import read_qrels


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


GOOD = "q1 Q0 b 1 1.5 t\nq1 Q0 a 2 2.5 t\nq2 Q0 a 1 1 t\n"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.rstrip("\n"),
        GOOD.replace(" ", "\t"),
        GOOD.replace(" ", "  \t"),
        GOOD.replace("\n", "\r\n"),
        "\n  " + GOOD.replace("\n", " \n\n"),
        "\ufeff" + GOOD,
        GOOD.replace("Q0 ", "")
        .replace(" 1 1.5 t", " 1.5")
        .replace(" 2 2.5 t", " 2.5")
        .replace("a 1 1 t", "a +1"),
        "q1\tb\t1.5\nq2\ta\t1e0\nq1\ta\t2.5\n",
        gzip.compress(GOOD.encode(), mtime=0),
    ],
)
def test_run_forms(tmp_path: Path, text: str | bytes) -> None:
    run = Run.load(write(tmp_path, text))
    assert run.to_dict() == {"q1": {"a": 2.5, "b": 1.5}, "q2": {"a": 1.0}}
    assert list(run["q1"].doc_ids) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2\n", r":2: 4 columns; expected 6 columns"),
        ("q Q0 a 1 2.0 t\n\nq Q0 b 2 1.0 t x\n", r":3: 7 columns"),
        ("q Q0 a 1 2.0 t\nq  b 2 1.0 t\n", r":2: 5 columns"),
        ("word\n", r":1: 1 column;"),
        ("q a 1.0\nq Q0 b 1 0.5 t\n", r":2: 6 columns"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2 high t\n", r":2: score 'high'"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2 nan t\n", r":2: score 'nan'"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2 inf t\n", r":2: score 'inf'"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2 1_0 t\n", r":2: score '1_0'"),
        ("q Q0 a 1 2.0 t\nq Q0 b 2 1e60 t\n", r":2: score '1e60'"),
        ("q Q0 a 1 2.0 t\np Q0 a 1 2.0 t\nq Q0 a 2 1.0 t\n", r":3: document 'a'.*twice"),
        (b"q Q0 a 1 2.0 t\nq Q0 \xff 2 1.0 t\n", r":2: byte 5 of the line is not UTF-8"),
        (b"\x1f\x8bnot gzip", "cannot be read any further"),
        (gzip.compress(GOOD.encode(), mtime=0)[:-9], "cannot be read any further"),
    ],
)
def test_bad_runs_name_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Run.load(write(tmp_path, text))
    assert "file.txt" in str(caught.value)


@pytest.mark.parametrize("form", ["plain", "gzip", "spaced", "uneven"])
def test_tags_of_two_runs_are_warned_of(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = "q Q0 a 1 2.0 one\nq Q0 b 2 1.0 one\np Q0 a 1 1.0 two\n"
    if form == "uneven":  # a form that is read line by line
        text = text.replace("1.0 two", "+1.0 two")
    data: str | bytes = gzip.compress(text.encode()) if form == "gzip" else text
    path = write(tmp_path, text.replace(" ", "  ") if form == "spaced" else data)
    assert len(Run.load(path)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}:3: tag 'two', the lines before have 'one'; read as one run: check that the file "
        "is not two runs together"
    ]
    caplog.clear()
    Run.load(write(tmp_path, GOOD))
    Run.load(write(tmp_path, "q a 2.0\nq b 1.0\n"))
    assert not caplog.records


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Run.load(tmp_path / "none.trec")
    with pytest.raises(DataError, match="a folder; expected a file"):
        Run.load(tmp_path)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q1", "q2", "q10"]),
            st.text("aé本0", min_size=1, max_size=20),
            st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-3]),
        ),
        unique_by=lambda row: row[:2],
        min_size=1,
        max_size=40,
    )
)
def test_scattered_rows_with_ties_are_grouped_and_ordered(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, float]]
) -> None:
    text = "".join(f"{query} Q0 {doc} 1 {score} t\n" for query, doc, score in rows)
    run = Run.load(write(tmp_path_factory.mktemp("run"), text))
    hits: dict[str, dict[str, float]] = {}
    for query, doc, score in rows:
        hits.setdefault(query, {})[doc] = score
    expected = Run(hits)
    assert list(run) == list(expected)
    for query, ranking in expected.items():
        assert list(run[query].doc_ids) == list(ranking.doc_ids)
        np.testing.assert_array_equal(run[query].scores, ranking.scores)


def test_many_blocks(tmp_path: Path) -> None:
    """A file of several parser blocks, whose later blocks bring new queries."""
    lines = [f"query-{i // 400} Q0 document-{i * 37 % 100_003} {i} {-i} a-long-tag-{'x' * 60}"
             for i in range(90_000)]  # fmt: skip
    run = Run.load(write(tmp_path, "\n".join(lines)))
    assert len(run) == 225
    assert list(run)[-1] == "query-224"
    assert run["query-224"][0] == (f"document-{89_600 * 37 % 100_003}", -89_600.0)
    assert sum(map(len, run.values())) == 90_000


QRELS = {"q1": {"a": 1, "b": -2}, "q2": {"a": 0}}


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 a 1\nq1 0 b -2\nq2 0 a 0\n",
        "q1\t0\ta\t+1\nq1\tQ0\tb\t-2\nq2\t\ta\t0\n",
        "q1 \t0 \ta \t1\n q1  0\tb -2\nq2 0 a\t0\t\n",
        "query-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tb\t-2\nq2\ta\t0\n",
        "query-id corpus-id score\nq1 a 1\nq1 b -2\nq2 a 0\n",
        "\ufeffquery_id\tcorpus_id\tscore\nq1\ta\t1\nq1\tb\t-2\nq2\ta\t0",
        "q1\ta\t1\r\nq1\tb\t-2\r\n\r\nq2\ta\t0 \r\nq1\ta\t1\r\n",
        gzip.compress(b"q1 0 a 1\nq1 0 b -2\nq2 0 a 0\n", mtime=0),
    ],
)
def test_qrels_forms(tmp_path: Path, text: str | bytes) -> None:
    assert read_qrels(write(tmp_path, text)) == QRELS


def test_ids_may_hold_spaces_between_tabs(tmp_path: Path) -> None:
    text = "query-id\tcorpus-id\tscore\nq 1\t 1\t1\nq\u00a01\td\u2003e\t2\n"
    assert read_qrels(write(tmp_path, text)) == {"q 1": {" 1": 1}, "q\u00a01": {"d\u2003e": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no judgements"),
        ("query-id\tcorpus-id\tscore\n", "no judgements"),
        ("q 0 a 1\nq 0 b\n", r":2: 3 columns"),
        ("q\td\t1\nq\td\n", r":2: 2 columns; expected 4 columns"),
        ("q a\n", r":1: 2 columns"),
        ("q\t\t1\n", r":1: an empty id"),
        ("q\t0\t\t1\n", r":1: an empty id"),
        ("q 0 a 1\nq 0 b high\n", r":2: grade 'high' is not a whole number"),
        ("qid\tdocid\tgrade\nq\td\t1\n", r":1: grade 'grade'.*header line begins with 'query-id'"),
        ("q 0 a 1.5\n", r":1: grade '1.5' is not a whole number"),
        ("q\td\t" + "9" * 5000 + "\n", r":1: grade"),
        ("q 0 b 0\nq 0 a 1\n\nq 0 a 2\n", r":4: document 'a' of .* grade 2, and 1 in .*:2; keep"),
        ("query-id\tcorpus-id\tscore\nq\ta b\t1\nq\ta b\t0\n", r":3: document 'a b'.*:2; keep"),
        (b"q 0 a 1\nq 0 \xe9 1\n", r":2: byte 4 of"),
    ],
)  # fmt: skip
def test_bad_qrels_name_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_qrels(write(tmp_path, text))


def test_a_pair_judged_twice_alike_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "qrels.trec"
    file.write_text("q 0 a 1\nq 0 b 0\nq 0 a 1\nr 0 a 1\nq 0 b 0\n")
    with caplog.at_level("WARNING", "sluice"):
        assert read_qrels(file) == {"q": {"a": 1, "b": 0}, "r": {"a": 1}}
    assert "qrels.trec:3: judged before, with the same grade (2 such judgements)" in caplog.text


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_documents_listed_twice_are_found_whatever_the_hashes(
    monkeypatch: pytest.MonkeyPatch, rows: int, alike: bool
) -> None:
    monkeypatch.setattr(columns, "_CHUNK", rows)
    if alike:
        monkeypatch.setattr(columns, "_hashes", lambda ids: np.zeros(len(ids), np.uint32))
    for queries in ("aba bab a", "ab ba abcdefghi ab a"):
        lists = [list(letters) for letters in queries.split()]
        starts = np.cumsum([0, *map(len, lists)])
        run = columns.RunColumns(
            queries.split(),
            starts,
            pa.array(list(queries.replace(" ", ""))),
            np.zeros(starts[-1], np.float32),
        )
        assert columns.has_repeats(run) == any(len(set(ids)) < len(ids) for ids in lists)
