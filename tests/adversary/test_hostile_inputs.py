"""Files that are made to take all time or memory, or to end in a traceback: one error each."""

import gzip
import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.encoders.foundation import bounded_input as bounded
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.retrieval.config.reading import load_values
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.documents.readers.files.folder import pdf_text
from sluice.retrieval.documents.readers.files.kinds import Unreadable, html_text
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.documents.where import parse_where
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.trec_files import read_qrels, read_run
from sluice.retrieval.training_data.files.formats import rows_of


def laughs(levels: int, base: str = "a: &a0 [x, x, x, x, x, x, x, x, x]\n") -> str:
    lines = [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels)]
    return base + "".join(lines)


MERGED = "a: &a0 {x: 1, y: 2}\n" + "".join(
    f"b{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (laughs(10), "line 7: too large; with every alias"),
        ('a: &a0 "' + "x" * 100_000 + f'"\nb: [{", ".join(["*a0"] * 100)}]\n', "line 2: too large"),
        (MERGED, "line 7: too large"),
        ("a: " + ":".join(["1"] * 500) + "\n", "line 1: a number of 999 characters; put it in"),
        ("a: 0x" + "f" * 5_000 + "\n", "line 1: a number of 5,002 characters; put it in quotes"),
        ("a: 1\n" + "# x\n" * (5 << 18), "is longer than 4 MB"),
    ],
)
def test_yaml_bombs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as raised:
        load_values(tmp_path / "x.yaml")
    assert len(str(raised.value)) < 400


def test_messages_are_cut_in_the_middle() -> None:
    message = str(DataError("begins " + "x" * 50_000 + " ends"))
    assert len(message) < 4_100
    assert message.startswith("begins")
    assert message.endswith("ends")
    assert " [... 46,012 characters more ...] " in message


def corpus(path: Path) -> object:
    return list(as_documents(path))


def rows(path: Path) -> object:
    return list(rows_of(path)[1])


QUOTED = b'text,"' + b"x\n" * 3_000
BROKEN: dict[str, tuple[Callable[[Path], object], str, bytes, str]] = {
    "a long line": (corpus, "x.jsonl", b'{"text": "' + b"x" * 5_000, "x.jsonl:1: .* is longer"),
    "an open quote": (corpus, "x.csv", b"text,b\n" + QUOTED, "row, whose quotation mark may not"),
    "examples": (rows, "x.csv", b"query,positive\n" + QUOTED, "row, whose quotation mark may not"),
    "a long item": (corpus, "x.json", b'[{"text": "' + b"x" * 5_000, "item 0 is longer than"),
    "half a list": (corpus, "x.json", b'[{"text": "x"},', "item 1: not JSON .the file ends within"),
    "no commas": (corpus, "x.json", b'[{"text": "x"} {', "item 1: not JSON .'{' where ','"),
    "behind": (corpus, "x.json", b'[{"text": "x"}] x', "not JSON .'x' behind the list"),
    "deep": (corpus, "x.json", b"[" * 3_000, "item 0: not JSON .*recursion"),
    "digits": (corpus, "x.json", b'[{"text": ' + b"9" * 4_500 + b"}]", "item 0: not JSON .Exceeds"),
    "a surrogate": (corpus, "x.json", b'[{"text": "\\ud800"}]', "item 0: an escape"),
    "not UTF-8": (corpus, "x.json", b'[{"text": "\xff"}]', "x.json: not UTF-8"),
    "columns": (corpus, "x.csv", b"a" + b",b" * 900 + b"\n1\n", "two columns are called 'b'"),
    "many columns": (
        corpus, "x.tsv", "\t".join(map(str, range(1_001))).encode() + b"\n",
        "1,001 columns; at most 1,000",
    ),
    "a long qrels line": (read_qrels, "q.tsv", b"q 0 d " + b"1" * 5_000, "q.tsv:1: .* is longer"),
    "two marks": (read_run, "r", b"\xef\xbb\xbf\xef\xbb\xbf q Q0 d 1 1.0 t\n", "r:1: 7 columns"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    read, name, data, message = BROKEN[kind]
    for module in ("encoders.foundation.bounded_input", "retrieval.documents.readers.tables",
                   "retrieval.documents.json_files"):  # fmt: skip
        monkeypatch.setattr(f"sluice.{module}.LONGEST", 4_900)
    monkeypatch.setattr("sluice.retrieval.documents.json_files.BLOCK", 64)
    monkeypatch.setattr("sluice.retrieval.documents.readers.fields.MOST_COLUMNS", 1_000)
    for packed in (False, True):
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data) if packed else data)
        with pytest.raises(DataError, match=message.replace(name, path.name)) as raised:
            read(path)
        assert len(str(raised.value)) < 600


