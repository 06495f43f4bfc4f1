"""Stages among PyTerrier's operators and under its ``Experiment``; no Java is started."""

import warnings

import numpy as np
import pytest
from small_world import LengthScorer

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Rerank, Retriever, evaluate

with warnings.catch_warnings():  # what it and its packages deprecate is not ours
    warnings.simplefilter("ignore")
    pt = pytest.importorskip("pyterrier")
    import pandas as pd

from sluice.retrieval.exchange.adapters.retrievers import pyterrier_transformer

pytestmark = pytest.mark.filterwarnings("ignore")
QUERIES = {"b": "gold river", "a": "number 7", "c": "zzz"}
TOPICS = pd.DataFrame(QUERIES.items(), columns=["qid", "query"])
COLUMNS = ["qid", "query", "docno", "score", "rank"]


def hits(frame: pd.DataFrame) -> dict[str, list[tuple[str, float]]]:
    """By query, in the order of the rank."""
    ordered = frame.sort_values(["qid", "rank"])
    return {
        query: list(zip(rows["docno"], rows["score"], strict=True))
        for query, rows in ordered.groupby("qid")
    }


def test_a_frame_holds_the_run(bm25: Retriever) -> None:
    found = pyterrier_transformer(bm25, k=5)(TOPICS)
    assert list(found.columns) == COLUMNS
    run = bm25.run(QUERIES, None, 5).top(5)
    assert hits(found) == {query: list(run[query]) for query in ("a", "b")}  # c has no hit
    assert found["rank"].tolist() == [*range(len(run["b"])), *range(len(run["a"]))]
    assert set(found.loc[found["qid"] == "a", "query"]) == {"number 7"}
    assert found["score"].dtype == np.float64
    assert pyterrier_transformer(bm25)([{"qid": "b", "query": "gold river"}])[0]["rank"] == 0


def test_empty_frames_keep_their_columns(bm25: Retriever) -> None:
    retriever = pyterrier_transformer(bm25)
    reranker = pyterrier_transformer(Rerank(LengthScorer(), documents=bm25.store))
    for topics in (TOPICS[:0], TOPICS[2:], pd.DataFrame([], columns=["qid", "query"])):
        found = (retriever >> reranker)(topics)
        assert list(found.columns) == COLUMNS
        assert len(found) == 0
    assert pt.inspect.transformer_outputs(retriever, ["qid", "query"]) == COLUMNS


def test_operators(bm25: Retriever, dense: Retriever) -> None:
    sparse, other = pyterrier_transformer(bm25, k=50), pyterrier_transformer(dense, k=50)
    cut = (sparse % 3)(TOPICS)
    assert hits(cut) == {q: list(bm25.run(QUERIES, None, 50)[q])[:3] for q in ("a", "b")}

    summed = hits((sparse + other)(TOPICS))
    runs = [stage.run(QUERIES, None, 50) for stage in (bm25, dense)]
    for query, found in summed.items():
        parts = [dict(run[query]) for run in runs]
        expected = {d: sum(p.get(d, 0.0) for p in parts) for p in parts for d in p}
        assert dict(found) == pytest.approx(expected)

    doubled = hits((2 * sparse)(TOPICS))
    assert doubled["b"] == [(doc, 2 * score) for doc, score in runs[0]["b"]]
    assert set((sparse | other)(TOPICS)["docno"]) == {
        d for run in runs for q in run for d, _ in run[q]
    }


