"""BM25 over several fields as a retriever: built, changed by id, compacted, opened, explained."""

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS
from sluice.indexing import FlatIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.documents.document import document_input

FIELDS = {"title": 2.0, "text": 1.0, "place": 0.5}
QUERIES = ["gold river", "word3 nugget", "yukon", "red word7 gold", "the"]


def documents() -> list[Document]:
    random = np.random.default_rng(3)
    words = ["gold", "river", "red", "nugget", *(f"word{i}" for i in range(12))]

    def some(most: int) -> str:
        return " ".join(random.choice(words, random.integers(0, most)))

    places = [{"place": "Yukon gold"}, {"place": "Red river", "year": 1898}, {}]
    return [Document(f"d{i:02}", some(4), some(12), places[i % 3]) for i in range(40)]


def expected(docs: list[Document], query: str) -> dict[str, float]:
    encoder = BM25Encoder(fields=FIELDS)
    vectors = encoder.fit_documents(document_input(encoder, document) for document in docs)
    scores = (encoder.encode_queries([query]) @ vectors.T).toarray()[0]
    return {d.id: pytest.approx(s, rel=1e-5) for d, s in zip(docs, scores, strict=True) if s > 0}


def found(retriever: Retriever, query: str) -> dict[str, float]:
    return {hit.doc_id: hit.score for hit in retriever.search(query, k=100)}


def test_built_changed_compacted_and_opened(tmp_path: Path) -> None:
    docs = documents()
    retriever = Retriever.build(BM25Encoder(fields=FIELDS), docs[:25], path=tmp_path / "r")
    for query in QUERIES:
        assert found(retriever, query) == expected(docs[:25], query)
    assert retriever.add(docs[25:]) == 15
    retriever.delete([document.id for document in docs[5:12]])
    left = docs[:5] + docs[12:]
    opened = Retriever.open(tmp_path / "r")
    assert opened.encoder.fields == FIELDS
    for query in QUERIES:  # idf is that of a refit, the average lengths are those of the build
        assert found(retriever, query) == found(opened, query)
        assert found(retriever, query).keys() == expected(left, query).keys()
    opened.compact()
    for query in QUERIES:
        assert found(Retriever.open(tmp_path / "r"), query) == expected(left, query)


def test_a_corpus_may_lose_a_field(tmp_path: Path) -> None:
    docs = documents()
    retriever = Retriever.build(BM25Encoder(fields=FIELDS), docs, path=tmp_path / "r")
    retriever.delete([document.id for document in docs if document.metadata])
    retriever.compact()
    assert found(retriever, "yukon") == {}
    assert found(retriever, "gold")
    retriever.add([Document("new", "", "", {"place": "Yukon"})])
    assert list(found(retriever, "yukon")) == ["new"]


def test_a_flat_index_gives_the_same_scores() -> None:
    docs = documents()
    encoder = BM25Encoder(fields=FIELDS)
    vectors = encoder.fit_documents([document_input(encoder, document) for document in docs])
    flat = FlatIndex()
    flat.add(vectors.toarray())
    hits = flat.search(encoder.encode_queries(QUERIES).toarray(), 3)
    for query, rows, scores in zip(QUERIES, hits.rows, hits.scores, strict=True):
        wanted = expected(docs, query)
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            assert wanted.get(docs[row].id, 0.0) == score


def test_what_an_encoder_reads() -> None:
    document = Document("a", "Title", "Text", {"place": "Yukon", "year": 1898, "text": "other"})
    assert document_input(BM25Encoder(), document) == "Title Text"
    read = document_input(BM25Encoder(fields=FIELDS), document)
    assert read == {"title": "Title", "text": "Text", "place": "Yukon"}


def test_yaml() -> None:
    spec = {"type": "bm25", "fields": {"title": 1.0, "text": 1}}
    assert build(spec, ENCODERS, where="encoder").fields == {"title": 1.0, "text": 1.0}
    with pytest.raises(ConfigError, match=r"encoder\.field: unknown key; .*did you mean 'fields'"):
        check({"type": "bm25", "field": {"title": 1.0}}, ENCODERS, where="encoder")
    with pytest.raises(ConfigError, match=r"bm25\.fields\.title: 0; expected a number above 0"):
        build({"type": "bm25", "fields": {"title": 0}}, ENCODERS, where="encoder")
    encoder = BM25Encoder(fields={"titel": 1.0, "text": 1.0})
    with pytest.raises(ConfigError, match="did you mean 'title'"):
        Retriever.build(encoder, documents())
