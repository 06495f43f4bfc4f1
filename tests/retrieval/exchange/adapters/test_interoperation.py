"""Retrievers of LangChain, LlamaIndex and Haystack return what ``search`` finds; missing packages.

The packages' own tests are skipped where they are not installed.
"""

import asyncio
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from small_world import LengthScorer, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.retrieval import Document, Ranking, Rerank, Retriever, Run, Stage
from sluice.retrieval.exchange.adapters import retrievers
from sluice.retrieval.exchange.adapters.evaluation import MtebSearch, to_scored_docs
from sluice.retrieval.exchange.adapters.retrievers import (
    find,
    haystack_retriever,
    langchain_retriever,
    llama_index_retriever,
    pyterrier_transformer,
)
from sluice.retrieval.runs.queries import Queries

pytestmark = pytest.mark.filterwarnings("ignore")
RETRIEVERS = [langchain_retriever, llama_index_retriever, haystack_retriever]
GOLD = Document("gold", "Gold", "gold gold", {"year": 1849, "tags": ["ore", "metal"], "id": "own"})


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), [*documents(), GOLD], name="bm25")


def package(name: str) -> None:
    with warnings.catch_warnings():  # what it and its packages deprecate is not ours
        warnings.simplefilter("ignore")
        pytest.importorskip(name)


def expected(stage: Stage, query: str, k: int) -> list[tuple[Any, ...]]:
    hits = stage.search(query, k)
    assert len(hits) > 1
    titles = {document.id: document.title for document in [*documents(), GOLD]}
    return [(hit.doc_id, hit.full_text, hit.score, titles[hit.doc_id]) for hit in hits]


def shown(name: str, text: str, metadata: dict[str, Any], score: float) -> tuple[Any, ...]:
    assert (metadata["id"], metadata["score"]) == (name, score)
    return name, text, score, metadata["title"]


@pytest.mark.thorough
def test_langchain(bm25: Retriever) -> None:
    package("langchain_core")
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableLambda

    for stage in (bm25, bm25 % 9 >> Rerank(LengthScorer())):
        retriever = langchain_retriever(stage, k=4)
        assert isinstance(retriever, BaseRetriever)
        for found, k in (
            (retriever.invoke("gold river"), 4),
            (retriever.invoke("gold river", k=2), 2),
            (asyncio.run(retriever.ainvoke("gold river")), 4),
            (retriever.batch(["gold river"])[0], 4),
            ((RunnableLambda(str.lower) | retriever).invoke("GOLD River"), 4),
        ):
            rows = [shown(d.id, d.page_content, d.metadata, d.metadata["score"]) for d in found]
            assert rows == expected(stage, "gold river", k)
    assert retriever.invoke(" ") == []


@pytest.mark.thorough
def test_llama_index(bm25: Retriever) -> None:
    package("llama_index.core")
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import MetadataMode, QueryBundle

    for stage in (bm25, bm25 % 9 >> Rerank(LengthScorer())):
        retriever = llama_index_retriever(stage, k=4)
        assert isinstance(retriever, BaseRetriever)
        for found in (
            retriever.retrieve("gold river"),
            retriever.retrieve(QueryBundle("gold river")),
            asyncio.run(retriever.aretrieve("gold river")),
        ):
            rows = [shown(n.node_id, n.text, n.metadata, n.score) for n in found]
            assert rows == expected(stage, "gold river", 4)
    (gold,) = llama_index_retriever(bm25, k=1).retrieve("gold")
    assert gold.node_id == "gold"
    told = gold.node.get_content(MetadataMode.LLM)
    assert "1849" in told
    assert "score" not in told


def test_llama_index_keeps_documents_of_one_text() -> None:
    """It drops nodes of the same text and metadata."""
    package("llama_index.core")
    twins = [Document(name, "", "gold river") for name in ("a", "b", "c")]
    found = llama_index_retriever(Retriever.build(BM25Encoder(), twins)).retrieve("gold")
    assert [node.node_id for node in found] == ["c", "b", "a"]


