"""``diverse`` and ``budget_tokens``: no repetition, and no more than was asked for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from small_world import WordEncoder

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.retrieval import Document, Retriever, Run
from sluice.retrieval.documents.likeness import cosines, text_likeness, varied, word_hashes
from sluice.retrieval.documents.text import tokens_of
from sluice.retrieval.pipelines.asking import Filled
from sluice.retrieval.stages.diverse import diverse

TEXTS = {
    "a": "gold was found in the river near the old mill",
    "b": "gold was found in the river near the old mine",  # all words but one are a's
    "c": "the river floods gold fields every spring",
    "d": "a mill grinds corn",
    "e": "nothing of the kind",
}


@pytest.fixture
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), [Document(n, "", text) for n, text in TEXTS.items()])


def jaccard(a: str, b: str) -> float:
    one, other = set(a.split()), set(b.split())
    return len(one & other) / len(one | other)


def test_likeness_estimates_the_share_of_common_words() -> None:
    texts = [*TEXTS.values(), "", "  ", "gold"]
    alike = text_likeness(texts)
    for i, j in itertools.product(range(5), repeat=2):
        assert alike[i, j] == pytest.approx(jaccard(texts[i], texts[j]), abs=0.15)
    assert np.array_equal(np.diagonal(alike), np.ones(len(texts)))
    assert alike[5, 6] == 1  # two texts without words
    assert text_likeness([]).shape == (0, 0)
    assert len(word_hashes("Gold GOLD gold")) == 1
    assert len(word_hashes("")) == 0


def test_cosines_with_nothing_are_0() -> None:
    vectors = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, 3.0]], np.float32)
    assert cosines(vectors) == pytest.approx(np.array([[1, 0, 0.96], [0, 0, 0], [0.96, 0, 1]]))


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
def test_the_order_is_that_of_maximal_marginal_relevance(weight: float) -> None:
    draw = np.random.default_rng(7)
    for count in (1, 2, 7):
        scores = np.sort(draw.random(count))[::-1]
        alike = draw.random((count, count)) * 0.7
        alike = (alike + alike.T) / 2
        np.fill_diagonal(alike, 1)
        found = varied(scores, alike, weight, 0.9)
        span = scores.max() - scores.min()
        relevance = (scores - scores.min()) / span if span else np.ones(count)
        left, order = list(range(count)), list[int]()
        while left:  # Carbonell and Goldstein, 1998
            gain = {
                i: weight * relevance[i]
                - (1 - weight) * max((alike[i, j] for j in order), default=0.0)
                for i in left
            }
            best = max(left, key=lambda i: (gain[i], -i))
            order.append(best)
            left.remove(best)
        assert found.places == order
        assert not found.dropped


def test_near_duplicates_of_better_ones_are_dropped() -> None:
    alike = np.array([[1, 0.9, 0.1], [0.9, 1, 0.85], [0.1, 0.85, 1]])
    found = varied(np.array([3.0, 2.0, 1.0]), alike, 1.0, 0.8)
    assert found.places == [0, 2]  # the last is like one that is dropped
    assert found.dropped == [(1, 0, 0.9)]
    same = varied(np.array([1.0, 1.0, 1.0]), np.eye(3), 0.5, 0.8)
    assert same.places == [0, 1, 2]  # ties are the earlier one's
    assert varied(np.zeros(0), np.zeros((0, 0)), 0.5, 0.8) == ([], [], [])


def test_a_pipeline_without_repetition(bm25: Retriever) -> None:
    plain = [hit.doc_id for hit in bm25.search("gold river mill", 5)]
    assert plain[0] == "a"
    assert "b" in plain
    stage = bm25 >> diverse(0.7, duplicates=0.6)
    hits = [hit.doc_id for hit in stage.search("gold river mill", 5)]
    assert hits == [name for name in plain if name != "b"]
    scores = [hit.score for hit in stage.search("gold river mill", 5)]
    assert scores == sorted(scores, reverse=True)
    every = bm25 >> diverse(1.0, duplicates=2)
    assert [hit.doc_id for hit in every.search("gold river mill", 5)] == plain
    run = stage.run({"1": "gold", "2": "unknownword"})
    assert list(run) == ["1", "2"]
    assert len(run["2"]) == 0


def test_vectors_tell_likeness_too(bm25: Retriever) -> None:
    dense = Retriever.build(WordEncoder(), [Document(n, "", text) for n, text in TEXTS.items()])
    stage = bm25 >> diverse(0.7, dense, duplicates=0.8)
    assert {"a", "b"} - {hit.doc_id for hit in stage.search("gold river mill", 5)} == {"b"}
    with pytest.raises(ConfigError, match="expected a retriever"):
        diverse(0.7, "dense")
    with pytest.raises(ConfigError, match="needs candidates"):
        diverse(0.7).run({"1": "gold"})
    with pytest.raises(ConfigError, match="the stage before it has no documents"):
        diverse(0.7).run({"1": "gold"}, Run({"1": {"a": 1.0}}))
    with pytest.raises(ConfigError, match="diverse: weight"):
        diverse(1.5)


@pytest.mark.parametrize("budget", [1, 3, 9, 14, 25, 1000])
def test_a_budget_is_kept_without_repetition(bm25: Retriever, budget: int) -> None:
    hits = bm25.search("gold river mill", budget_tokens=budget)
    assert isinstance(hits, Filled)
    assert (
        hits.tokens == sum(tokens_of(f"{h.title} {h.passage[3]}".strip()) for h in hits) <= budget
    )
    assert len(hits) + len(hits.dropped) == 4  # of all that match
    for hit in hits:
        assert hit.passage is not None
        assert hit.text[hit.passage[1] : hit.passage[2]] == hit.passage[3]
    if budget >= 14:
        assert hits[0].doc_id == "a"
    if budget == 1000:
        assert [each[:2] for each in hits.dropped] == [("b", "a")]
    assert len(bm25.search("gold river mill", 1, budget_tokens=budget)) <= 1


def test_budgets_that_are_none(bm25: Retriever) -> None:
    for wrong in (0, -3, 2.5, True):
        with pytest.raises(ConfigError, match="budget_tokens"):
            bm25.search("gold", budget_tokens=wrong)  # type: ignore[arg-type]
    assert bm25.search("unknownword", budget_tokens=10) == []
    both = bm25.search(["gold", "mill"], budget_tokens=10)
    assert [len(each) > 0 for each in both] == [True, True]


def test_the_command_says_what_is_left_out(bm25: Retriever, tmp_path: Path, sluice: Call) -> None:
    bm25.save(tmp_path / "r")
    code, out, _ = sluice("search", tmp_path / "r", "gold river mill", "--budget-tokens", "1000")
    assert code == 0
    assert "left out: 0 documents, b like a" in out
    code, out, err = sluice(
        "search", tmp_path / "r", "gold river mill", "--budget-tokens", "1000", "--json"
    )
    assert {json.loads(line)["doc_id"] for line in out.splitlines()} == {"a", "c", "d"}
    assert "b like a" in err
    code, _, err = sluice("search", tmp_path / "r", "gold", "--budget-tokens", "0")
    assert (code, "budget_tokens" in err) == (2, True)
