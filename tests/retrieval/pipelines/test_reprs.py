"""Reprs are short: what a prompt or a notebook shows of hits, retrievers and pipelines."""

from pathlib import Path

from small_world import LengthScorer, documents

from sluice.encoders import BM25Encoder
from sluice.retrieval import Document, Hit, Rerank, Retriever


def test_a_hit_shows_the_start_of_its_text() -> None:
    assert repr(Hit("d1", 1.5, "gold\n river")) == "Hit(doc_id='d1', score=1.5, text='gold river')"
    shown = repr(Hit("d1", 1 / 3, "word " * 2_000))
    assert len(shown) < 120
    assert shown.startswith("Hit(doc_id='d1', score=0.333333, text='word word")
    assert shown.endswith("...')")


def test_a_retriever_shows_its_name_documents_and_folder(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "bm25")
    parts = "bm25 encoder, inverted index, 40 documents"
    assert repr(retriever) == f"Retriever('bm25', {parts}, {str(tmp_path / 'bm25')!r})"
    opened = Retriever.open(tmp_path / "bm25")
    assert repr(opened) == repr(retriever)
    assert not vars(opened.state._parts).keys() & {"encoder", "index", "store"}  # none is opened


def test_a_pipeline_shows_its_expression() -> None:
    bm25 = Retriever.build(BM25Encoder(), [Document("a", "", "gold")], name="bm25")
    stage = bm25 % 100 >> Rerank(LengthScorer(), 20, name="length(depth=20)")
    assert repr(stage) == "Then('bm25 % 100 >> length(depth=20)')"
    assert repr(bm25 | bm25) == "Fuse('(bm25 | bm25)')"
    many = bm25
    for _ in range(100):
        many = many | bm25
    assert len(repr(many)) < 140
