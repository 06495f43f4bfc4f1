"""Update by id: what is there is replaced, what is not is added, in one step."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FlatIndex, Index, InvertedIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.folder import HEAD, verify_retriever

QUERIES = {"a": "gold river", "b": "word7 number", "c": "rewritten sluice", "d": "fresh the"}


def changes() -> list[Document]:
    """Two documents that are there, changed, and two that are new."""
    return [
        Document("d07", "", "rewritten gold and river of word7", {"lang": "en"}),
        Document("n1", "Fresh", "a fresh sluice"),
        Document("d00", "", "all other words"),
        Document("n0", "", "fresh gold", {"lang": "de"}),
    ]


def remaining() -> list[Document]:
    """What the corpus is after the changes, in the order of the rows."""
    gone = {document.id for document in changes()}
    return [document for document in documents() if document.id not in gone] + changes()


def answers(retriever: Retriever) -> dict[str, list[tuple[str, float]]]:
    return {query: list(ranking) for query, ranking in retriever.run(QUERIES).items()}


@pytest.mark.parametrize("kind", ["bm25", "words"])
def test_an_update_equals_a_rebuild(tmp_path: Path, kind: str) -> None:
    def build(docs: list[Document], path: Path | None = None) -> Retriever:
        index: Index = InvertedIndex() if kind == "bm25" else FlatIndex()
        # Without length normalisation, what is added is weighed as in a fit on all documents.
        encoder = BM25Encoder(b=0.0) if kind == "bm25" else WordEncoder()
        return Retriever.build(encoder, docs, index=index, path=path)

    expected = build(remaining())
    retriever = build(documents(), tmp_path / "r")
    assert retriever.update(changes()) == (2, 2, 0, 0)
    allow = ["small_world:WordEncoder"]
    for found in (retriever, Retriever.open(tmp_path / "r", allow=allow)):
        assert len(found) == 42
        assert answers(found) == answers(expected)
        assert list(found.store) == remaining()
        assert [hit.doc_id for hit in found.search("fresh", where={"lang": "de"})][:1] == ["n0"]
    retriever.compact()
    assert answers(retriever) == answers(expected)


def test_after_compaction_bm25_is_as_fitted_anew(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    retriever.update(changes())
    assert retriever.encoder.documents == 42
    retriever.compact()
    assert answers(retriever) == answers(Retriever.build(BM25Encoder(), remaining()))
    assert verify_retriever(tmp_path / "r") > 3


def test_updating_twice_and_with_nothing(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(b=0.0), documents(), path=tmp_path / "r")
    before = answers(retriever)
    assert retriever.update([]) == (0, 0, 0, 0)
    assert answers(retriever) == before
    retriever.update([Document("d07", "", "something else entirely")])
    assert retriever.search("entirely")[0].doc_id == "d07"
    assert retriever.update([documents()[7]]) == (0, 1, 0, 0)
    assert answers(Retriever.open(tmp_path / "r")) == before
    assert retriever.update(documents()) == (0, 0, 0, 40)  # every document, by itself
    assert answers(retriever) == before
    assert retriever.search("entirely") == []


@pytest.mark.parametrize("passages", [None, Passages(length=6, overlap=1)])
def test_a_sync_encodes_what_is_new_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passages: Passages | None
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    retriever = Retriever.build(
        WordEncoder(), documents(), index=FlatIndex(), path=tmp_path / "r", passages=passages,
        encoding=Encoding(cache=True) if passages else None,
        config={"retriever": {"encoding": None}} if passages else None,
    )  # fmt: skip
    encoded: list[str] = []
    real = WordEncoder.encode_documents

    def encode(self: WordEncoder, texts: list[str]) -> np.ndarray:
        encoded.extend(texts)
        return real(self, texts)

    monkeypatch.setattr(WordEncoder, "encode_documents", encode)
    assert retriever.update(remaining(), sync=True) == (2, 2, 0, 38)
    texts = [each.full_text for each in changes()]
    assert {text for text in encoded if text} <= {
        each.full_text for each in (passages.parts(WordEncoder(), changes()) if passages else ())
    } | set(texts)
    assert len(set(encoded) - {""}) >= 4
    monkeypatch.undo()
    fresh = Retriever.build(WordEncoder(), remaining(), index=FlatIndex(), passages=passages)
    assert answers(retriever) == answers(fresh)


def test_documents_may_come_from_the_retriever_itself() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    changed = (document._replace(text=document.text + " more") for document in retriever.store)
    assert retriever.update(changed) == (0, 40, 0, 0)
    assert len(retriever.search("more", 50)) == 40


def test_a_failed_update_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    before = answers(retriever)
    with pytest.raises(DataError, match="id 'x' again"):
        retriever.update([Document("x", "", "one"), Document("x", "", "two")])
    monkeypatch.setattr(InvertedIndex, "add", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        retriever.update(changes())
    monkeypatch.undo()
    for found in (retriever, Retriever.open(tmp_path / "r")):
        assert answers(found) == before
        assert list(found.store) == documents()
    assert retriever.update(changes()) == (2, 2, 0, 0)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_sync_of_an_empty_folder_fills_it(tmp_path: Path) -> None:
    for shards in (None, 2):
        retriever = Retriever.build(
            WordEncoder(), documents(6), path=tmp_path / str(shards), shards=shards
        )
        retriever.update([], sync=True, delete_most=True)
        assert not retriever.search("gold river", k=3)
        retriever.update(documents(6), sync=True)
        fresh = Retriever.build(WordEncoder(), documents(6))
        asked = {"q": "gold river"}
        assert retriever.run(asked, k=6).to_dict() == fresh.run(asked, k=6).to_dict()


def test_a_sync_writes_no_vectors_where_only_the_folder_says(tmp_path: Path) -> None:
    path, outside = tmp_path / "given", tmp_path / "outside"
    Retriever.build(WordEncoder(), documents(6), path=path, passages=Passages(4, 1))
    head = json.loads((path / HEAD).read_text())

    def noted(encoding: object) -> None:
        head["origin"]["config"] = {"retriever": {"encoding": encoding}}
        (path / HEAD).write_text(json.dumps(head))

    noted({"cache": str(outside)})
    with pytest.raises(ConfigError, match="is outside"):
        Retriever.open(path, encoder=WordEncoder()).update(documents(5), sync=True)
    assert not outside.exists()
    noted({"cash": 1})
    with pytest.raises(IndexFormatError, match="cash"):
        Retriever.open(path, encoder=WordEncoder()).update(documents(5), sync=True)
    noted({"cache": str(outside)})
    allowed = Retriever.open(path, encoder=WordEncoder(), allow=[str(outside)])
    assert allowed.update(documents(5), sync=True).deleted == 1
    assert outside.exists()
