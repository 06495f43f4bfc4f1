"""Files of rows in every form, and the odd ones that people have."""

import gc
import gzip
import json
import logging
import sqlite3
import weakref
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers import as_documents
from sluice.retrieval.documents.readers.tables import csv_rows, text_lines

ROWS = [
    {"path": "a/b.md", "headline": "Gold", "body": "in the river", "year": 2020},
    {"path": "c.md", "headline": "", "body": 'a "sluice", washed', "year": 1999},
]
READ = [
    Document("a/b.md", "Gold", "in the river", {"year": 2020}),
    Document("c.md", "", 'a "sluice", washed', {"year": 1999}),
]
CSV = 'path,headline,body,year\na/b.md,Gold,in the river,2020\nc.md,,"a ""sluice"", washed",1999\n'
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TSV = "path\theadline\tbody\tyear\na/b.md\tGold\tin the river\t2020\n"
TSV += 'c.md\t\ta "sluice", washed\t1999\n'


def _stream(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def _sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (path TEXT, headline TEXT, body TEXT, year INT)")
        rows = [tuple(row.values()) for row in ROWS]
        connection.executemany("INSERT INTO notes VALUES (?, ?, ?, ?)", rows)
        connection.commit()


FILES = {
    "x.csv": lambda path: path.write_text(CSV),
    "x.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "excel.csv": lambda path: path.write_text(
        "path;headline;body;year\r\na/b.md;Gold;in the river;2020\r\n"
        'c.md;;"a ""sluice"", washed";1999\r\n',
        encoding="utf-8-sig",
        newline="",
    ),
    "utf16.csv": lambda path: path.write_text(CSV, encoding="utf-16"),
    "x.tsv": lambda path: path.write_text(TSV),
    "x.jsonl": lambda path: path.write_text(LINES),
    "x.ndjson.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "lines.json": lambda path: path.write_text(LINES),
    "array.json": lambda path: path.write_text("\n " + json.dumps(ROWS, indent=1)),
    "x.parquet": lambda path: parquet.write_table(pa.Table.from_pylist(ROWS), path),
    "x.feather": lambda path: feather.write_feather(pa.Table.from_pylist(ROWS), str(path)),
    "x.arrow": _stream,
    "x.sqlite": _sqlite,
}


@pytest.mark.parametrize("name", FILES)
def test_every_form_reads_alike(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    documents = as_documents(tmp_path / name)
    assert list(documents) == READ == list(documents)
    assert documents.described.endswith(
        "id from 'path', title from 'headline', text from 'body', metadata: year"
    )
    assert documents.fingerprint == as_documents(str(tmp_path / name)).fingerprint


def test_the_fingerprint_is_of_contents_and_columns_not_of_times(tmp_path: Path) -> None:
    import os

    file = tmp_path / "x.csv"
    file.write_text(CSV)
    before = as_documents(file).fingerprint
    os.utime(file, (1, 1))
    assert as_documents(file).fingerprint == before
    assert as_documents(file, text="headline").fingerprint != before
    file.write_text(CSV.replace("Gold", "Cold"))
    os.utime(file, (1, 1))  # the same size and time
    assert as_documents(file).fingerprint != before


def test_odd_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "msmarco.tsv").write_text("7\tgold\tof a river\n".replace("\tof", " of"))
    assert list(as_documents(tmp_path / "msmarco.tsv")) == [Document("7", "", "gold of a river")]
    (tmp_path / "latin.csv").write_bytes("text,name,ok,n\ncafé,Ü,true,1.5\nx,,,\n".encode("cp1252"))
    latin = as_documents(tmp_path / "latin.csv")
    assert "not UTF-8, so read as Windows-1252" in latin.described
    assert "id: the row's number" in latin.described
    assert list(latin) == [
        Document("0", "Ü", "café", {"ok": True, "n": 1.5}),
        Document("1", "", "x"),
    ]
    for blank in ("  \n", " ,\n\t\n"):
        (tmp_path / "blank.csv").write_text(f"{blank}id,text\n{blank}1,x\n")
        assert list(as_documents(tmp_path / "blank.csv")) == [Document("1", "", "x")]
    # `url` is an id only where it does not repeat; the columns of BEIR, `metadata` as an object.
    (tmp_path / "same.csv").write_text("url,text\nu,x\nu,y\n")
    assert [each.id for each in as_documents(tmp_path / "same.csv")] == ["0", "1"]
    (tmp_path / "beir.jsonl").write_text(
        '{"_id": "1", "title": null, "text": "x", "metadata": {"lang": "en", "deep": {"a": 1}}}\n'
    )
    with caplog.at_level(logging.INFO, "sluice"):
        (read,) = as_documents(tmp_path / "beir.jsonl")
    assert read == Document("1", "", "x", {"lang": "en"})
    assert (
        "id from '_id', title from 'title', text from 'text', metadata: lang, deep" in caplog.text
    )
    assert "left out 1 metadata value" in caplog.text


