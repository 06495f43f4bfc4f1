"""Stages of a user's own, around a retriever or as a reranker, in robust, prf, tune and explain."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FlatIndex, InvertedIndex
from sluice.retrieval import Dataset, Document, Fuse, Ranking, Rerank, Retriever, Run, Stage
from sluice.retrieval.config.sections import TuneSection
from sluice.retrieval.experiments.output.changes import retrievers_of
from sluice.retrieval.experiments.tuning.tuner import Tuner
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.retrievers.measurements import ASKED
from sluice.retrieval.retrievers.pipeline_explanation import explain_pipeline
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.stages.feedback.dense import prf
from sluice.retrieval.stages.feedback.stage import Feedback, rm3
from sluice.retrieval.stages.hub_normaliser import Normaliser
from sluice.retrieval.stages.hubs import Normalised
from sluice.retrieval.stages.rerankers.similarity import VectorDot, candidate_scores
from sluice.retrieval.studies.judging.judge_runs import rankers_in
from sluice.retrieval.studies.robustness.replaced_document import AlteredPipeline
from sluice.retrieval.training_data.mining import mining_lists
from sluice.training.negatives.settings import Mining

CORPUS = tuple(documents())
QUERIES = {"a": "gold river number", "b": "vector of stone", "c": "   "}
NEW = [Document("d03", "", "gold gold river stone"), Document("d11", "", "Vector of STONE")]
FITTED = BM25Encoder().fit(document.full_text for document in CORPUS)


def sparse(corpus: Sequence[Document] = CORPUS) -> Retriever:
    vectors = FITTED.encode_documents([document.full_text for document in corpus])
    return Retriever.build(FITTED, corpus, vectors=[vectors], index=InvertedIndex(), name="bm25")


def dense(corpus: Sequence[Document] = CORPUS) -> Retriever:
    return Retriever.build(WordEncoder(), corpus, index=FlatIndex("cosine"), name="dense")


class Counted(Stage):
    """Passes a retriever on, and says so by ``inner`` and ``over``."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.name = stage, f"counted({stage.name})"
        self.asked: list[tuple[int, int | None]] = []  # how many queries, how deep

    @property
    def inner(self) -> tuple[Stage, ...]:
        return (self.stage,)

    def over(self, inner: Sequence[Stage]) -> Stage:
        (stage,) = inner
        return Counted(stage)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        self.asked.append((len(queries), k))
        return self.stage.run(queries, given, k)


class Doubled(Counted):
    """Scores are twice the retriever's: it passes none on."""

    @property
    def base_retriever(self) -> None:
        return None

    def over(self, inner: Sequence[Stage]) -> Stage:
        (stage,) = inner
        return Doubled(stage)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        found = self.stage.run(queries, given, k)
        return Run({q: Ranking(r.doc_ids, 2 * r.scores) for q, r in found.items()})


class Closed(Stage):
    """Asks the state of a retriever by itself: no stage runs inside it."""

    def __init__(self, retriever: Retriever) -> None:
        self.own, self.name = retriever, "closed"

    @property
    def base_retriever(self) -> Retriever:
        return self.own

    @property
    def documents(self) -> Texts:
        return self.own.documents

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return self.own.state.run(queries, k)


class Overlap:
    """Shared words of the pair."""

    fingerprint = "overlap"
    models = ("models/words",)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(len({*q.lower().split()} & {*d.lower().split()})) for q, d in pairs]


class Words(Stage):
    """A reranker that is no ``Rerank``: the first five by shared words, the others dropped."""

    name = "words"
    needs_candidates = True

    def __init__(self, scorer: Overlap) -> None:
        self.scorer = scorer
        self.texts: Texts | None = None

    @property
    def ranking_models(self) -> tuple[Any, ...]:
        return (self.scorer,)

    def attached(self, documents: Texts) -> Stage:
        made = copy.copy(self)
        made.texts = documents
        return made

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        assert given is not None
        assert self.texts is not None
        rankings: dict[str, Mapping[str, float]] = {}
        for query, ranking in given.items():
            ids = list(ranking.doc_ids)[:5]
            pairs = [(queries[query], text) for text in self.texts.texts(ids)]
            rankings[query] = dict(zip(ids, self.scorer.score(pairs), strict=True))
        note({"pairs": {query: len(ranking) for query, ranking in rankings.items()}})
        return Run(rankings)


