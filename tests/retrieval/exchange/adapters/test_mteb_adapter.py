"""mteb's own runner reports the values of ``evaluate``."""

import logging
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import pytest
from small_world import ConstantScorer, LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Dataset, Document, Rerank, Retriever, Stage, evaluate
from sluice.retrieval.exchange.adapters.evaluation import MtebSearch

# What it and its packages deprecate is not ours; it takes a second to import.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not find_spec("mteb"), reason="mteb is not installed"),
]
MEASURES = {
    "nDCG@10": "ndcg_at_10", "R@100": "recall_at_100", "AP@100": "map_at_100", "RR@10": "mrr_at_10",
    "P@3": "precision_at_3", "Success@1": "hit_rate_at_1",
}  # fmt: skip
DOCUMENTS = [*documents(), Document("same", "", "gold river"), Document("twin", "", "gold river")]
QUERIES = {
    "tied": "gold river",
    "short": "number 7",
    "none": "zzz",  # no hit, and judged: 0
    "same": "gold river stone",  # the query is a document
    "graded": "the stone and water of number 12",
}
QRELS = {
    "tied": {"same": 1, "d10": 2, "d00": 1},
    "short": {"d07": 1, "d17": 0},
    "none": {"d03": 1},
    "same": {"twin": 1, "d02": 1, "d30": 3},
    "graded": {"d12": 3, "d02": 1, "d22": 2, "absent": 1},
}
ROWS = [{"id": query, "text": text} for query, text in QUERIES.items()]


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), DOCUMENTS, name="bm25")


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(WordEncoder(), DOCUMENTS, name="dense")


def task(*given: Any, **more: Any) -> Any:
    from mteb_task import LocalTask

    return LocalTask(*given, **more)


def scores(stage: Any, task: Any) -> Mapping[str, float]:
    import mteb
    from mteb.models import SearchProtocol

    model = MtebSearch(stage, name="sluice/test", revision="1")
    assert isinstance(model, SearchProtocol)
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    (found,) = result.task_results[0].scores["test"]
    return found


def same_values(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    for ours, theirs in MEASURES.items():  # most of theirs are rounded to five decimals
        assert found[theirs] == pytest.approx(expected[ours], abs=5.1e-6), ours


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["sparse", "dense", "fused", "cascade", "tied", "inverted"])
def test_the_values_are_those_of_evaluate(system: str, bm25: Retriever, dense: Retriever) -> None:
    stages: dict[str, Stage] = {
        "sparse": bm25,
        "dense": dense,
        "fused": bm25 | dense,
        "cascade": bm25 % 20 >> Rerank(LengthScorer(), depth=10),
        "tied": bm25 >> Rerank(ConstantScorer()),  # scores say nothing of the order
        "inverted": dense % 20 >> Rerank(LengthScorer(), depth=3, interpolate=0.5),
    }
    dataset = Dataset.from_memory(DOCUMENTS, QUERIES, QRELS)
    expected = evaluate(stages[system], dataset, MEASURES).mean
    assert 0.1 < expected["nDCG@10"] < 0.9
    same_values(scores(stages[system], task(DOCUMENTS, ROWS, QRELS)), expected)


def test_identical_ids_are_dropped_by_mteb(bm25: Retriever) -> None:
    dataset = Dataset.from_memory(DOCUMENTS, QUERIES, QRELS)
    expected = evaluate(bm25, dataset, MEASURES, ignore_identical_ids=True).mean
    made = task(DOCUMENTS, ROWS, QRELS, ignore_identical_ids=True)
    same_values(scores(bm25, made), expected)
    kept = evaluate(bm25, dataset, MEASURES).mean
    assert expected["nDCG@10"] != kept["nDCG@10"]


