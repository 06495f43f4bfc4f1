"""``examples: {type: corpus}``: shares, the consistency filter, candidates with scores."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.retrieval import Retriever
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.documents.document import Document
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.retrieval.training_data.files.corpus_mixture import CorpusExamples

WORLD = documents(40)


def corpus(world: list[Document] = WORLD) -> Dataset:
    return Dataset(MemorySource("world", world, {}), None)


def made(lists: Any = None, **settings: Any) -> list[Any]:
    opened = (lambda named, where: lists) if lists is not None else None
    spec = {"type": "corpus", **settings}
    return file_examples(spec, corpus(), 13, open_lists=opened)


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), WORLD)


def test_two_pairs_of_each_document_by_default() -> None:
    examples = made()
    assert Counter(e.documents[0].id for e in examples).most_common(1)[0][1] == 2
    assert len({e.query.id for e in examples}) == len(examples) > 60
    assert all(e.relevant == {e.documents[0].id} for e in examples)
    assert made() == examples
    assert file_examples({"type": "corpus"}, corpus(), 14) != examples


def test_a_share_of_nothing_gives_none_of_that_kind() -> None:
    titled = {d.id: d.title for d in WORLD if d.title}
    examples = made(sentences=0, crops=0, phrases=0)
    assert {e.documents[0].id: e.query.text for e in examples} == titled
    assert len(made(documents=6, per_document=1)) == 6


def test_shares_are_those_of_the_kinds_drawn() -> None:
    world = [
        Document(f"d{n}", f"title {n}", f"text {n} of many words that are cut into two spans here")
        for n in range(600)
    ]
    settings = {"titles": 3.0, "sentences": 0.0, "crops": 1.0, "phrases": 0.0, "per_document": 1}
    examples = file_examples({"type": "corpus", **settings}, corpus(world), 13)
    titles = sum(e.query.text.startswith("title") for e in examples)
    assert len(examples) == 600
    assert abs(titles - 450) < 4 * (600 * 0.75 * 0.25) ** 0.5


def test_only_pairs_whose_document_is_found_are_kept(
    bm25: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    every = made()
    with caplog.at_level(logging.INFO, "sluice"):
        kept = made(bm25, retriever="bm25", consistency=2)
    run = bm25.run({e.query.id: e.query.text for e in every}, None, 2)
    expected = [e for e in every if e.documents[0].id in run[e.query.id].doc_ids]
    assert kept == expected
    assert 0 < len(kept) < len(every)
    assert f"kept {len(kept)} of {len(every)} pairs, whose document is among the first 2" in (
        caplog.text
    )


def test_candidates_have_the_scores_of_the_list(bm25: Retriever) -> None:
    examples = made(bm25, retriever="bm25", candidates=3, depth=12, scale=30.0, consistency=12)
    pairs = {e.query.id: e.documents[0].text for e in made()}
    texts = {d.id: d.full_text for d in WORLD}
    for example in examples:
        ranking = bm25.run({"q": example.query.text}, None, 12)["q"]
        scores = np.asarray(ranking.scores, np.float64)
        spread = scores.max() - scores.min()
        for place, (document, score) in enumerate(
            zip(example.documents, example.scores, strict=True)
        ):
            raw = scores[list(ranking.doc_ids).index(document.id)]
            expected = 30.0 * (raw - scores.min()) / spread if spread else 0.0
            assert score == pytest.approx(expected)
            whole = texts[document.id]
            assert document.text == (whole if place else pairs[example.query.id])
            assert example.labels[place] == (place == 0)
        assert len(example.documents) == min(4, len(ranking))
    assert any(len(e.documents) == 4 for e in examples)


def test_a_positive_with_candidates_lacks_the_sentence_that_is_its_query() -> None:
    topics = [f"number {n} and stone {n}" for n in range(40)]
    world = [
        Document(f"d{n}", "", f"The gold of {t} is here. All the rivers of {t} are deep and cold.")
        for n, t in enumerate(topics)
    ]
    lists = Retriever.build(BM25Encoder(), world)
    spec = {"type": "corpus", "titles": 0, "crops": 0, "phrases": 0, "retriever": "bm25"}
    taught, plain = (
        file_examples({**spec, **more}, corpus(world), 13, open_lists=lambda *_: lists)
        for more in ({"candidates": 2}, {})
    )
    assert [e.documents[0] for e in taught] == [e.documents[0] for e in plain]
    held = [e.query.text in e.documents[0].text for e in taught]
    assert len(held) > 40
    assert sum(held) < len(held) / 4  # inverse cloze leaves a tenth of the sentences in


def test_any_stage_searches_the_corpus(bm25: Retriever) -> None:
    dense = Retriever.build(WordEncoder(), WORLD, name="words")
    assert made(bm25 | dense, retriever="hybrid", candidates=2)[0].scores


def test_what_cannot_search_the_corpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a run, which has no lists for queries that are made"):
        made(Run({"q": [("d00", 1.0)]}), retriever="x.trec")
    with pytest.raises(ConfigError, match=r"examples\.retriever: cannot be opened here"):
        made(retriever="bm25")


def test_nothing_found_and_nothing_to_make(tmp_path: Path) -> None:
    elsewhere = Retriever.build(BM25Encoder(), [Document("x", "", "gold river stone water")])
    with pytest.raises(
        DataError, match=r"of \d+ queries made from the corpus none finds its docum"
    ):
        made(elsewhere, retriever="x")
    with pytest.raises(DataError, match="no document of the corpus gives a pair to train on"):
        file_examples({"type": "corpus"}, corpus([Document("a", "", " ")]), 1)
    with pytest.raises(DataError, match="no document of the corpus gives a pair"):
        file_examples({"type": "corpus"}, corpus([]), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"titles": -1}, "corpus.titles is -1"),
        ({"titles": 0, "sentences": 0, "crops": 0, "phrases": 0}, "corpus: every share is 0"),
        ({"consistency": 5}, "corpus.consistency: looks at hits; add retriever"),
        ({"candidates": 5}, "corpus.candidates: looks at hits; add retriever"),
        ({"retriever": "a", "depth": 20}, "corpus.depth: is for candidates"),
        ({"retriever": "a", "scale": 3.0}, "corpus.scale: is for candidates"),
        ({"retriever": "a", "candidates": 3, "scale": 0}, "corpus.scale: 0"),
        ({"retriever": "a", "candidates": 50}, "corpus.depth: 50, expected 51 or more"),
        (
            {"retriever": "a", "candidates": 5, "consistency": 60},
            "corpus.depth: 50, expected 60 or more",
        ),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CorpusExamples(**settings)
