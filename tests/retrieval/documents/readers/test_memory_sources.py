"""Lists, mappings, pairs and frames become documents; what cannot be is a plain error."""

from pathlib import Path

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers import as_documents

ROWS = [
    {"docid": 3, "headline": "Gold", "contents": "in the river", "year": 2020},
    {"docid": 4, "headline": None, "contents": "sluice", "year": None},
]
READ = [Document("3", "Gold", "in the river", {"year": 2020}), Document("4", "", "sluice")]


@pytest.mark.parametrize(
    ("source", "documents"),
    [
        (["x", "y"], [Document("0", "", "x"), Document("1", "", "y")]),
        (pd.Series(["x"]), [Document("0", "", "x")]),
        ([("a", "x"), ("b", "B", "y")], [Document("a", "", "x"), Document("b", "B", "y")]),
        ({"a": "x"}, [Document("a", "", "x")]),
        ({"a": {"title": "T", "body": "x"}}, [Document("a", "T", "x")]),
        (READ, READ),
        (ROWS, READ),
        (pd.DataFrame(ROWS), READ),
        (pl.DataFrame(ROWS), READ),
        (pl.DataFrame(ROWS).lazy(), READ),
        (pa.Table.from_pylist(ROWS), READ),
        (datasets.Dataset.from_list(ROWS), READ),
        (datasets.Dataset.from_list(ROWS).to_iterable_dataset(), READ),
        ([], []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_is_read_again_and_again(source: object, documents: list[Document]) -> None:
    read = as_documents(source)
    assert list(read) == documents == list(read)
    assert read.fingerprint == as_documents(source).fingerprint
    assert as_documents(read) is read


def test_an_iterator_has_one_pass() -> None:
    read = as_documents(iter(["x", "y"]))
    assert [document.id for document in read] == ["0", "1"]
    with pytest.raises(DataError, match="has been read already"):
        list(read)


def test_the_columns_are_described_and_may_be_named() -> None:
    assert as_documents(pd.DataFrame(ROWS)).described == (
        "pandas frame of 2 rows: id from 'docid', title from 'headline', text from 'contents', "
        "metadata: year"
    )
    frame = pd.DataFrame({"a": ["x"], "b": ["y"], "c": [1]}, index=["i"])
    assert list(as_documents(frame, text=["b", "a"], metadata=[])) == [Document("i", "", "y\n\nx")]
    assert list(as_documents(frame, text="b", title="a", id="row", metadata="c")) == [
        Document("0", "x", "y", {"c": 1})
    ]


@pytest.mark.parametrize(
    ("source", "columns", "message"),
    [
        ([{"a": "x", "b": "y"}], {}, "cannot tell which column holds the text.*--text COLUMN"),
        ([{"body": "x", "content": "y"}], {}, "several columns could be the text"),
        ([{"body": "x"}], {"text": "bdy"}, "no column 'bdy'; .* did you mean 'body'"),
        (["x"], {"text": "body"}, "texts have none"),
        (["x", 3], {}, "document 1: 3; expected documents, texts"),
        ([{"text": "x"}, {"body": "y"}], {}, "document 1: no field 'text'"),
        ([("a", "x"), ("a", "y")], {}, "document 1: id 'a' again, first in document 0"),
        ("no such file", {}, r"no such file or folder; a text is passed in a list"),
        (3, {}, "cannot be read"),
        (pd.DataFrame([["x", "y"]], columns=["text", "text"]), {}, "two columns are called 'text'"),
        (pa.table([["x"], ["y"]], names=["text", "text"]), {}, "two columns are called 'text'"),
        (["x"], {"id": 3}, "expected the name of a column"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_mistakes(source: object, columns: dict[str, str], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        list(as_documents(source, **columns))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import types

    def piped(data: str) -> list[Document]:
        stream = types.SimpleNamespace(buffer=io.BytesIO(data.encode()))
        monkeypatch.setattr("sys.stdin", stream)
        documents = as_documents("-")
        assert list(documents) == list(documents)
        return list(documents)

    assert piped("gold\n\n river \n") == [Document("0", "", "gold"), Document("1", "", "river")]
    assert piped('{"docid": "a", "body": "x"}\n') == [Document("a", "", "x")]
    with pytest.raises(DataError, match="standard input:2: not JSON"):
        piped('{"body": "x"}\nplain\n')
    with pytest.raises(DataError, match="standard input: empty"):
        piped("\n")


def test_the_hub_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("id,text\n1,gold\n")
    documents = as_documents(f"hf:{tmp_path}")
    assert list(documents) == [Document("1", "", "gold")]
    assert documents.described.startswith(f"hf:{tmp_path} (train) of 1 row: id from 'id'")