def test_a_json_list_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.retrieval.documents.json_files.BLOCK", 7)
    items = [{"id": str(n), "text": f'é "{n}" \\ \U0001f600', "n": n / 3} for n in range(50)]
    (tmp_path / "x.json").write_text("\ufeff " + json.dumps(items, indent=1), encoding="utf-8")
    read = list(as_documents(tmp_path / "x.json"))
    assert [(d.id, d.text) for d in read] == [(i["id"], i["text"]) for i in items]


COUNTING = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
VIEWS = {
    "endless": f"{COUNTING} SELECT n id, 'x' text FROM c",
    "silent": f"{COUNTING} SELECT count(*) text FROM c",
    "large": "SELECT 1 id, hex(zeroblob(40000000)) text",
    "crossed": "SELECT hex(zeroblob(2000)) text FROM t a, t b, t c, t d, t e",
}  # fmt: skip


@pytest.mark.parametrize("kind", VIEWS)
def test_views_of_sqlite_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    module = "sluice.retrieval.documents.readers.tables"
    monkeypatch.setattr(f"{module}.STEPS", 100_000)
    monkeypatch.setattr(f"{module}.BETWEEN", 10_000)
    monkeypatch.setattr(f"{module}.STEPS_PER_BYTE", 10)
    monkeypatch.setattr(f"{module}.FREE", 1 << 20)
    file = tmp_path / "x.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (id, text)")
        connection.executemany("INSERT INTO t VALUES (?, 'x')", [(n,) for n in range(100)])
        connection.execute(f"CREATE VIEW v AS {VIEWS[kind]}")
    connection.close()
    with pytest.raises(DataError, match=r"x\.db#v: cannot be read any further .*if it is a view"):
        for _ in as_documents(f"{file}#v"):
            pass


def test_pages_that_leave_all_open_take_linear_time() -> None:
    for opened in (b"<!--", b"<a", b"<![CDATA[", b"</a", b"<?", b"<!"):
        assert html_text(b"<p>gold</p>" + opened * 50_000).text.startswith("gold")
    assert html_text(b"<p>gold</p> is < 5").text.split() == ["gold", "is", "<", "5"]
    assert html_text(b"<b>" * 3_000 + b"gold").text == "gold"


@pytest.mark.parametrize("part", [
    b"<!--[if lt IE 9]><script src=x.js></script><![endif]-->",
    b"<!--[if !IE]><!--><b></b><!--<![endif]-->",
    b"<![if !IE]><b></b><![endif]>",
    b"<script>document.write('<!-- x')</script>",
    b"<script>x = '<![CDATA['</script>",
])  # fmt: skip
def test_an_ordinary_page_is_read_to_its_end(part: bytes) -> None:
    page = b"<html><head><title>Mine</title>" + part + b"</head><body><p>gold</p></body></html>"
    assert html_text(page)[:2] == ("Mine", "gold")