def test_rerankers_follow_retrievers(bm25: Retriever) -> None:
    """With a store of their own, with texts from the frame, and as one pipeline: the same."""
    rerank = Rerank(LengthScorer(), depth=4)
    expected = (bm25 % 9 >> rerank).run(QUERIES)
    first = pyterrier_transformer(bm25, k=9)
    own = pyterrier_transformer(Rerank(LengthScorer(), depth=4, documents=bm25.store))
    texts = pt.apply.text(lambda row: bm25.store.text(row["docno"]))
    for pipeline in (
        first >> own,
        first >> texts >> pyterrier_transformer(rerank),
        pyterrier_transformer(bm25 % 9 >> rerank),
    ):
        found = pipeline(TOPICS)
        assert hits(found) == {q: list(expected.to_dict()[q].items()) for q in ("a", "b")}
    kept = (first >> pt.apply.note(lambda row: row["docno"] + "!") >> own)(TOPICS)
    assert list(kept.columns) == [*COLUMNS, "note"]
    assert (kept["note"] == kept["docno"] + "!").all()


def test_candidates_come_in_the_order_of_the_frame(bm25: Retriever) -> None:
    """The rank, else the score, else the rows: only the head is reranked."""
    rows = pd.DataFrame({
        "qid": "b", "query": "gold river", "docno": ["d00", "d01", "d02", "d03"],
        "score": [1.0, 4.0, 3.0, 2.0], "rank": [3, 2, 0, 1],
    })  # fmt: skip
    reranker = pyterrier_transformer(Rerank(LengthScorer(), depth=0, documents=bm25.store))
    assert list(reranker(rows)["docno"]) == ["d02", "d03", "d01", "d00"]
    assert list(reranker(rows.drop(columns="rank"))["docno"]) == ["d01", "d02", "d03", "d00"]
    bare = reranker(rows.drop(columns=["rank", "score"]))
    assert list(bare["docno"]) == ["d00", "d01", "d02", "d03"]
    assert list(bare["score"]) == [4.0, 3.0, 2.0, 1.0]


def test_other_columns_of_queries_are_kept(bm25: Retriever) -> None:
    rewritten = pt.model.push_queries(TOPICS).assign(query="stone")
    found = pyterrier_transformer(bm25, k=2)(rewritten)
    assert list(found.columns) == [*COLUMNS, "query_0"]
    assert set(found["query_0"]) == set(QUERIES.values())
    again = (pyterrier_transformer(bm25, k=9) >> pyterrier_transformer(bm25, k=2))(TOPICS)
    assert hits(again) == hits(pyterrier_transformer(bm25, k=2)(TOPICS))


def test_an_experiment_has_the_values_of_evaluate(bm25: Retriever, dense: Retriever) -> None:
    from ir_measures import AP, R, nDCG

    qrels = {"a": {"d07": 2, "d17": 1}, "b": {"d00": 1, "d10": 3, "d21": 1}, "c": {"d01": 1}}
    rows = [(q, doc, grade) for q, grades in qrels.items() for doc, grade in grades.items()]
    judged = pd.DataFrame(rows, columns=["qid", "docno", "label"])
    stages = [bm25, dense % 20 >> Rerank(LengthScorer(), depth=5)]
    table = pt.Experiment(
        [pyterrier_transformer(stage) for stage in stages], TOPICS, judged, [nDCG @ 10, R @ 5, AP]
    )
    for place, stage in enumerate(stages):
        expected = evaluate(stage.run(QUERIES, None, 1000), qrels, ["nDCG@10", "R@5", "AP"]).mean
        for name, value in expected.items():
            assert table[name][place] == pytest.approx(value, abs=1e-7)


def test_what_is_wrong_is_said(bm25: Retriever) -> None:
    reranker = pyterrier_transformer(Rerank(LengthScorer(), documents=bm25.store))
    with pytest.raises(KeyError, match="docno"):
        reranker(TOPICS)
    with pytest.raises(DataError, match="qid 'b': two texts"):
        pyterrier_transformer(bm25)(pd.concat([TOPICS, TOPICS.assign(query="other")]))
    twice = pd.DataFrame({"qid": "b", "query": "x", "docno": ["d00", "d00"]})
    with pytest.raises(DataError, match="'d00' is in the list twice"):
        reranker(twice)
    with pytest.raises(ConfigError, match="expected a stage"):
        pyterrier_transformer("bm25")
