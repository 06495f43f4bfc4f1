"""Reranking by stored vectors: equal to brute force, to the index, to the head's own forward."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings, strategies as st
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.dense.error_adapter import draw_pair_head
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.indexing import FaissIndex, FlatIndex
from sluice.retrieval import Document, Passages, Rerank, Retriever, Run
from sluice.retrieval.experiments.checks import _AnyStage
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers import stored_vectors
from sluice.retrieval.stages.rerankers.similarity import VectorDot
from sluice.retrieval.stages.rerankers.stored_vectors import PairHeadScorer

QUERIES = {"a": "gold river", "b": "number 7", "c": "stone vector term rank"}


class RealEncoder(WordEncoder):
    """Dense vectors that are no whole numbers, of any length."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        turned = np.random.default_rng(3).standard_normal((self.dim, 24))
        return (super().encode_documents(texts) @ turned).astype(np.float32)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("real", self.dim)


@pytest.fixture(scope="module")
def dense() -> Retriever:
    return Retriever.build(RealEncoder(), documents(), name="dense")


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
def test_dot_of_a_retrievers_own_hits_changes_nothing(metric: str) -> None:
    dense = Retriever.build(RealEncoder(), documents(), index=FlatIndex(metric), name="dense")
    first = dense.run(QUERIES)
    assert (dense >> Rerank(VectorDot(dense), depth=1000)).run(QUERIES) == first


def test_dot_equals_brute_force_dense_and_sparse(bm25: Retriever, dense: Retriever) -> None:
    texts = {document.id: document.full_text for document in documents()}
    for retriever, first in ((dense, bm25), (bm25, dense)):
        given = first.run(QUERIES, k=20)
        found = (first % 20 >> Rerank(VectorDot(retriever), depth=15)).run(QUERIES)
        for query, ranking in found.items():
            q = retriever.encoder.encode_queries([QUERIES[query]])
            d = retriever.encoder.encode_documents([texts[doc] for doc in ranking.doc_ids[:15]])
            q, d = (x.toarray() if sp.issparse(x) else x for x in (q, d))
            brute = d.astype(np.float64) @ q[0].astype(np.float64)
            assert np.allclose(ranking.scores[:15], brute, rtol=1e-5)
            assert (np.diff(ranking.scores) <= 0).all()
            assert sorted(ranking.doc_ids[:15]) == sorted(given[query].doc_ids[:15])
            assert list(ranking.doc_ids[15:]) == list(given[query].doc_ids[15:])


def test_unknown_documents_and_blank_queries_have_a_place(dense: Retriever) -> None:
    given = Run({
        "a": Ranking(["u1", "d03", "u2", "d10", "u0"], [5, 4, 3, 2, 1]),
        "b": Ranking(["u1", "u0"], [2, 1]),
        "c": Ranking(["d07", "d01"], [2, 1]),
        "d": Ranking([], []),
    })  # fmt: skip
    queries = {"a": "gold", "b": "gold", "c": "  ", "d": "gold", "e": "gold"}
    found = Rerank(VectorDot(dense)).run(queries, given)
    assert sorted(found["a"].doc_ids[:2]) == ["d03", "d10"]
    assert list(found["a"].doc_ids[2:]) == ["u1", "u2", "u0"]
    assert found["a"].scores[1] > found["a"].scores[2]
    assert list(found["b"].doc_ids) == ["u1", "u0"]
    assert list(found["c"].doc_ids) == ["d07", "d01"]
    assert len(found["d"]) == len(found["e"]) == 0
    assert VectorDot(dense).score_lists({}, {}, None) == {}


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    st.lists(st.lists(st.integers(0, 45), max_size=9, unique=True), max_size=6), st.integers(1, 9)
)
def test_blocks_do_not_matter(
    bm25: Retriever, dense: Retriever, lists: list[list[int]], candidates: int
) -> None:
    queries = {f"q{n}": f"gold number {n} river" for n in range(len(lists))}
    heads = {
        f"q{n}": Ranking([f"d{doc:02d}" for doc in docs], np.zeros(len(docs)))
        for n, docs in enumerate(lists)
        if docs
    }
    for retriever in (bm25, dense):
        scorer = VectorDot(retriever)
        whole = scorer.score_lists(queries, heads, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stored_vectors, "CANDIDATES", candidates)
            parts = scorer.score_lists(queries, heads, None)
        assert whole.keys() == parts.keys() == heads.keys()
        for query, scores in whole.items():
            assert np.array_equal(scores, parts[query])