def test_a_folder_of_tables_is_one_table(tmp_path: Path) -> None:
    for number in range(2):
        rows = pa.Table.from_pylist([{"text": f"{number}a"}, {"text": f"{number}b"}])
        parquet.write_table(rows, tmp_path / f"part-{number}.parquet")
    ids = [document.id for document in as_documents(tmp_path)]
    assert ids == [
        f"part-{number}.parquet:{row}" for number in range(2) for row in range(2)
    ]  # numbers of one part do not depend on the others
    assert [d.text for d in as_documents(f"{tmp_path}/*-1.parquet")] == ["1a", "1b"]


def test_a_table_of_several_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    _sqlite(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE other (a TEXT)")
    assert list(as_documents(f"{file}#notes")) == READ
    with pytest.raises(DataError, match=r"2 tables \(notes, other\); name one: x.db#notes"):
        as_documents(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE VIEW broken AS SELECT * FROM gone")
    with pytest.raises(DataError, match=r"x.db#broken: cannot be read \(no such table: main.gone"):
        as_documents(f"{file}#broken")
    with pytest.raises(DataError, match=r"no table 'nots'; .* did you mean 'notes'"):
        as_documents(f"{file}#nots")


def test_what_is_in_the_log_of_a_database_counts(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    _sqlite(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        before = as_documents(file).fingerprint
        connection.execute("UPDATE notes SET headline = 'Silver' WHERE path = 'a/b.md'")
        connection.commit()
        assert [each.title for each in as_documents(file)] == ["Silver", ""]
        assert as_documents(file).fingerprint != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "", "x.csv: empty"),
        ("x.csv", "text,a\n", "x.csv: no rows"),
        ("x.csv", "text,a\nx\n", "x.csv:2: 1 fields, but 2 columns in the first line"),
        ("x.csv", 'text,a\n"x"y,b\n', "x.csv:2: not valid csv"),
        ("x.csv", "text,text\nx,y\n", "two columns are called 'text'"),
        ("x.csv", "id,text\n1,x\n1,y\n", "x.csv:3: id '1' again, first in .*x.csv:2"),
        ("x.csv", "id,text\n,x\n", "x.csv:2: 'id' is ''; expected a text that is not empty"),
        ("x.json", '{\n"a": 1}\n', "x.json:1: not JSON"),
        ("x.json", "[3]", "item 0 is a JSON int; expected an object"),
        ("x.jsonl", '{"text": "x"}\n{"txt": "y"}\n', "x.jsonl:2: no field 'text'"),
        ("x.jsonl", '{"text": 3}\n', "x.jsonl:1: 'text' is 3, expected a text"),
        ("x.parquet", "no", "not readable as Parquet"),
        ("x.arrow", "no", "not readable as Arrow"),
        ("x.db", "no sqlite", "not an SQLite file"),
        ("x.docx", "PK", "files of the kind .docx are not read; known are .csv"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        list(as_documents(tmp_path / name))


def test_a_damaged_table_closes_its_file_without_the_collector(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text('text,a\n"x"y,b\nz,c\n')
    lines = text_lines(file, "utf-8")
    kept = weakref.ref(lines)
    rows = csv_rows(file, lines, ",")
    del lines
    gc.disable()
    try:
        with pytest.raises(DataError, match="not valid csv"):
            list(rows)
        del rows
        assert kept() is None
    finally:
        gc.enable()


def test_a_misspelt_path(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text(CSV)
    with pytest.raises(DataError, match=r"no such file or folder; did you mean 'notes.csv'"):
        as_documents(tmp_path / "note.csv")
    with pytest.raises(DataError, match=r"\*.md: matches no file"):
        as_documents(f"{tmp_path}/*.md")
