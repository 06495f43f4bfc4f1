"""Hypencoders from YAML: trained, indexed by a graph, fused, explained, changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import Hypencoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.q_net import q_net_scores
from sluice.indexing import FlatIndex, GraphIndex
from sluice.retrieval import Dataset, Document, Passages, Retriever
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.retrievers import state
from sluice.retrieval.retrievers.measurements import gather_recalls
from sluice.retrieval.runs.run import Run
from sluice.retrieval.studies.robustness.replaced_document import side_index
from sluice.retrieval.training_data.list_tasks import missed_scores
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec


@pytest.fixture(scope="module")
def encoder(bert: Path) -> Hypencoder:
    return Hypencoder.from_pretrained(bert, hidden_layers=1, projection=8, device="cpu")


def test_a_retriever_searches_exhaustively_and_changes(encoder: Hypencoder, tmp_path: Path) -> None:
    texts = [document.full_text for document in documents(12)]
    retriever = Retriever.build(encoder, documents(12), path=tmp_path / "nets")
    scores = q_net_scores(encoder.encode_queries(["gold"]), encoder.encode_documents(texts))[0]
    hits = retriever.search("gold", 12)
    assert [hit.doc_id for hit in hits] == [f"d{row:02d}" for row in np.argsort(-scores)]
    assert np.allclose([hit.score for hit in hits], -np.sort(-scores), atol=1e-5)
    retriever.add([Document("new", "", "gold gold")])
    retriever.delete(["d03"])
    names = {hit.doc_id for hit in Retriever.open(tmp_path / "nets").search("gold", 20)}
    assert names == {"new", *(f"d{row:02d}" for row in range(12) if row != 3)}


def test_queries_in_blocks_find_the_same(
    encoder: Hypencoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand q-nets would not fit into memory together."""
    retriever = Retriever.build(encoder, documents(12))
    queries = {f"q{number}": text for number, text in enumerate(["gold", " ", "the river", "x"])}
    whole = retriever.run(queries, k=3)
    monkeypatch.setattr(state, "QUERY_VALUES", 2 * encoder.query_dim)
    assert state.queries_at_a_time(encoder) == 2
    blocks = retriever.run(queries, k=3)
    assert list(blocks) == list(queries)
    for query in queries:
        assert blocks[query].doc_ids == whole[query].doc_ids
        assert np.allclose(blocks[query].scores, whole[query].scores, atol=1e-6)


def test_passages_score_by_the_best(encoder: Hypencoder) -> None:
    long = [Document("a", "", "gold of the river " * 6), Document("b", "", "stone")]
    retriever = Retriever.build(encoder, long, passages=Passages(length=6, overlap=0))
    hits = {hit.doc_id: hit for hit in retriever.search("gold", 2)}
    found = hits["a"].passage
    assert found is not None
    net = encoder.encode_queries(["gold"])
    best = q_net_scores(net, encoder.encode_documents([found.text]))[0, 0]
    assert hits["a"].score == pytest.approx(best, abs=1e-5)


def test_dev_evaluation_is_exhaustive(encoder: Hypencoder) -> None:
    docs = documents()
    queries = {"a": "gold river", "b": "the index of stone"}
    qrels = {"a": {docs[3].id: 1}, "b": {docs[12].id: 1, docs[2].id: 1}}
    data = Dataset.from_memory(docs, queries, qrels, split="dev")
    section = DevSection(measures=["nDCG@10", "RR"])
    measured = dev_evaluation(data, section, seed=1, candidates=None)(encoder)
    vectors = encoder.encode_documents([document.full_text for document in docs])
    scores = q_net_scores(encoder.encode_queries(list(queries.values())), vectors)
    run = Run({
        query: [(docs[row].id, float(line[row])) for row in np.argsort(-line)]
        for query, line in zip(queries, scores, strict=True)
    })  # fmt: skip
    expected = evaluate(run, qrels, ["nDCG@10", "RR"]).mean
    assert dict(measured) == pytest.approx(expected, abs=1e-6)


def test_positives_beyond_a_list_and_replaced_documents_have_their_scores(
    encoder: Hypencoder,
) -> None:
    docs = documents(12)
    retriever = Retriever.build(encoder, docs)
    queries = {"a": "gold river", "b": "the stone"}
    qrels = {"a": {"d01": 1, "d05": 1}, "b": {"d03": 1, "d04": 0}}
    data = Dataset.from_memory(docs, queries, qrels)
    vectors = encoder.encode_documents([document.full_text for document in docs])
    scores = q_net_scores(encoder.encode_queries(list(queries.values())), vectors)
    found = missed_scores(
        retriever, Run({"a": {"d05": 1.0}}), data.queries, {"a": ["d01", "d05"], "b": ["d03"]}
    )
    assert found == {
        "a": {"d01": pytest.approx(scores[0, 1], abs=1e-5)},
        "b": {"d03": pytest.approx(scores[1, 3], abs=1e-5)},
    }
    index = side_index(retriever.state, docs[2:4])
    hits = index.search(encoder.encode_queries(["gold river"]), 2)
    assert np.sort(hits.scores[0]) == pytest.approx(np.sort(scores[0, 2:4]), abs=1e-5)


def test_stages_of_vectors_are_refused(encoder: Hypencoder) -> None:
    retriever = Retriever.build(encoder, documents(12), name="nets")
    for text in ("prf(nets, k=2)", "nets >> dot(nets, depth=3)"):
        with pytest.raises(ConfigError, match="a query of nets is a network"):
            parse(text, {"nets": lambda: retriever}, where="p").run({"q": "gold"}, k=3)
    with pytest.raises(ConfigError, match="FlatIndex compares vectors, and this encoder's queries"):
        Retriever.build(encoder, documents(3), index=FlatIndex())


def test_exhaustive_searches_of_a_graph_miss_nothing() -> None:
    index = GraphIndex(entries=3, neighbours=2)
    retriever = Retriever.build(WordEncoder(), documents(), index=index, queries={"q": "gold"})
    (recall,) = gather_recalls(retriever, {})
    assert recall.queries == 1
    retriever.params = {"mode": "exhaustive"}
    assert gather_recalls(retriever, {}) == []


def test_it_is_no_teacher(encoder: Hypencoder, tmp_path: Path) -> None:
    encoder.save_pretrained(tmp_path / "nets")
    with pytest.raises(ConfigError, match=r"a Hypencoder has a score of its own \(q_net\)"):
        teacher_spec(tmp_path / "nets").make(Context())


def test_a_dense_query_walks_too() -> None:
    """Its vector is a network without hidden layers: an inner product."""
    flat = Retriever.build(WordEncoder(), documents())
    graph = Retriever.build(WordEncoder(), documents(), index=GraphIndex(entries=40))
    for hit, other in zip(flat.search("gold river", 5), graph.search("gold river", 5), strict=True):
        assert (hit.doc_id, hit.score) == (other.doc_id, other.score)
