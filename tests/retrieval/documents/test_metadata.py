"""Metadata: from a corpus file into columns and back, through every change of a store."""

import copy
import json
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.disk.generations import verify
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.retrieval import Document
from sluice.retrieval.datasets.beir import read_documents
from sluice.retrieval.documents.store import open_documents, write_documents


def test_a_document_is_the_same_tuple_with_and_without_metadata() -> None:
    plain, filled = Document("a", "t", "x"), Document("a", "t", "x", {"lang": "en"})
    assert plain == ("a", "t", "x", {})
    assert plain != filled
    assert filled == Document("a", "t", "x", {"lang": "en"})
    assert len({plain, filled, Document("a", "t", "x", {"lang": "en"})}) == 2
    for document in (plain, filled):
        assert pickle.loads(pickle.dumps(document)) == document == copy.deepcopy(document)


def lines(path: Path, *metadata: object) -> Path:
    made = [{"_id": f"d{n}", "text": "x", "metadata": value} for n, value in enumerate(metadata)]
    path.write_text("".join(json.dumps(line) + "\n" for line in made), encoding="utf-8")
    return path


def test_a_beir_line_carries_metadata(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"lang": "en", "year": 2020, "score": 0.5, "open": True, "tags": ["a", "b"]}
    odd = {"nested": {"a": 1}, "mixed": [1, "a"], "huge": 2**70, "absent": None, "lang": "de"}
    file = lines(tmp_path / "corpus.jsonl", given, {}, None, odd, {"nested": {}})
    with caplog.at_level(logging.WARNING, "sluice"):
        read = [document.metadata for document in read_documents(file)]
    assert read == [given, {}, {}, {"lang": "de"}, {}]
    assert caplog.text.count("WARNING") == 1
    assert "left out 4 metadata values that no filter can use" in caplog.text
    assert "nested: 2" in caplog.text


def test_metadata_that_is_no_object_is_an_error(tmp_path: Path) -> None:
    file = lines(tmp_path / "corpus.jsonl", {}, "en")
    with pytest.raises(DataError, match=r"corpus\.jsonl:2: 'metadata' is \"en\", expected an obj"):
        list(read_documents(file))


def test_the_real_collection_with_metadata_is_read_whole(
    collections: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    read = list(read_documents(collections / "nfcorpus" / "corpus.jsonl"))
    assert caplog.text == ""
    assert all(str(document.metadata["url"]).startswith("http") for document in read)
    assert list(write_documents(tmp_path, read)) == read


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "metadata is None; expected a mapping"),
        ({"a": {"b": 1}}, "metadata 'a' is {'b': 1}; expected a name"),
        ({"a": [1]}, r"metadata 'a' is \[1\]"),
        ({"": 1}, "metadata '' is 1"),
        ({3: 1}, "metadata 3 is 1"),
        ({"a": 2**63}, "number of 64 bits"),
        ({"a": float("nan")}, "a finite number"),
        ({"a": "\ud800"}, "metadata 'a' holds half a surrogate pair"),
        ({"a": ["x", "\ud800"]}, "metadata 'a' holds half a surrogate pair"),
        ({"\ud800": 1}, "half a surrogate pair"),
    ],
)
def test_what_no_column_holds_is_refused(tmp_path: Path, metadata: dict, message: str) -> None:
    store = write_documents(tmp_path, [Document("kept", "", "", {"lang": "en"})])
    with pytest.raises(DataError, match=f"document 'bad': .*{message}"):
        store.append([Document("fine", "", ""), Document("bad", "", "", metadata)])
    assert (
        list(open_documents(tmp_path)) == list(store) == [Document("kept", "", "", {"lang": "en"})]
    )


def test_none_is_no_value_and_numpy_scalars_are_plain(tmp_path: Path) -> None:
    given = {"a": None, "b": np.int64(3), "c": np.float32(0.5), "d": np.bool_(True), "e": ("x",)}
    (found,) = write_documents(tmp_path, [Document("d", "", "", given)])
    assert repr(found.metadata) == "{'b': 3, 'c': 0.5, 'd': True, 'e': ['x']}"