PIPELINES = {
    "counted": lambda corpus: Counted(dense(corpus)),
    "twice": lambda corpus: Counted(Counted(dense(corpus))) % 9 | sparse(corpus),
    "doubled": lambda corpus: Doubled(sparse(corpus)),
    "closed": lambda corpus: Closed(dense(corpus)),
    "words": lambda corpus: Counted(sparse(corpus)) % 12 >> Words(Overlap()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PIPELINES)
def test_robust_replaces_a_document_below_it(name: str) -> None:
    make = PIPELINES[name]
    altered = AlteredPipeline(make(CORPUS))
    clean = altered.run(QUERIES)
    moved = 0
    for new in (None, *NEW):
        corpus = tuple(new if new and each.id == new.id else each for each in CORPUS)
        found, expected = altered.run(QUERIES, new), make(corpus).run(QUERIES)
        moved += any(dict(found[query]) != dict(clean[query]) for query in QUERIES)
        for query in QUERIES:
            assert list(found[query].doc_ids) == list(expected[query].doc_ids), (new, query)
            assert found[query].scores == pytest.approx(expected[query].scores, rel=1e-5)
    assert moved == len(NEW)


def test_robust_refuses_what_looks_inside_or_reads_no_texts() -> None:
    class Deaf(Words):
        def attached(self, documents: Texts) -> Stage:
            return self

    retriever = dense()
    for stage in (rm3(sparse()), Normalised(retriever, Normaliser.fit(retriever, ["gold"]))):
        with pytest.raises(ConfigError, match="reads the index of"):
            AlteredPipeline(stage)
    with pytest.raises(ConfigError, match=r"expected its method attached\(documents\) to return"):
        AlteredPipeline(retriever >> Deaf(Overlap()))


@pytest.mark.parametrize("wrap", [Counted, Closed])
def test_feedback_and_vectors_come_from_the_retriever_below(wrap: Any) -> None:
    one, other = sparse(), dense()
    assert dict(rm3(wrap(one), documents=3).run(QUERIES)) == dict(
        rm3(one, documents=3).run(QUERIES)
    )
    expected = (one >> prf(other, k=2)).run(QUERIES)
    assert dict((one >> prf(wrap(other), k=2)).run(QUERIES)) == dict(expected)
    dots = (one >> Rerank(VectorDot(wrap(other)), 8)).run(QUERIES)
    assert dict(dots) == dict((one >> Rerank(VectorDot(other), 8)).run(QUERIES))
    normaliser = Normaliser.fit(other, ["gold river", "stone"])
    shifted = Normalised(wrap(other), normaliser, mode="static").run(QUERIES)
    assert dict(shifted) == dict(Normalised(other, normaliser, mode="static").run(QUERIES))


@pytest.mark.parametrize("wrap", [Counted, Closed])
def test_missed_documents_are_scored_by_the_retriever_below(wrap: Any) -> None:
    one, other = sparse(), dense()
    queries = {"a": QUERIES["a"], "b": QUERIES["b"]}
    heads = dict((one | other).run(queries, None, 30))
    scores = candidate_scores(wrap(other), queries, heads)
    assert scores.tolist() == candidate_scores(other, queries, heads).tolist()
    dataset = Dataset.from_memory(CORPUS, queries, {"a": {"d03": 1}, "b": {"d11": 1}})
    mining = Mining.in_mode("percentage", {"per_query": 2})
    assert mining.needs_positive_score
    expected = mining_lists(one, dataset, mining, depth=1)
    found = mining_lists(wrap(one), dataset, mining, depth=1)
    assert list(expected.scores["bm25"]) == ["a", "b"]  # both positives are below the first
    assert list(found.scores.values()) == [expected.scores["bm25"]]
    assert not mining_lists(one.filtered({}), dataset, mining, depth=1).scores


def test_the_filter_below_holds_for_feedback() -> None:
    one = Retriever.build(
        BM25Encoder(),
        [Document(d.id, d.title, d.text, {"odd": n % 2 == 1}) for n, d in enumerate(CORPUS)],
    )
    filtered = one.filtered({"odd": True})
    found = rm3(Counted(filtered), documents=3).run(QUERIES)
    assert dict(found) == dict(rm3(filtered, documents=3).run(QUERIES))
    assert dict(found) != dict(rm3(one, documents=3).run(QUERIES))


def test_stages_that_change_what_is_found_pass_no_retriever_on() -> None:
    one, other = sparse(), dense()
    changed = [
        one % 5, Fuse([one]), one | other, one >> Words(Overlap()), rm3(one), Doubled(one),
        Normalised(other, Normaliser.fit(other, ["gold"])), Rerank(VectorDot(other)),
    ]  # fmt: skip
    for stage in changed:
        assert stage.base_retriever is None, stage.name
        with pytest.raises(ConfigError, match="needs a retriever"):
            Feedback.run(rm3(stage), QUERIES)


def test_tune_times_and_prices_it() -> None:
    one = sparse()
    queries = {"a": QUERIES["a"], "b": QUERIES["b"]}
    qrels = {"a": {"d03": 1}, "b": {"d11": 1}}
    counted = Counted(one)
    names = {"one": lambda: one, "own": lambda: counted, "words": lambda: Words(Overlap())}
    section = TuneSection(timed_queries=3, prices={"words": 0.5})
    tuner = Tuner(names, queries, qrels, section)
    tuner.time_rerankers(["own >> words"])
    plain, own = tuner.measured("one"), tuner.measured("own")
    assert own.value == plain.value
    assert (1, ASKED) in counted.asked  # timed as a retriever alone is: one by one, a user's few
    cascade = tuner.measured("own >> words")
    assert (cascade.price, cascade.pairs) == (2.5, 5.0)


def test_explain_has_the_terms_of_the_retriever_below() -> None:
    one = sparse()
    for stage, name in ((Closed(one), "closed"), (Counted(one), "bm25")):
        path = explain_pipeline(stage, "gold river", 1).documents[0]
        assert path.found_by == [name]
        assert path.terms == {name: one.explain("gold river", path.doc_id).terms[:5]}


def test_circular_evaluation_and_costs_see_it() -> None:
    one = dense()
    own = {str(one.head.encoder_fingerprint)}
    for stage in (Closed(one), Counted(one), one.filtered({})):
        assert rankers_in(stage) == own
        assert retrievers_of(stage) == [one]
    assert rankers_in(one >> Words(Overlap())) == own | {"overlap", "models/words"}


@pytest.mark.parametrize("name", ["approximates", "parts_of"])
def test_a_stage_with_a_hook_of_scorers_is_told_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Own: has {name}, which nothing asks of a stage"):
        type("Own", (Stage,), {name: None})
    assert issubclass(type("Own", (Rerank,), {name: None}), Stage)
