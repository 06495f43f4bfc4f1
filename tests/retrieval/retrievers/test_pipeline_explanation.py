"""Explaining a pipeline: every step, every place, who found what, and what the trace costs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Rerank, Retriever, load_dataset
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import note, tracing
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.stages.feedback.stage import rm3


class Backwards:
    """Turns the order it is given around."""

    def score_lists(self, queries: Any, heads: Any, documents: Any) -> Any:
        return {query: list(range(len(head))) for query, head in heads.items()}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    dataset = load_dataset(str(write_beir(tmp_path_factory.mktemp("explain"))), "test")
    one = Retriever.build(BM25Encoder(), dataset.corpus, name="one")
    other = Retriever.build(BM25Encoder(k1=2.0, b=0.0), dataset.corpus, name="other")
    return one, other, next(iter(dataset.queries.values()))


def test_every_stage_is_told_with_its_cost(parts: Any) -> None:
    one, other, query = parts
    pipeline = (one | other) % 6 >> Rerank(Backwards(), 4, name="turned")
    found = explain_pipeline(pipeline, query, 3)
    names = [step.name for step in found.steps]
    assert names[:2] == ["one", "other"]
    assert names[-1] == "turned"
    assert [step.finds for step in found.steps[:2]] == [True, True]
    assert found.steps[-1].facts["pairs"] == 4
    assert sum(step.milliseconds for step in found.steps) <= found.milliseconds * 1.001
    plain = list(pipeline.run({"q": query})["q"].doc_ids)
    assert [path.doc_id for path in found.documents] == plain[:3]
    first = found.documents[0]
    assert first.decided == ("turned", 4, 1)
    assert first.found_by == ["one", "other"]
    whole = one.explain(query, first.doc_id)
    assert first.terms["one"] == whole.terms[:5]
    fused = list((one | other).run({"q": query})["q"].doc_ids)
    for path in found.documents:
        stood = {place.step: place.rank for place in path.places}
        assert stood["turned"] == plain.index(path.doc_id) + 1
        assert stood["one"] == list(one.run({"q": query})["q"].doc_ids).index(path.doc_id) + 1
        assert path.places[2].rank == fused.index(path.doc_id) + 1


def test_a_retriever_that_is_asked_again_finds(parts: Any) -> None:
    one, other, query = parts
    found = explain_pipeline(rm3(one, documents=2), query, 2)
    assert [step.finds for step in found.steps] == [True]
    assert found.documents[0].found_by == [found.steps[0].name]
    behind = explain_pipeline(other % 3 >> rm3(one, documents=2), query, 2).documents[0]
    assert behind.found_by == ["other", found.steps[0].name]


class Looking(Backwards):
    """Asks a retriever before it turns the order around."""

    def __init__(self, retriever: Stage) -> None:
        self.stages = (retriever,)

    def score_lists(self, queries: Any, heads: Any, documents: Any) -> Any:
        self.stages[0].run(queries, None, 2)
        return super().score_lists(queries, heads, documents)


def test_a_reranker_moves_what_it_was_given(parts: Any) -> None:
    one, other, query = parts
    pipeline = one % 6 >> Rerank(Looking(other), 6, name="turned")
    first = explain_pipeline(pipeline, query, 1).documents[0]
    assert first.decided == ("turned", 6, 1)


def test_a_document_that_is_nowhere_is_followed(parts: Any) -> None:
    one, other, query = parts
    path = explain_pipeline(one | other, query, doc_ids=["nowhere"]).documents[0]
    assert (path.rank, path.found_by, path.decided) == (None, [], None)
    assert "found by no retriever" in str(explain_pipeline(one, query, doc_ids=["nowhere"]))
    assert explain_pipeline(one, "zzzz unheard", 3).documents == []


def test_what_is_no_query_is_said(parts: Any) -> None:
    with pytest.raises(ConfigError, match="expected text"):
        explain_pipeline(parts[0], 3)  # type: ignore[arg-type]


def test_a_trace_nests_and_ends_with_its_block(parts: Any) -> None:
    one, _, query = parts
    note({"ignored": 1})  # nobody traces
    with tracing() as spans:
        one.run({"q": query})
        with tracing() as inner:
            one.run({"q": query})
        one.run({"q": query})
    one.run({"q": query})
    assert (len(spans), len(inner)) == (2, 1)
    with pytest.raises(ConfigError), tracing() as spans:
        (one >> Rerank(Backwards(), 2)).second.run({"q": query})
    assert spans[0].result is None


def test_the_command_follows_a_pipeline(tmp_path: Path, sluice: Call) -> None:
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": {"cut": "bm25 % 3"},
        "evaluate": {"latency_queries": 0},
    }
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
    assert sluice("run", tmp_path / "x.yaml")[0] == 0
    query = json.loads((tmp_path / "data" / "queries.jsonl").read_text().splitlines()[0])["text"]
    code, out, err = sluice("explain", tmp_path / "out", query, "--pipeline", "cut", "-k", 2)
    assert code == 0, err
    assert "found by bm25" in out
    code, out, _ = sluice("explain", tmp_path / "out", query, "--pipeline", "cut", "--json")
    told: Sequence[Any] = json.loads(out)["documents"]
    assert told[0]["rank"] == 1


def test_a_search_leaves_one_span(parts: Any) -> None:
    one, other, query = parts
    with tracing() as spans:
        one.search(query, 3)
        one.filtered({}).search(query, 3)
        one.run({"q": query}, None, 3)
        (one | other).search(query, 3)
    assert [span.stage for span in spans[:3]] == [one, one, one]
    assert [len(span.inner) for span in spans] == [0, 0, 0, 2]
    assert [len(span.inner[0].inner) for span in spans[3:]] == [0]