def test_segments_may_have_other_keys_and_kinds(tmp_path: Path) -> None:
    first = [Document("a", "", "", {"year": 2020}), Document("b", "", "")]
    second = [Document("c", "", "", {"year": "2021", "lang": "en"})]
    third = [Document("d", "", "")]
    store = write_documents(tmp_path, first)
    store.append(second)
    store.append(third)
    assert [document.metadata for document in store] == [
        {"year": 2020}, {}, {"year": "2021", "lang": "en"}, {},
    ]  # fmt: skip
    names = {file.name for file in (tmp_path / store.generation).glob("*columns*")}
    assert names == {f"00000{n}-columns.{end}" for n in (1, 2) for end in ("bin", "json")}
    store.delete([0])
    store.compact()
    assert [d.metadata for d in open_documents(tmp_path)] == [
        {},
        {"year": "2021", "lang": "en"},
        {},
    ]
    verify(tmp_path)


def test_columns_are_linked_and_mapped(tmp_path: Path) -> None:
    store = write_documents(tmp_path, [Document(f"d{n}", "", "", {"n": n}) for n in range(99)])
    before = (tmp_path / store.generation / "000001-columns.bin").stat().st_ino
    store.append([Document("new", "", "")])
    assert (tmp_path / store.generation / "000001-columns.bin").stat().st_ino == before
    ((_, columns), (_, none)) = store.columns
    (column,) = columns["n"]
    assert none == {}
    assert (column.values.dtype, column.rows, column.values.base is None) == (np.int64, None, False)


def test_a_store_from_before_metadata_opens(tmp_path: Path) -> None:
    store = write_documents(tmp_path, [Document("a", "t", "x")])
    assert not list((tmp_path / store.generation).glob("*columns*"))
    assert list(open_documents(tmp_path)) == [Document("a", "t", "x")]


def test_damaged_columns_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_documents(tmp_path, [Document("a", "t", "x", {"n": 1})])
    monkeypatch.setattr("sluice.encoders.foundation.disk.generations.CHECKSUM_LIMIT", 0)
    table = tmp_path / store.generation / "000001-columns.json"
    table.write_text(table.read_text().replace("integer", "decimal"))
    with pytest.raises(IndexFormatError, match=r"columns\.json: not as Sluice writes it"):
        open_documents(tmp_path).document(0)


def test_names_of_metadata_are_bounded_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def document(name: str, *names: str) -> Document:
        return Document(name, "", "x", dict.fromkeys(names, 1))

    def names() -> set[str]:
        return {name for _, columns in open_documents(tmp_path / "s").columns for name in columns}

    monkeypatch.setattr("sluice.retrieval.documents.columns.MOST_NAMES", 3)
    with pytest.raises(DataError, match="document 'c': metadata 'r': a folder has up to 3 names"):
        write_documents(tmp_path / "s", [document("a", "n", "o"), document("c", "p", "n", "r")])
    store = write_documents(tmp_path / "s", [document("a", "n"), document("b", "o")])
    store.append([document("c", "n", "p")])
    with pytest.raises(DataError, match="metadata 'q': a folder has up to 3 names; expected fewer"):
        store.append([document("d", "n", "q")])
    assert (len(open_documents(tmp_path / "s")), names()) == (3, {"n", "o", "p"})
    store.delete(store.rows(["c"]))  # the only one of its segment: forgotten at once
    assert names() == {"n", "o"}
    store.append([document("d", "q")])
    assert [each.metadata for each in store] == [{"n": 1}, {"o": 1}, {"q": 1}]
    store.delete(store.rows(["b"]))
    assert names() == {"n", "o", "q"}
    store.compact()
    assert names() == {"n", "q"}
    monkeypatch.setattr("sluice.retrieval.documents.columns.MOST_NAMES", 1)  # an earlier folder
    store = open_documents(tmp_path / "s")
    store.append([document("e", "n", "q")])
    store.compact()
    with pytest.raises(DataError, match="up to 1 names"):
        store.append([document("f", "s")])
    store.update([document("d", "n")])
    assert verify(tmp_path / "s") > 0
