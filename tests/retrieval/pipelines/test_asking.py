"""Several questions as one, the reasoning so far, and documents that were seen."""

import pickle
from typing import Any

import numpy as np
import pytest
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.long_query import LongQuery
from sluice.retrieval import Hit, Passages, Rerank, Retriever, Run
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.runs.queries import Unseen
from sluice.retrieval.runs.run import without
from sluice.retrieval.stages.transforms.rules import synonyms

QUESTIONS = ["gold river", "word7 water", "silver"]


def ids(hits: list[Hit]) -> list[str]:
    return [hit.doc_id for hit in hits]


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), documents())


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(WordEncoder(), documents())


@pytest.fixture(scope="module")
def stages(bm25: Retriever, dense: Retriever) -> dict[str, Any]:
    return {
        "bm25": bm25,
        "dense": dense,
        "hybrid": bm25 | dense,
        "filtered": bm25.filtered({"id": [each.id for each in documents()[::2]]}),
        "transformed": synonyms(bm25, rules=["gold => gold|ore"]),
        "cascade": bm25 % 6 >> Rerank(LengthScorer(), depth=4),
    }


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "filtered", "transformed"])
def test_seen_documents_leave_their_places_to_others(stages: dict[str, Any], name: str) -> None:
    stage = stages[name]
    whole = ids(stage.search("gold river", 1_000))
    for count in (1, 3, len(whole)):
        seen = whole[:count]
        for k in (1, 4, len(documents())):
            left = ids(stage.search("gold river", k, seen=[*seen, "nobody"]))
            assert len(left) == min(k, len(whole) - count)
            if name != "filtered":  # one condition on ids is enough
                assert left == ids(stage.search("gold river", k, where={"id": {"not": seen}}))
    both = stage.search(QUESTIONS[:2], 3, seen=whole[:2])
    assert both == [stage.search(text, 3, seen=whole[:2]) for text in QUESTIONS[:2]]


def test_a_cut_finds_as_many_as_before(stages: dict[str, Any]) -> None:
    """What was seen takes no place of a cut, and is not reranked."""
    cascade = stages["cascade"]
    seen = ids(cascade.search("gold river", 6))
    assert len(seen) == len(set(seen)) == 6
    left = ids(cascade.search("gold river", 6, seen=seen))
    assert len(left) == 6
    assert not set(left) & set(seen)


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "cascade"])
def test_several_questions_are_one_search(stages: dict[str, Any], name: str) -> None:
    stage = stages[name]
    alone = [stage.run({"": text}) for text in QUESTIONS]
    expected = Fusion("rrf").fuse(alone)[""][:5]
    found = stage.search(QUESTIONS, 5, fuse=True)
    assert ids(found) == list(expected.doc_ids)
    np.testing.assert_array_equal([hit.score for hit in found], expected.scores)
    seen = ids(found)[:2]
    expected = Fusion("rrf").fuse([Run({"": without(run[""], *seen)}) for run in alone])[""]
    if name != "cascade":  # whose cut lets others through
        assert ids(stage.search(QUESTIONS, 5, fuse=True, seen=seen)) == list(expected.doc_ids[:5])
    assert stage.search(QUESTIONS[:1], 5, fuse=True) == stage.search(QUESTIONS[0], 5)
    assert stage.search(QUESTIONS[0], 5, fuse=True) == stage.search(QUESTIONS[0], 5)


def test_fused_hits_have_the_passage_of_the_question_that_ranked_them_best() -> None:
    long = [each._replace(text=f"{each.text} gold. " * 9) for each in documents()]
    retriever = Retriever.build(BM25Encoder(), long, passages=Passages(12, 3))
    passages = {hit.doc_id: hit.passage for hit in retriever.search(QUESTIONS[0], 1_000)}
    passages |= {hit.doc_id: hit.passage for hit in retriever.search(QUESTIONS[1], 3)}
    (first, *_) = retriever.search(QUESTIONS[:2], 1, fuse=True)
    assert first.passage == passages[first.doc_id]


def test_the_context_is_read_behind_the_question(bm25: Retriever, dense: Retriever) -> None:
    context = "the reasoning so far names silver and silver again"
    text = "gold river\n\n" + context
    assert dense.search("gold river", 5, context=context) == dense.search(text, 5)
    expected = bm25.encoder.encode_queries([LongQuery(text)])
    found = bm25.search("gold river", 5, context=context)
    hits = bm25.index.search(expected, 5)
    np.testing.assert_allclose([hit.score for hit in found], hits.scores[0], rtol=1e-6)
    assert bm25.search("gold river", 5) != found
    together = bm25.search(QUESTIONS, 5, fuse=True, context=context)
    lists = [Run({"": bm25.run({"": LongQuery(f"{q}\n\n{context}")})[""]}) for q in QUESTIONS]
    assert ids(together) == list(Fusion("rrf").fuse(lists)[""].doc_ids[:5])
    assert pickle.loads(pickle.dumps(LongQuery("a"))) == "a"
    assert pickle.loads(pickle.dumps(Unseen({"q": "a"}, ["d"]))).seen == {"d"}


def test_parameters_of_a_call_hold_with_the_rest(bm25: Retriever) -> None:
    found = bm25.search(QUESTIONS, 5, fuse=True, params={"engine": "terms"})
    assert found == bm25.search(QUESTIONS, 5, fuse=True)
    with pytest.raises(ConfigError, match="a vector goes with neither"):
        bm25.search(vector=np.ones(3, np.float32), seen=["a"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"context": ""}, "context: ''; expected the reasoning so far"),
        ({"context": " \n"}, "expected the reasoning so far"),
        ({"seen": "doc1"}, "seen: 'doc1'; expected a list"),
        ({"seen": [1]}, "expected a list of documents' ids"),
        ({"fuse": "yes"}, "fuse: 'yes'; expected true or false"),
    ],
)
def test_what_is_wrong_is_named(bm25: Retriever, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bm25.search("gold", **asked)


def test_no_question_and_blank_ones(bm25: Retriever) -> None:
    with pytest.raises(ConfigError, match="expected at least one question"):
        bm25.search([], fuse=True)
    assert bm25.search(["", " "], fuse=True) == []
    assert bm25.search("", context="silver") == []
    assert ids(bm25.search(["gold", ""], 3, fuse=True)) == ids(bm25.search("gold", 1_000))[:3]
    assert bm25.search([], seen=["a"]) == []
