"""Code from the command line: indexed by functions, kept up to date, searched by pattern too."""

import json
import re
from pathlib import Path

import pytest
from command_line import Call
from small_world import WordEncoder

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.analyzer import analyzer
from sluice.indexing import FlatIndex
from sluice.retrieval import Fuse, Retriever
from sluice.retrieval.documents import pattern as patterns
from sluice.retrieval.documents.pattern import matched
from sluice.retrieval.documents.readers import as_documents
from sluice.retrieval.documents.where import conditions, matching_rows
from sluice.retrieval.experiments import own_documents

FILES = {
    "a.py": 'def read_json(file):\n    """Parse a file of objects."""\n    return loads(file)\n',
    "b.py": "class HTTPServer:\n    def listenForever(self):\n        while 1:\n            pass\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_a_journey_over_code(
    shell: Call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_documents, "local_folder", lambda name: None)
    out = tmp_path / "out"
    code, _, err = shell("index", source, "--code", "--output", out)
    assert code == 0
    assert "not on this machine: BM25 alone" in err
    for query, place in (
        ("json", "a.py:1  read_json"), ("objects", "a.py:1  read_json"),
        ("listen forever", "b.py:2  HTTPServer.listenForever"), ("readJSON", "a.py:1  read_json"),
        ("server http", "b.py:1  HTTPServer"),
    ):  # fmt: skip
        assert place in shell("search", out, query)[1].split("\n")[0]
    _, said, _ = shell("search", out, "json", "--json")
    assert json.loads(said)["metadata"] | {"docstring": ""} == {
        "path": "a.py", "line": 1, "end_line": 3, "kind": "function", "language": "python",
        "signature": "def read_json(file):", "docstring": "",
    }  # fmt: skip
    _, said, _ = shell("search", out, "self server", "--regex", r"^\s+while\b")
    assert [line.split()[2] for line in said.split("\n")[::2] if line] == ["b.py:2"]
    assert shell("search", out, "server", "--regex", "nowhere")[1] == "no hits\n"
    code, _, err = shell("search", out, "server", "--regex", "(")
    assert code == 2
    assert "missing )" in err

    assert "3 unchanged" in shell("update", out, source, "--sync")[1]
    (source / "a.py").write_text("# moved\n\n" + FILES["a.py"].replace("loads", "load_all"))
    (source / "b.py").unlink()
    (source / "c.py").write_text("def new_name(): ...\n")
    _, said, _ = shell("update", out, source, "--sync", "--delete-most")
    assert "2 added, 1 replaced, 2 deleted, 0 unchanged" in said
    assert "a.py:3  read_json" in shell("search", out, "load all")[1]
    assert shell("search", out, "listen")[1] == "no hits\n"
    (source / "c.py").write_text("def new_name(): return moon\n")
    assert "1 replaced" in shell("update", out, source / "c.py")[1]
    code, _, err = shell("index", tmp_path / "nothing", "--code")
    assert code == 2
    assert "no such file or folder" in err


def test_what_only_moved_is_not_encoded_again(source: Path, tmp_path: Path) -> None:
    class Counting(WordEncoder):
        seen: list[str] = []  # noqa: RUF012

        def encode_documents(self, texts: list[str]) -> object:  # type: ignore[override]
            self.seen.extend(texts)
            return super().encode_documents(texts)

    encoder = Counting()
    retriever = Retriever.build(
        encoder, as_documents(source, code=True), index=FlatIndex(), path=tmp_path / "r"
    )
    encoder.seen.clear()
    (source / "a.py").write_text("\n\n\n" + FILES["a.py"])
    (source / "c.py").write_text("def new(): ...\n")
    updated = retriever.update(as_documents(source, code=True), sync=True)
    assert updated == (1, 1, 0, 2)
    assert encoder.seen == ["new def new(): ..."]
    built = Retriever.build(Counting(), as_documents(source, code=True), index=FlatIndex())
    for query in ("json file", "new", "self"):
        assert retriever.search(query) == built.search(query)


PATTERNS = [r"^def \w+", r"(?i)HTTP", r"pass$", "a|e", "x{3}", "[[:upper:]]{4}", r"\bself\b", "."]


@pytest.mark.parametrize("shards", [None, 2])
def test_hits_match_the_pattern(source: Path, shards: int | None) -> None:
    documents = list(as_documents(source, code=True))
    retrievers = [
        Retriever.build(encoder, documents, shards=shards)
        for encoder in (BM25Encoder(language="code"), WordEncoder())
    ]
    stages = [*retrievers, Fuse(retrievers)]
    for text in PATTERNS:
        written = re.compile(text.replace("[:upper:]", "A-Z"), re.MULTILINE)
        expected = {each.id for each in documents if written.search(each.text)}
        where = {"text": {"matches": text}}
        store = retrievers[0].store
        rows = matching_rows(store, conditions(where)) if shards is None else None
        if rows is not None:
            assert {store.ids([n])[0] for n in range(len(rows)) if rows[n]} == expected
        for stage in stages:
            every = {hit.doc_id for hit in stage.search("def self file", 10)}
            found = [hit.doc_id for hit in stage.filtered(where).search("def self file", 10)]
            assert set(found) == every & expected
            both = stage.filtered(where).filtered({"path": "a.py"}).search("def self file", 10)
            assert {hit.doc_id for hit in both} == {n for n in found if n.startswith("a.py")}


def test_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert matched([], "a").tolist() == []
    assert matched(["a" * 100_000 + "b", "", "x\na"], "(a+)+$").tolist() == [False, False, True]
    wrong = {
        "": "0 states", "(": "missing \\)", "(?=a)": "RE2", r"(a)\1": "RE2", "x" * 501: "501 st",
        "((a?){30}){30}b": "states", "(a{2}[b-d]\\w){200}": "800 states", "a{1001}": "1,001 states",
    }  # fmt: skip
    for text, fault in wrong.items():
        with pytest.raises(ConfigError, match=fault):
            conditions({"text": {"matches": text}})
    for where in ({"path": {"matches": "a"}}, {"text": {"matches": ["a", "b"]}}):
        with pytest.raises(ConfigError, match="and one regular expression"):
            conditions(where)
    monkeypatch.setattr(patterns, "SECONDS", -1.0)
    with pytest.raises(ConfigError, match="takes more than"):
        matched(["a" * patterns.BLOCK], "a")


def test_names_are_found_by_their_parts() -> None:
    analyse = analyzer("code")
    assert analyse("raw_decode JSONDecoder2 json.loads __init__") == [
        "raw_decod", "raw", "decod", "jsondecoder2", "json", "decod", "2", "json", "load",
        "__init__", "init",
    ]  # fmt: skip
    assert analyse("the Größe_Straße A") == ["größe_straß", "größe", "straße"]