def test_a_small_pdf_that_names_one_page_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.retrieval.documents.readers.files.folder.STEPS", 0)
    drawn = b"BT (gold) Tj ET " * 100
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[" + b"3 0 R " * 50 + b"]/Count 50>>",
        b"<</Type/Page/Parent 2 0 R/Contents 4 0 R/MediaBox[0 0 9 9]/Resources<<>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn),
    ]
    data, places = b"%PDF-1.5\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"xref\n0 5\n0000000000 65535 f \n%strailer\n<</Size 5/Root 1 0 R>>\n" % table
    data += b"startxref\n%d\n%%%%EOF" % data.index(b"xref")
    with pytest.raises(Unreadable, match="draws more than its size"):
        pdf_text(data)


def test_conditions_take_linear_time() -> None:
    for text in ("a" + " " * 200_000 + "b", " " * 200_000, "a=" + " " * 200_000 + "b" + " " * 9):
        if "=" in text:
            assert parse_where([text]) == {"a": "b"}
        else:
            with pytest.raises(ConfigError, match="expected KEY=VALUE"):
                parse_where([text])


@pytest.mark.parametrize("name", ["../..", "..", "a/..", "/", "a/b/c", "~", "", "a\0b", "./x"])
def test_names_on_the_hub(name: str) -> None:
    for read in (lambda: load_dataset(f"hf:{name}"), lambda: as_documents(f"hf:{name}")):
        with pytest.raises(DataError, match=r"expected 'hf:owner/name'"):
            read()


def test_a_home_that_nobody_has(tmp_path: Path) -> None:
    for read in (load_dataset, as_documents, bounded.expanded):
        with pytest.raises(SluiceError, match="the home folder ~nouser is unknown"):
            read("~nouser/x")
        with pytest.raises(SluiceError, match="a character that no path may have"):
            read("a\0b")


def test_ids_and_byte_order_marks(tmp_path: Path) -> None:
    run = Run({"\ufeffq": {"d": 1.0}})
    with pytest.raises(DataError, match="begins with a byte order mark"):
        run.save(tmp_path / "a.trec")
    held = Run({"q\ufeff": {"\ufeffd": 1.0}})
    held.save(tmp_path / "b.trec")
    assert dict(Run.load(tmp_path / "b.trec")["q\ufeff"]) == {"\ufeffd": 1.0}


ODD = (None, True, -1, 0.5, math.inf, "", " ", "x", [], [[]], [None], [1], ["a"], {}, {"a": 1},
       [{"docid": "a", "text": 5}], [{"docid": []}], {"bm25": 5}, {"bm25": [{"docid": None}]},
       "[1", "NaN")  # fmt: skip
ROWS: dict[str, dict[str, object]] = {
    "bge": {
        "query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [1.0], "neg_scores": [0.1],
        "negative_queries": ["m"],
    },
    "descriptions": {"sentence": "s", "good": ["g"], "bad": ["b"], "_id": "a"},
    "columns": {"anchor": "q", "positive": "p a", "negative_1": "n a", "score": 0.5},
    "tevatron": {
        "query_id": "t1", "query": "gold", "positive_passages": [{"docid": "d1", "text": "x y"}],
        "negative_passages": [{"docid": "d2", "title": "", "text": "r"}],
    },
    "msmarco": {"qid": 1, "pos": [1], "neg": {"bm25": [3, {"pid": 4, "ce-score": 0.5}]}},
    "graded": {"query": "q", "documents": ["a b", "c d"], "grades": [1, 0]},
    "id_triples": {"0": "q", "1": "p", "2": "n"},
    "scored_triples": {"0": 1.0, "1": 0.5, "2": "q", "3": "p", "4": "n"},
}  # fmt: skip


@pytest.mark.parametrize("form", ROWS)
def test_training_files_of_wrong_types(tmp_path: Path, form: str) -> None:
    """Each field of each format with values of each wrong type: rows, or one error."""
    errors = []
    for key in ROWS[form]:
        for odd in ODD:
            path = tmp_path / "x.jsonl"
            lines = [ROWS[form], {**ROWS[form], key: odd}]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            try:
                assert len(list(rows_of(path, form)[1])) == 2
            except DataError as error:
                errors.append(str(error))
    assert len(errors) > 10
    assert all(error.startswith(f"{path}:2: ") and len(error) < 400 for error in errors)
