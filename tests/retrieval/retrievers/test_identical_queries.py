"""Queries that stand in the corpus (ArguAna): nowhere is a query its own hit, and k stay k."""

import json
import logging
from pathlib import Path

import pytest
from small_world import LengthScorer, WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Dataset, Rerank, Retriever, Run, Stage, evaluate
from sluice.retrieval.config.sections import DevSection
from sluice.retrieval.experiments.training.dev_evaluation import dev_depth, dev_evaluation
from sluice.retrieval.jobs import mine
from sluice.retrieval.retrievers.candidate_lists import asked, run_on
from sluice.retrieval.retrievers.measurements import measure_latency
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.training_data.mining import mine_negatives

DOCUMENTS = documents()
QUERIES = {d.id: d.text for d in DOCUMENTS[:6]}
QRELS = {d.id: {DOCUMENTS[place + 10].id: 1} for place, d in enumerate(DOCUMENTS[:6])}


@pytest.fixture
def arguments() -> Dataset:
    return Dataset.from_memory(DOCUMENTS, QUERIES, QRELS)


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), DOCUMENTS, name="bm25")


@pytest.mark.parametrize("k", [1, 5])
def test_a_cut_still_lets_its_number_through(arguments: Dataset, bm25: Retriever, k: int) -> None:
    for stage in (bm25 % k, (bm25 | bm25) % k, bm25 % k >> Rerank(LengthScorer(), depth=3)):
        for query, ranking in run_on(stage, arguments).items():
            assert len(ranking) == k
            assert query not in ranking.doc_ids
    scores = evaluate(bm25 % k, arguments, ["Success@1"], ignore_identical_ids=True)
    assert scores.mean == evaluate(run_on(bm25 % k, arguments), QRELS, ["Success@1"]).mean


def test_runs_and_stages_of_ones_own_lose_the_hit(arguments: Dataset, bm25: Retriever) -> None:
    plain = bm25.run(QUERIES, None, 3)
    assert all(query in ranking.doc_ids for query, ranking in plain.items())

    class Own(Stage):
        def run(self, queries: object, given: Run | None = None, k: int | None = None) -> Run:
            return plain

    for source in (plain, Own()):
        found = run_on(source, arguments)
        assert all(len(ranking) == 2 for ranking in found.values())
        assert not any(query in ranking.doc_ids for query, ranking in found.items())


def test_other_datasets_are_asked_as_they_are(bm25: Retriever) -> None:
    other = Dataset.from_memory(DOCUMENTS, {"q": "gold"}, {"q": {"d00": 1}})
    assert asked(other, bm25) is other.queries
    run = bm25.run(other.queries)
    assert run_on(run, other) is run


def test_a_query_is_not_its_own_negative(arguments: Dataset, bm25: Retriever) -> None:
    spec = {"per_query": 3, "max_positive_ratio": None, "depth": 3}
    for source in (bm25, bm25.run(QUERIES, None, 4)):
        mined = mine_negatives(source, arguments, spec, seed=1)
        assert not any(query in found for query, found in mined.negatives.items())
        assert mined.report.candidates == 3 * len(QUERIES)


def test_dev_evaluation_does_not_find_the_query(arguments: Dataset, bm25: Retriever) -> None:
    measured = dev_evaluation(arguments, DevSection(measures=["RR"]), seed=1, candidates=None)
    encoder = WordEncoder(256)
    expected = evaluate(run_on(Retriever.build(encoder, DOCUMENTS), arguments), QRELS, ["RR"])
    assert measured(encoder)["RR"] == pytest.approx(expected.mean["RR"])


def test_dev_depth_is_that_of_the_measures() -> None:
    assert dev_depth(DevSection(measures=["nDCG@10", "R@700"])) == 700
    assert dev_depth(DevSection(measures=["RR", "R@5"])) == 1000
    many = [d for number in range(5) for d in documents()]
    corpus = [type(d)(f"{d.id}-{place}", d.title, d.text) for place, d in enumerate(many)]
    data = Dataset.from_memory(
        corpus, {"q": "word3"}, {"q": {d.id: 1 for d in corpus}}, split="dev"
    )
    measured = dev_evaluation(data, DevSection(measures=["R@150"]), seed=1, candidates=None)
    assert measured(WordEncoder())["R@150"] == pytest.approx(0.75)


def test_latency_is_measured_on_the_same_question(bm25: Retriever) -> None:
    kinds = []

    class Noted(Stage):
        def run(self, queries: object, given: Run | None = None, k: int | None = None) -> Run:
            kinds.append(type(queries))
            return Run({})

    measure_latency(Noted(), SelfExcluding(QUERIES), sample=2)
    measure_latency(Noted(), QUERIES, sample=2)
    assert kinds == [SelfExcluding] * 4 + [dict] * 4
    two = measure_latency(bm25 >> Rerank(LengthScorer(), 3), QUERIES, sample=2, traced=1)
    assert two is not None
    assert len(two.stages) == 2


def test_mining_leaves_out_documents_that_are_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from small_world import write_beir

    data = write_beir(tmp_path / "data")
    lists, output = tmp_path / "lists.trec", tmp_path / "n.jsonl"
    rows = [("d01", 1), ("gone", 2), ("away", 3)]
    lists.write_text("".join(f"q0 Q0 {d} {rank} {1 / rank} t\n" for d, rank in rows))
    spec = {"per_query": 3, "max_positive_ratio": None}
    with caplog.at_level(logging.WARNING, "sluice"):
        mine(str(lists), str(data), output, spec)
    assert "left out 2 of 20 documents named by the lists or the qrels" in caplog.text
    assert json.loads(output.read_text().splitlines()[0])["neg_ids"] == ["d01"]
    for depth in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match=r"negatives\.depth"):
            mine(str(lists), str(data), output, {**spec, "depth": depth})