def test_a_stage_is_made_of_each_corpus() -> None:
    seen: list[list[Document]] = []

    def make(corpus: Iterable[Document]) -> Stage:
        seen.append(list(corpus))
        return Retriever.build(BM25Encoder(), corpus)

    dataset = Dataset.from_memory(DOCUMENTS, QUERIES, QRELS)
    expected = evaluate(make(DOCUMENTS), dataset, MEASURES).mean
    same_values(scores(make, task(DOCUMENTS, ROWS, QRELS)), expected)
    assert [document[:3] for document in seen[1]] == [document[:3] for document in DOCUMENTS]


def test_an_instruction_stands_behind_the_text(bm25: Retriever) -> None:
    rows = [
        {**row, "instruction": "about water" if place else None} for place, row in enumerate(ROWS)
    ]
    asked = {query: f"{text} about water" for query, text in QUERIES.items()} | {
        "tied": "gold river"
    }
    expected = evaluate(bm25, Dataset.from_memory(DOCUMENTS, asked, QRELS), MEASURES).mean
    same_values(scores(bm25, task(DOCUMENTS, rows, QRELS)), expected)


CANDIDATES = {
    "tied": ["d03", "d10", "same", "d00", "d10"], "short": ["d17", "d07"], "none": ["d03", "d04"],
    "same": ["d30", "d02", "same"], "graded": ["d01", "d02", "d12"],
}  # fmt: skip


def test_a_reranker_gets_the_candidates() -> None:
    """Without a store of its own: the texts are the task's."""
    lengths = {document.id: len(document.full_text) for document in DOCUMENTS}
    run = {q: {doc: lengths[doc] - i / 9 for i, doc in enumerate(c)} for q, c in CANDIDATES.items()}
    made = task(DOCUMENTS, ROWS, QRELS, top_ranked=CANDIDATES)
    same_values(scores(Rerank(LengthScorer()), made), evaluate(run, QRELS, MEASURES).mean)


def test_another_stage_ranks_the_candidates_among_all(bm25: Retriever) -> None:
    whole = bm25.run(QUERIES, None, len(DOCUMENTS))
    run = {q: {d: s for d, s in whole[q] if d in CANDIDATES[q]} for q in QUERIES}
    made = task(DOCUMENTS, ROWS, QRELS, top_ranked=CANDIDATES)
    same_values(scores(bm25, made), evaluate(run, QRELS, MEASURES).mean)


def test_the_stage_must_be_of_the_corpus(bm25: Retriever, caplog: pytest.LogCaptureFixture) -> None:
    for part, foreign in ((DOCUMENTS[:-1], "twin"), (DOCUMENTS[1:], DOCUMENTS[0].id)):
        says = f"'{foreign}' of its 42 is not in the task's corpus of 41"
        with pytest.raises(DataError, match=says):
            scores(bm25, task(part, ROWS, QRELS))
    pruned = Retriever.build(BM25Encoder(), DOCUMENTS[:-1], name="pruned")
    with caplog.at_level(logging.WARNING, "sluice"):
        scores(pruned, task(DOCUMENTS, ROWS, QRELS))
    assert "pruned: lacks 1 of 42 documents" in caplog.text
    with pytest.raises(ConfigError, match="maker/model"):
        MtebSearch(bm25, name="bm25", revision="1")


def test_conversations_are_refused(bm25: Retriever) -> None:
    rows = [{"id": "tied", "text": [{"role": "user", "content": "gold"}]}]
    with pytest.raises(DataError, match="'tied' of the task is not a text"):
        scores(bm25, task(DOCUMENTS, rows, QRELS))


def test_scifact(collections: Any) -> None:
    """A real collection: 300 queries over 5,183 abstracts."""
    from sluice.retrieval import load_dataset

    dataset = load_dataset(collections / "scifact")
    bm25 = Retriever.build(BM25Encoder(), dataset.corpus, name="bm25")
    rows = [{"id": query, "text": text} for query, text in dataset.queries.items()]
    found = scores(bm25, task(list(dataset.corpus), rows, dataset.qrels))
    expected = evaluate(bm25, dataset, MEASURES).mean
    same_values(found, expected)
    assert 0.65 < expected["nDCG@10"] < 0.72