def test_haystack(bm25: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    package("haystack")
    from haystack import Pipeline
    from haystack.components.joiners import DocumentJoiner

    stages = [bm25, bm25 % 9 >> Rerank(LengthScorer())]
    for stage in stages:
        retriever = haystack_retriever(stage, top_k=4)
        for given, k in (({}, 4), ({"top_k": 2}, 2)):
            found = retriever.run("gold river", **given)["documents"]
            rows = [shown(d.id, d.content, d.meta, d.score) for d in found]
            assert rows == expected(stage, "gold river", k)
    pipeline = Pipeline()
    pipeline.add_component("joiner", DocumentJoiner(join_mode="concatenate", sort_by_score=False))
    for name, stage in zip(("sparse", "cascade"), stages, strict=True):
        pipeline.add_component(name, haystack_retriever(stage, top_k=4))
        pipeline.connect(f"{name}.documents", "joiner.documents")
    asked = {name: {"query": "gold river"} for name in ("sparse", "cascade")}
    joined = {document.id for document in pipeline.run(asked)["joiner"]["documents"]}
    assert joined == {row[0] for stage in stages for row in expected(stage, "gold river", 4)}


def test_filters_are_the_stages(bm25: Retriever) -> None:
    package("langchain_core")
    (found,) = langchain_retriever(bm25.filtered({"year": {"lt": 1900}})).invoke("gold")
    assert found.id == "gold"


class Elsewhere(Stage):
    """A stage whose documents are not at hand."""

    name = "elsewhere"

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({query: Ranking(["x"], [2.5]) for query in queries})


def test_metadata_are_the_documents_own_and_three_more(bm25: Retriever) -> None:
    ((text, metadata),) = find(bm25, "gold", 1)
    (hit,) = bm25.search("gold", 1)
    assert text == "Gold gold gold"
    assert metadata == {
        "year": 1849, "tags": ["ore", "metal"], "id": "gold", "title": "Gold", "score": hit.score,
    }  # fmt: skip


def test_without_a_store_there_are_ids_and_scores() -> None:
    assert find(Elsewhere(), "any", 3) == [("", {"id": "x", "title": "", "score": 2.5})]


@pytest.mark.parametrize("make", RETRIEVERS, ids=lambda make: make.__name__)
def test_what_cannot_answer_is_refused(make: Callable[..., Any], bm25: Retriever) -> None:
    with pytest.raises(ConfigError, match="put a retriever before it"):
        make(Rerank(LengthScorer()))
    with pytest.raises(ConfigError, match="expected a stage"):
        make("bm25")
    with pytest.raises(ConfigError, match="expected a whole number, 1 or more"):
        make(bm25, 0)


@pytest.mark.parametrize(
    ("module", "named", "call"),
    [
        ("mteb.models", "mteb", lambda stage: MtebSearch(stage, name="a/b", revision="1")),
        ("pyterrier", "python-terrier", pyterrier_transformer),
        ("langchain_core.documents", "langchain-core", langchain_retriever),
        ("llama_index.core.retrievers", "llama-index-core", llama_index_retriever),
        ("haystack", "haystack-ai", haystack_retriever),
        ("ir_measures", "ir-measures", lambda stage: list(to_scored_docs(Run({})))),
    ],
)
def test_a_missing_package_is_named(
    module: str, named: str, call: Any, bm25: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (module.partition(".")[0], module):
        monkeypatch.setitem(sys.modules, part, None)
    retrievers._transformer_class.cache_clear()
    retrievers._haystack_class.cache_clear()
    retrievers._langchain_class.cache_clear()
    retrievers._llama_index_class.cache_clear()
    message = rf"the package {named}, which is not installed: pip install 'sluice-ir\[interop\]'"
    with pytest.raises(MissingPackageError, match=message):
        call(bm25)
