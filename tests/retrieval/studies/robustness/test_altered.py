"""The oracle: a retriever built over the corpus in which the document was replaced."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FlatIndex, InvertedIndex
from sluice.retrieval import Document, Passages, Rerank, Retriever, Run, Stage
from sluice.retrieval.pipelines.operators import Fuse
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.stages.rerankers.similarity import VectorDot
from sluice.retrieval.studies.robustness.replaced_document import AlteredPipeline

CORPUS = tuple(documents())
QUERIES = {"a": "gold river number", "b": "vector of stone", "c": "   ", "d05": "term rank"}
NEW = [
    Document("d03", "", "gold gold river stone"),
    Document("d05", "new", "term rank term rank vector"),
    Document("d11", "", "nothing shared here"),
    Document("d11", "", "Vector of STONE and water"),
    Document("d20", "", ""),
]
FITTED = BM25Encoder().fit(document.full_text for document in CORPUS)


@cache
def fixed(corpus: tuple[Document, ...]) -> Retriever:
    """BM25 with the counts of the clean corpus, whatever it indexes."""
    vectors = FITTED.encode_documents([document.full_text for document in corpus])
    return Retriever.build(FITTED, corpus, vectors=[vectors], index=InvertedIndex(), name="bm25")


@cache
def dense(corpus: tuple[Document, ...]) -> Retriever:
    return Retriever.build(WordEncoder(), corpus, index=FlatIndex("cosine"), name="dense")


@cache
def passages(corpus: tuple[Document, ...]) -> Retriever:
    cut = Passages(length=3, overlap=1)
    return Retriever.build(WordEncoder(), corpus, passages=cut, name="passages")


@cache
def means(corpus: tuple[Document, ...]) -> Retriever:
    cut = Passages(length=3, overlap=0, aggregate="mean")
    return Retriever.build(WordEncoder(), corpus, passages=cut, name="means")


class SharedWords:
    """Shared words of the pair; ``asked`` counts the pairs."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked += len(pairs)
        return [float(len({*q.lower().split()} & {*d.lower().split()})) for q, d in pairs]


PIPELINES: dict[str, Callable[[tuple[Document, ...]], Stage]] = {
    "sparse": fixed,
    "dense": dense,
    "passages": passages,
    "means": means,
    "filtered": lambda corpus: dense(corpus).filtered({}),
    "hybrid": lambda corpus: fixed(corpus) % 7 | dense(corpus) % 9,
    "least": lambda corpus: Fuse(
        [fixed(corpus), dense(corpus)], method="weighted", normalise="theoretical-min"
    ),
    "cascade": lambda corpus: (fixed(corpus) | dense(corpus)) % 12
    >> Rerank(SharedWords(), depth=6) >> Rerank(LengthScorer(), depth=3, interpolate=0.5),
}  # fmt: skip


def same(found: Run, expected: Run) -> None:
    assert list(found) == list(expected)
    for query, ranking in expected.items():
        assert list(found[query].doc_ids) == list(ranking.doc_ids), query
        np.testing.assert_allclose(found[query].scores, ranking.scores, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PIPELINES)
def test_lists_are_those_of_a_corpus_with_the_document_replaced(name: str) -> None:
    make = PIPELINES[name]
    altered = AlteredPipeline(make(CORPUS))
    for new in (None, *NEW):
        corpus = tuple(new if new and document.id == new.id else document for document in CORPUS)
        expected = make(corpus)
        for k in (5, 1000):
            for queries in (QUERIES, SelfExcluding(QUERIES)):
                same(altered.run(queries, new, k), expected.run(queries, None, k).top(k))


def test_what_is_prepared_is_not_scored_again() -> None:
    scorer = SharedWords()
    altered = AlteredPipeline(fixed(CORPUS) >> Rerank(scorer, depth=30))
    altered.run(QUERIES)
    jobs = [("a", NEW[0]), ("b", NEW[3])]
    altered.prepare(QUERIES, jobs)
    asked = scorer.asked
    for query, document in jobs:
        altered.run({query: QUERIES[query]}, document)
    assert scorer.asked == asked


def test_what_cannot_be_altered_is_named() -> None:
    retriever = dense(CORPUS)

    class Own(Stage):
        name = "own"

        def run(self, queries: Any, given: Run | None = None, k: int | None = None) -> Run:
            return retriever.run(queries, given, k)

    with pytest.raises(ConfigError, match="own: a Own cannot run with a replaced document"):
        AlteredPipeline(Own() | retriever)
    with pytest.raises(ConfigError, match="reads the index of 'dense'"):
        AlteredPipeline(retriever >> Rerank(VectorDot(retriever)))