def test_one_look_into_the_index_for_a_block(
    bm25: Retriever, dense: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, documents_of = [], FlatIndex.documents
    monkeypatch.setattr(
        FlatIndex, "documents", lambda self, rows: asked.append(rows) or documents_of(self, rows)
    )
    (bm25 >> Rerank(VectorDot(dense))).run(QUERIES)
    assert len(asked) == 1
    assert len(np.unique(asked[0])) == len(asked[0])


def test_quantised_vectors_added_documents_and_filters(bm25: Retriever) -> None:
    coded = Retriever.build(RealEncoder(), documents(), index=FaissIndex("SQ8"), name="coded")
    run = (bm25 >> Rerank(VectorDot(coded))).run(QUERIES)
    assert np.isfinite(run["a"].scores).all()
    grown = Retriever.build(BM25Encoder(), documents(), name="grown")
    grown.add([Document("new", "", "gold unheardof gold")])
    found = (grown >> Rerank(VectorDot(grown))).run({"a": "gold unheardof"})
    own = grown.run({"a": "gold unheardof"})
    assert found["a"].doc_ids[0] == "new"
    assert np.allclose(found["a"].scores, own["a"].scores, rtol=1e-5)
    filtered = coded.filtered({"lang": "en"})
    assert (bm25 >> Rerank(VectorDot(filtered))).run(QUERIES) == run


def test_what_has_no_vectors_is_refused(bm25: Retriever, dense: Retriever, tmp_path: Path) -> None:
    given = dense.run(QUERIES)
    with pytest.raises(ConfigError, match="expected a retriever"):
        Rerank(VectorDot(bm25 | dense)).run(QUERIES, given)
    with pytest.raises(ConfigError, match="expected a retriever"):
        VectorDot("dense")  # type: ignore[arg-type]
    cut = Retriever.build(BM25Encoder(), documents(), passages=Passages(4, 1), name="cut")
    with pytest.raises(ConfigError, match="indexes passages"):
        Rerank(VectorDot(cut)).run(QUERIES, given)
    head = draw_pair_head(24, 8, 5)
    head.save(tmp_path)
    with pytest.raises(ConfigError, match="sparse vectors"):
        Rerank(PairHeadScorer(bm25, str(tmp_path))).run(QUERIES, given)
    with pytest.raises(ModelError, match="no pair head"):
        (tmp_path / "empty").mkdir()
        Rerank(PairHeadScorer(dense, str(tmp_path / "empty"))).run(QUERIES, given)
    draw_pair_head(7, 8, 5).save(tmp_path / "empty")
    with pytest.raises(DataError, match="pair head"):
        Rerank(PairHeadScorer(dense, str(tmp_path / "empty"))).run(QUERIES, given)


def test_pair_head_equals_its_forward(bm25: Retriever, dense: Retriever, tmp_path: Path) -> None:
    head = draw_pair_head(24, 16, 5)
    head.save(tmp_path)
    names = {"bm25": lambda: bm25, "dense": lambda: dense}
    stage = parse(f"bm25 >> pair_head(dense, model={str(tmp_path)!r}, depth=30)", names)
    found = stage.run(QUERIES)
    texts = {document.id: document.full_text for document in documents()}
    for query, ranking in found.items():
        docs = ranking.doc_ids[:30]
        q = torch.from_numpy(dense.encoder.encode_queries([QUERIES[query]])).repeat(len(docs), 1)
        d = torch.from_numpy(dense.encoder.encode_documents([texts[doc] for doc in docs]))
        with torch.no_grad():
            assert np.allclose(ranking.scores[:30], head(q, d).numpy(), atol=1e-5)


def test_expressions_are_checked_without_looking_at_parts() -> None:
    names = {"bm25": lambda: _AnyStage("bm25"), "dense": lambda: _AnyStage("dense")}
    stage = parse("bm25 >> dot(dense, depth=20) >> pair_head(dense, model='m', depth=5)", names)
    assert [part.name for part in stage.inner[0].inner] == ["bm25", "dot(depth=20)"]
    assert stage.inner[1].inner[0].name == "dense"
    for wrong in ("dot()", "dot(dense, deep=5)", "pair_head(dense)", "pair_head(dense, model='')"):
        with pytest.raises(ConfigError):
            parse(wrong, names)
