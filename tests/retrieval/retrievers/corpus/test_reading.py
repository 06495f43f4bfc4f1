"""What an encoder does not read is counted, said once, noted, and cured by passages."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import documents

from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.foundation.tokens import TokenCounts, counting_tokens
from sluice.encoders.transformer import tokens as tokens_module
from sluice.encoders.transformer.tokens import tokenized
from sluice.retrieval import Document, Encoding, Passages, Rerank, Retriever
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.report import describe
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.retrievers.corpus.encoding import FIRST, Reading
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import corpus_estimate

LIMIT = 40


def long_documents() -> list[Document]:
    return [
        document._replace(text=" ".join([document.text] * (1 + place % 6)))
        for place, document in enumerate(documents())
    ]


@pytest.fixture
def dense(bert: Path) -> DenseEncoder:
    return DenseEncoder.from_pretrained(bert, device="cpu", document_length=LIMIT)


def expected(encoder: Any, docs: list[Document]) -> Reading:
    """The counts of a second tokenisation, without a limit."""
    texts = [document.full_text for document in docs]
    full = [len(ids) for ids in encoder.tokenized(texts, length=None).ids]
    beyond = [max(0, count - LIMIT) for count in full]
    cut = sum(count > 0 for count in beyond)
    return Reading(len(docs), cut, sum(full), sum(beyond), LIMIT)


def test_what_is_cut_is_said_and_noted(
    dense: DenseEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs = long_documents()
    reading = expected(dense, docs)
    assert 0 < reading.cut < len(docs)
    with caplog.at_level(logging.WARNING, "sluice"):
        built = Retriever.build(dense, docs, path=tmp_path / "dense")
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"dense: {reading} ({reading.cure} reads everything)"]
    assert f"{reading.cut} of 40 documents are longer than 40 tokens; " in said[0]
    assert "passages: {length: 32, overlap: 8} reads everything" in said[0]
    assert Reading.noted(Retriever.open(tmp_path / "dense").head.origin) == reading

    caplog.clear()
    with caplog.at_level(logging.WARNING, "sluice"):
        built.add([Document("new", "", "gold " * 60)])
        cut = Retriever.build(dense, docs, passages=Passages(30, 7))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("added: 1 of 1 documents is longer than 40 tokens; ")
    assert Reading.noted(built.head.origin) == reading  # of the build
    assert str(Reading.noted(cut.head.origin)).startswith("all ")


def test_cached_vectors_remember_what_was_read(dense: DenseEncoder, tmp_path: Path) -> None:
    docs, encoding = long_documents(), Encoding(cache=tmp_path / "cache", shard=7)
    readings = [
        Reading.noted(Retriever.build(dense, docs[:count], encoding=encoding).head.origin)
        for count in (20, 40, 40)
    ]
    assert readings == [expected(dense, docs[:20]), *[expected(dense, docs)] * 2]


def test_an_estimate_says_it_before(dense: DenseEncoder) -> None:
    docs = long_documents()[:FIRST]  # all of them are timed
    estimate = corpus_estimate(dense, lambda: docs, Encoding())
    assert estimate is not None
    assert estimate.reading == expected(dense, docs)
    assert "longer than 40 tokens" in str(estimate)
    full = [len(ids) for ids in dense.tokenized([d.full_text for d in docs], length=LIMIT).ids]
    assert estimate.tokens == pytest.approx(np.mean(full))


@pytest.mark.parametrize("pairs", [False, True])
def test_many_texts_are_counted_by_a_sample(
    dense: DenseEncoder, monkeypatch: pytest.MonkeyPatch, pairs: bool
) -> None:
    monkeypatch.setattr(tokens_module, "EXACT_CUTS", 8)
    monkeypatch.setattr(tokens_module, "CUTS_COUNTED", 4)
    texts = [document.full_text for document in long_documents() * 4]
    parts = ([["gold"] * len(texts)] if pairs else []) + [texts]
    with counting_tokens():
        counts = tokenized(dense.tokenizer, *parts, length=LIMIT).counts
    full = np.array([len(ids) for ids in tokenized(dense.tokenizer, *parts, length=None).ids])
    assert counts is not None
    assert ((counts.full > LIMIT) == (full > LIMIT)).all()
    assert counts.read.max() == LIMIT
    if not pairs:
        assert counts.full.sum() == pytest.approx(full.sum(), rel=0.1)
        assert (counts.full[full <= LIMIT] == full[full <= LIMIT]).all()
    assert tokenized(dense.tokenizer, *parts, length=LIMIT).counts is None


def test_counts_of_parts_are_joined_if_none_is_missing() -> None:
    part = TokenCounts(np.array([5, 9], np.int32), np.array([5, 7], np.int32))
    joined = TokenCounts.joined([part, part], 4)
    assert joined is not None
    assert joined.full.tolist() == [5, 9, 5, 9]
    assert TokenCounts.joined([part], 3) is None
    assert TokenCounts.joined([], 0) is not None


def test_a_reranker_says_how_many_pairs_it_cuts(
    pair_bert: Path, bm25: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    queries = {"a": "gold river", "b": "stone water"}
    stage = bm25 >> Rerank(CrossEncoder.from_pretrained(pair_bert, max_length=12), 10, name="cross")
    with caplog.at_level(logging.WARNING, "sluice"), tracing() as spans:
        stage.run(queries)
    (said,) = (record.getMessage() for record in caplog.records)
    cut = spans[0].inner[-1].facts["pairs cut"]
    assert 0 < cut <= 20
    assert said.startswith(f"cross: {cut} of 20 pairs exceed 12 tokens and are cut; ")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "sluice"):
        stage.search("gold river")  # of a search alone it is said once
    assert not caplog.records
    roomy = bm25 >> Rerank(CrossEncoder.from_pretrained(pair_bert, max_length=64), 10)
    with caplog.at_level(logging.WARNING, "sluice"), tracing() as spans:
        roomy.run(queries)
    assert not caplog.records
    assert "pairs cut" not in spans[0].inner[-1].facts


def test_a_dataset_says_how_long_its_documents_are() -> None:
    docs = [Document("a", "", "gold " * 600), Document("b", "", "river")]
    report = describe(Dataset.from_memory(docs, {"q": "gold"}, {"q": {"a": 1}}))
    assert report["longer_than"] == {
        "256 tokens, about 190 words": {"documents": 1, "unread_share": round(410 / 601, 3)},
        "512 tokens, about 380 words": {"documents": 1, "unread_share": round(220 / 601, 3)},
    }
