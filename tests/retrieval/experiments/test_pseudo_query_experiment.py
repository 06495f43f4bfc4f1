"""Pseudo-query encoders from YAML: trained, indexed in two steps, fused, changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_world import documents

from sluice.encoders import PseudoQueryEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FlatIndex
from sluice.indexing.own.pseudo_queries import attended
from sluice.retrieval import Dataset, Document, Passages, Retriever
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.exchange.retriever_files import export_retriever
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.hub_normaliser import Normaliser
from sluice.retrieval.studies.robustness.replaced_document import side_index
from sluice.retrieval.training_data.list_tasks import missed_scores
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec


@pytest.fixture(scope="module")
def encoder(bert: Path) -> PseudoQueryEncoder:
    return PseudoQueryEncoder.from_pretrained(bert, centroids=3, projection=8, device="cpu")


@pytest.fixture(scope="module")
def retriever(encoder: PseudoQueryEncoder) -> Retriever:
    return Retriever.build(encoder, documents(12))


def test_a_retriever_searches_and_changes(encoder: PseudoQueryEncoder, tmp_path: Path) -> None:
    texts = [document.full_text for document in documents(12)]
    retriever = Retriever.build(encoder, documents(12), path=tmp_path / "r")
    scores = attended(encoder.encode_queries(["gold"])[0], encoder.encode_documents(texts))
    hits = retriever.search("gold", 12)
    assert [hit.doc_id for hit in hits] == [f"d{row:02d}" for row in np.argsort(-scores)]
    assert np.allclose([hit.score for hit in hits], -np.sort(-scores), atol=1e-4)
    retriever.add([Document("new", "", "gold gold")])
    retriever.delete(["d03"])
    names = {hit.doc_id for hit in Retriever.open(tmp_path / "r").search("gold", 20)}
    assert names == {"new", *(f"d{row:02d}" for row in range(12) if row != 3)}


def test_passages_score_by_the_best(encoder: PseudoQueryEncoder) -> None:
    long = [Document("a", "", "gold of the river " * 6), Document("b", "", "stone")]
    retriever = Retriever.build(encoder, long, passages=Passages(length=6, overlap=0))
    hits = {hit.doc_id: hit for hit in retriever.search("gold", 2)}
    found = hits["a"].passage
    assert found is not None
    best = attended(encoder.encode_queries(["gold"])[0], encoder.encode_documents([found.text]))
    assert hits["a"].score == pytest.approx(best[0], abs=1e-4)
    with pytest.raises(ConfigError, match="aggregate"):
        Retriever.build(encoder, long, passages=Passages(length=6, overlap=0, aggregate="mean"))


def test_dev_evaluation_replacement_and_mining_score_alike(
    encoder: PseudoQueryEncoder, retriever: Retriever
) -> None:
    docs = documents(12)
    queries = {"a": "gold river", "b": "the index of stone"}
    qrels = {"a": {docs[3].id: 1}, "b": {docs[11].id: 1, docs[2].id: 1}}
    data = Dataset.from_memory(docs, queries, qrels, split="dev")
    vectors = encoder.encode_documents([document.full_text for document in docs])
    asked = encoder.encode_queries(list(queries.values()))
    scores = [attended(query, vectors) for query in asked]
    run = Run({
        query: [(docs[row].id, float(line[row])) for row in np.argsort(-line)]
        for query, line in zip(queries, scores, strict=True)
    })  # fmt: skip
    section = DevSection(measures=["nDCG@10", "RR"])
    measured = dev_evaluation(data, section, seed=1, candidates=None)(encoder)
    expected = evaluate(run, qrels, ["nDCG@10", "RR"]).mean
    assert dict(measured) == pytest.approx(expected, abs=1e-6)
    missed = missed_scores(
        retriever, Run({"a": [], "b": [(docs[2].id, 1.0)]}), data.queries, data.qrels
    )
    assert missed["a"][docs[3].id] == pytest.approx(scores[0][3], abs=1e-4)
    assert missed["b"] == {docs[11].id: pytest.approx(scores[1][11], abs=1e-4)}
    found = side_index(retriever.state, docs[:4]).search(asked, 4)
    assert sorted(found.scores[0]) == pytest.approx(sorted(scores[0][:4]), abs=1e-4)


def test_what_compares_single_vectors_is_refused(
    encoder: PseudoQueryEncoder, retriever: Retriever, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"a score of its own \(attention\)"):
        encoder.save_pretrained(tmp_path / "m")
        teacher_spec(tmp_path / "m").make(Context())
    with pytest.raises(ConfigError, match="does not score by attention"):
        Retriever.build(encoder, documents(3), index=FlatIndex())
    with pytest.raises(ConfigError, match="several vectors a document"):
        Normaliser.fit(retriever, ["gold"])
    for expression in ("r >> dot(r)", "prf(r)", "r >> max_sim(r)"):
        with pytest.raises(ConfigError, match=r"several vectors|by attention"):
            parse(expression, {"r": lambda: retriever}, where="p").run({"q": "gold"}, k=3)
    with pytest.raises(ConfigError, match="holds pseudo-query vectors, and npy is"):
        export_retriever(retriever, tmp_path / "v.npy", "npy")
