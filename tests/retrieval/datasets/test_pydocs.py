"""The built-in dataset: its size, its splits and what a query may not give away."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets import pydocs

SOURCE = pydocs.PydocsSource()


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {document.id: document.text for document in SOURCE.documents()}


def queries_of(split: str) -> dict[str, str]:
    return dict(SOURCE.queries(split))


def top_module(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.thorough
def test_sizes(texts: dict[str, str]) -> None:
    assert 6_000 < len(texts) < 10_000
    assert len(queries_of("train")) > 1_000
    assert 150 < len(queries_of("dev")) < 600
    assert 150 < len(queries_of("test")) <= pydocs.TEST_QUERIES


def test_known_entry(texts: dict[str, str]) -> None:
    name = "json.decoder.JSONDecoder.raw_decode"
    everything = {**queries_of("train"), **queries_of("dev"), **queries_of("test")}
    assert name in texts
    assert texts[name].startswith("This can be used to decode a JSON document from a string")
    assert everything.get(name, "Decode a JSON document").startswith("Decode a JSON document")


def test_titles_are_empty_and_ids_and_texts_unique() -> None:
    rows = list(SOURCE.documents())
    assert all(row.title == "" and row.text.strip() for row in rows)
    assert len({row.id for row in rows}) == len(rows)
    assert len({row.text for row in rows}) == len(rows)


def test_splits_share_no_module_and_no_text() -> None:
    modules = {split: set(map(top_module, queries_of(split))) for split in pydocs.SPLITS}
    assert not modules["train"] & modules["dev"]
    assert not modules["train"] & modules["test"]
    assert not modules["dev"] & modules["test"]
    queries = [text.casefold() for split in pydocs.SPLITS for text in queries_of(split).values()]
    assert len(set(queries)) == len(queries)


@pytest.mark.parametrize("split", pydocs.SPLITS)
def test_query_and_its_document(split: str, texts: dict[str, str]) -> None:
    queries, qrels = queries_of(split), SOURCE.qrels(split)
    assert list(queries) == list(qrels)
    for name, query in queries.items():
        assert qrels[name] == {name: 1}
        assert query.casefold() not in texts[name].casefold()
        assert 3 <= len(query.split()) <= 30
        assert len(texts[name].split()) >= 12


def test_twins_share_a_split() -> None:
    assert pydocs._split_of("_pyio.open") == pydocs._split_of("io.open")
    assert pydocs._split_of("_collections_abc.Set") == pydocs._split_of("collections.Counter")


def test_unknown_split_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"tets.*train, dev, test.*did you mean 'test'"):
        queries_of("tets")


def test_answers_are_copies() -> None:
    SOURCE.qrels("dev").clear()
    assert SOURCE.qrels("dev")


def test_entries_inside_blocks_and_classes() -> None:
    tree = ast.parse(
        '"""Module."""\nif True:\n  class A:\n    """One.\n\n    Two\n    three."""\n'
        '    def f(self):\n      """First sentence.\n      Second line."""\n'
        'try:\n  pass\nexcept E:\n  def g():\n    "G"\n'
    )
    found = [(e.id, e.summary, e.description) for e in pydocs._entries(tree, "m")]
    assert found == [
        ("m", "Module.", ""),
        ("m.A", "One.", "Two three."),
        ("m.A.f", "First sentence.", "Second line."),
        ("m.g", "G", ""),
    ]


def test_repeated_texts_and_ids_are_kept_once() -> None:
    entries = [
        pydocs._Entry("a", "Do this.", "The long story."),
        pydocs._Entry("b", "Do that.", "The long story."),
        pydocs._Entry("a", "Again.", "Another story."),
        pydocs._Entry("c", "do this.", ""),
        pydocs._Entry("d", "Do this.", ""),
    ]
    assert [entry.id for entry in pydocs._distinct(iter(entries))] == ["a", "c"]


def test_broken_sources_and_foreign_folders_are_left_out(tmp_path: Path) -> None:
    for name, source in {
        "good.py": '"""Kept."""',
        "broken.py": "def :",
        "escape.py": '"""Kept too."""\nx = "\\d"',
        "site-packages/other.py": '"""Not of the library."""',
        "package/__init__.py": '"""A package."""',
        "package/test/test_x.py": '"""A test."""',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert [entry.id for entry in pydocs._read_library(tmp_path)] == ["escape", "good", "package"]


def test_an_interpreter_without_sources_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Python sources"):
        list(pydocs._read_library(tmp_path))


@pytest.mark.thorough
def test_the_same_in_another_process_and_nothing_imported() -> None:
    code = (
        "import json, sys; from sluice.retrieval.datasets import pydocs; "
        "rows = [list(row[:3]) for row in pydocs.PydocsSource().documents()]; "
        "loaded = [m for m in ('tkinter', 'antigravity', 'this', 'torch') if m in sys.modules]; "
        "json.dump([rows, dict(pydocs.PydocsSource().queries('test')), loaded], sys.stdout)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    )
    rows, queries, loaded = json.loads(done.stdout)
    assert rows == [list(row[:3]) for row in SOURCE.documents()]
    assert queries == queries_of("test")
    assert loaded == []
    assert done.stderr == ""
