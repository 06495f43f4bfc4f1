"""The page on measures names what there is, and what it says of other tools is so."""

import re
from pathlib import Path

import ir_measures
import pytest
import pytrec_eval

from sluice.retrieval.evaluation.measure_table import MEASURES
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Run

PAGE = (Path(__file__).parents[1] / "docs" / "measures.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    table = PAGE[PAGE.index("| name |") : PAGE.index("Measures with a trec_eval name")]
    return [line.split("|")[1:-1] for line in table.splitlines()[2:] if line.startswith("|")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_measure_has_a_row_and_every_spelling_in_it_is_that_measure() -> None:
    named = []
    for ours, theirs, spelled, *_ in rows():
        names = {parse_measure(text).name for text in quoted(ours)}
        assert all(str(parse_measure(text)) == text for text in quoted(ours))
        assert len(names) == 1
        assert {parse_measure(text).name for text in quoted(theirs) + quoted(spelled)} <= names
        named += names
    assert named == list(dict.fromkeys(named))
    assert set(named) == set(MEASURES)


def test_the_spellings_of_others_are_theirs() -> None:
    for _, theirs, spelled, *_ in rows():
        for text in quoted(spelled):
            ir_measures.parse_measure(text)
        for text in quoted(theirs):
            if "@" not in text:  # BEIR's have it
                family = re.sub(r"_[\d.]+$", "", text)
                assert family in pytrec_eval.supported_measures, text


def test_sentence_transformers() -> None:
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    evaluator = evaluation.InformationRetrievalEvaluator(
        {"q": "query", "none": "query"}, {doc: doc for doc in "abcde"},
        {"q": {"a", "c", "d", "e"}, "none": set()}, mrr_at_k=[3], ndcg_at_k=[3],
        accuracy_at_k=[3], precision_recall_at_k=[3], map_at_k=[3],
    )  # fmt: skip
    hits = {"b": 1.0, "a": 1.0, "c": 0.5}
    found = evaluator.compute_metrics(
        [[{"corpus_id": doc, "score": score} for doc, score in hits.items()]]
    )
    graded = {"q": {"a": 1, "c": 2, "d": 1, "e": 1}}
    ours = evaluate(Run({"q": hits}), graded, ["RR@3", "AP@3", "nDCG@3", "R@3"]).mean
    assert (found["mrr@k"][3], ours["RR@3"]) == (1.0, 0.5)  # a before b, and b before a
    assert found["map@k"][3] == pytest.approx((1 + 2 / 3) / 3)
    assert ours["AP@3"] == pytest.approx((1 / 2 + 2 / 3) / 4)
    assert found["recall@k"][3] == ours["R@3"] == 0.5  # of one query: `none` is left out
    assert found["ndcg@k"][3] != pytest.approx(ours["nDCG@3"])


def test_pytrec_eval_leaves_missing_queries_out() -> None:
    qrels, run = {"q": {"a": 1}, "p": {"a": 1}}, {"q": {"a": 1.0}}
    assert set(pytrec_eval.RelevanceEvaluator(qrels, {"map"}).evaluate(run)) == {"q"}
    assert evaluate(run, qrels, ["AP"]).mean["AP"] == 0.5
