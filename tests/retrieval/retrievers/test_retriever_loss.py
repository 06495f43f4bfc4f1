"""A retriever whose inverted index has a loss: what queries choose, and where it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.indexing import InvertedIndex
from sluice.indexing.inverted import approximate
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.measurements import gather_recalls
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline

WORDS = [f"w{number}" for number in range(120)]


def texts(count: int, length: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    places = (len(WORDS) * rng.random((count, length)) ** 2).astype(int)
    return [" ".join(WORDS[place] for place in line) for line in places]


QUERIES = {f"q{number}": text for number, text in enumerate(texts(60, 8, 1))}
DOCUMENTS = [Document(f"d{number}", "", text) for number, text in enumerate(texts(800, 20, 2))]


@pytest.fixture(autouse=True)
def chosen_though_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "WORTH", 2.0)
    monkeypatch.setattr(approximate, "BETAS", (1.0, 0.8))
    monkeypatch.setattr(approximate, "ALPHAS", (1.0, 0.5))


def test_queries_choose_it_and_reports_tell(tmp_path: Path) -> None:
    built = Retriever.build(
        BM25Encoder(), DOCUMENTS, index=InvertedIndex(loss=0.5), queries=QUERIES,
        path=tmp_path / "bm25",
    )  # fmt: skip
    opened = Retriever.open(tmp_path / "bm25")
    index: Any = opened.index
    note = index.recall_note
    assert note == built.index.recall_note  # type: ignore[attr-defined]
    assert (note.source, note.queries, note.documents) == ("queries", 60, 800)
    assert note.beta == 0.8
    found = opened.explain(QUERIES["q0"], "d1")
    assert found.recall == f"loss: {note}"
    assert explain_pipeline(opened, QUERIES["q0"]).steps[0].facts["recall"] == found.recall
    noted, measured = gather_recalls(opened, QUERIES)
    assert str(noted) == f"{opened.name}: {found.recall[6:]}"
    assert (noted.queries, noted.recall) == (60, {"10": note.at_10, "100": note.at_100})
    assert measured.queries == 60
    assert measured.recall["10"] == pytest.approx(note.at_10, abs=0.01)
    assert measured.recall["100"] == pytest.approx(note.at_100, abs=0.01)


def test_parameters_are_measured_on_the_queries_asked() -> None:
    retriever = Retriever.build(BM25Encoder(), DOCUMENTS, index=InvertedIndex())
    assert gather_recalls(retriever, QUERIES) == []
    exact = retriever.run(QUERIES, k=10)
    retriever.params = {"beta": 0.5}
    run = retriever.run(QUERIES, k=10)
    shares = [len({*run[each].doc_ids} & {*exact[each].doc_ids}) / 10 for each in QUERIES]
    assert np.mean(shares) < 1
    (measured,) = gather_recalls(retriever, QUERIES)
    assert measured.recall["10"] == pytest.approx(np.mean(shares), abs=0.01)  # ties count as found
    assert f"{100 * measured.recall['10']:.1f}% of the best 10" in str(measured)
    told = retriever.explain(QUERIES["q0"], "d1").recall
    assert told == f"alpha=1, beta=0.5: {round(10 * shares[0])} of the exact best 10 for this query"
    retriever.params = {"alpha": 1, "beta": 1}
    assert retriever.explain(QUERIES["q0"], "d1").recall == ""


def test_passages_and_shards_are_measured_by_queries() -> None:
    long = [Document("long", "", " ".join(each.text for each in DOCUMENTS[:30])), *DOCUMENTS[30:]]
    cut = Retriever.build(
        BM25Encoder(), long, index=InvertedIndex(loss=0.5), queries=QUERIES,
        passages=Passages(length=20, overlap=0),
    )  # fmt: skip
    inner: Any = cut.index.innermost
    assert (inner.recall_note.source, inner.recall_note.queries) == ("queries", 60)
    parts = Retriever.build(
        BM25Encoder(), DOCUMENTS, index=InvertedIndex(loss=0.5), queries=QUERIES, shards=2
    )
    noted = gather_recalls(parts, QUERIES)
    assert [each.queries for each in noted] == [60, 60, 60]
    assert [each.note != "" for each in noted] == [True, True, False]
