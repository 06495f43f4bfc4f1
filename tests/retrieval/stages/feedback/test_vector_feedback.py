"""Vector feedback: identities, the four ways, and what queries and documents may lack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FaissIndex, FlatIndex
from sluice.retrieval import Document, Passages, Ranking, Rerank, Retriever, Run
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.pipelines.fusion_calls import weighted
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.stages.feedback.dense import averaged, prf, rocchio
from sluice.retrieval.stages.feedback.stage import rm3

QUERIES = {"a": "gold river", "b": "number 7", "c": "stone water sluice", "d": "word12 the"}


class UnitWords(WordEncoder):
    similarity = "cosine"

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        vectors = super().encode_documents(texts)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, 1e-9))


@pytest.fixture(scope="module")
def cosine() -> Retriever:
    return Retriever.build(UnitWords(), documents(), name="cosine")


def asked_with(retriever: Retriever, vectors: np.ndarray, k: int) -> dict[str, Ranking]:
    return dict(retriever.state.nearest(QUERIES, list(QUERIES), vectors.astype(np.float32), k))


def rows_of(retriever: Retriever, run: Run, k: int) -> np.ndarray:
    return np.array([retriever.store.rows(run[query].doc_ids[:k]) for query in QUERIES])


@pytest.mark.parametrize("name", ["dense", "cosine"])
def test_identities(name: str, request: pytest.FixtureRequest, bm25: Retriever) -> None:
    retriever = request.getfixturevalue(name)
    plain = dict(retriever.run(QUERIES))
    assert dict(prf(retriever, k=0).run(QUERIES)) == plain
    assert dict((bm25 >> prf(retriever, k=0)).run(QUERIES)) == plain
    for alpha in (0.4, 1.0):
        still = prf(retriever, kind="rocchio", alpha=alpha, beta=0, gamma=0, bottom=2)
        assert dict(still.run(QUERIES)) == plain
        assert dict((bm25 >> still).run(QUERIES)) == plain


@pytest.mark.parametrize("k", [1, 3, 7])
def test_average_is_rocchio_with_its_weights(cosine: Retriever, k: int) -> None:
    average = prf(cosine, k=k).run(QUERIES)
    same = prf(cosine, k=k, kind="rocchio", alpha=1 / (k + 1), beta=k / (k + 1)).run(QUERIES)
    for query, ranking in average.items():
        np.testing.assert_allclose(ranking.scores, same[query].scores, rtol=1e-6)


def test_its_own_list_is_the_retrievers_first_k(dense: Retriever) -> None:
    own = prf(dense, k=3).run(QUERIES, None, 7)
    assert dict(own) == dict((dense % 3 >> prf(dense, k=3)).run(QUERIES, None, 7))
    first = rows_of(dense, dense.run(QUERIES, None, 3), 3)
    moved = averaged(
        dense.encoder.encode_queries(list(QUERIES.values())), dense.index.documents(np.arange(40)),
        first,
    )  # fmt: skip
    assert dict(own) == asked_with(dense, moved, 7)


@pytest.mark.parametrize("name", ["dense", "cosine"])
def test_rocchio_takes_the_last_of_the_list(name: str, request: pytest.FixtureRequest) -> None:
    retriever = request.getfixturevalue(name)
    stage = prf(retriever, k=2, kind="rocchio", bottom=3, depth=9)
    rows = rows_of(retriever, retriever.run(QUERIES, None, 9), 9)
    moved = rocchio(
        retriever.encoder.encode_queries(list(QUERIES.values())),
        retriever.index.documents(np.arange(40)),
        rows[:, :2], rows[:, -3:], alpha=0.4, beta=0.6, gamma=0.1, unit=name == "cosine",
    )  # fmt: skip
    assert dict(stage.run(QUERIES, None, 5)) == asked_with(retriever, moved, 5)
    if name == "cosine":
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1.0, rtol=1e-12)


def test_a_document_is_not_first_and_last(dense: Retriever) -> None:
    short = {query: [("d03", 2.0), ("d05", 1.0)] for query in QUERIES}
    overlapping = prf(dense, k=1, kind="rocchio", bottom=5).run(QUERIES, Run(short), 6)
    separate = prf(dense, k=1, kind="rocchio", bottom=1).run(QUERIES, Run(short), 6)
    assert dict(overlapping) == dict(separate)
    all_first = prf(dense, k=2, kind="rocchio", bottom=5).run(QUERIES, Run(short), 6)
    assert dict(all_first) == dict(prf(dense, k=2, kind="rocchio").run(QUERIES, Run(short), 6))


def test_the_four_ways(bm25: Retriever, dense: Retriever) -> None:
    sparse, own = bm25.run(QUERIES, None, 1000), prf(dense, k=3).run(QUERIES, None, 1000)
    hybrid = (bm25 | dense).run(QUERIES, None, 1000)
    before = ((bm25 | dense) >> prf(dense, k=3)).run(QUERIES, None, 20)
    assert dict(before) == dict(prf(dense, k=3).run(QUERIES, hybrid, 20))
    assert dict(before) != {query: ranking[:20] for query, ranking in own.items()}
    after = weighted(bm25, prf(dense, k=3)).run(QUERIES, None, 20)
    assert dict(after) == dict(Fusion("weighted").fuse([sparse, own]).top(20))
    deep = prf(dense, k=3).run(QUERIES, hybrid, 1000)
    both = weighted(bm25, (bm25 | dense) >> prf(dense, k=3)).run(QUERIES, None, 20)
    assert dict(both) == dict(Fusion("weighted").fuse([sparse, deep]).top(20))
    # A fusion hands on what it is given, so this is feedback from the list before it too.
    handed = ((bm25 | dense) >> weighted(bm25, prf(dense, k=3))).run(QUERIES, None, 20)
    assert dict(handed) == dict(both)


def test_expressions(bm25: Retriever, dense: Retriever) -> None:
    names = {"bm25": lambda: bm25, "dense": lambda: dense}
    for text in (
        "prf(dense)",
        "(bm25 | dense) >> prf(dense, k=3, kind='average')",
        "weighted(bm25, prf(dense, kind='rocchio', alpha=0.4, beta=0.6, gamma=0.1, bottom=2))",
        "weighted(bm25, (bm25 | dense) % 50 >> prf(dense, k=5) % 7)",
    ):
        stage = parse(text, names)
        assert not stage.needs_candidates
        assert stage.documents is not None
        assert all(len(ranking) for ranking in stage.run(QUERIES, None, 5).values())
    with pytest.raises(ConfigError, match="did you mean 'kind'"):
        parse("prf(dense, kin='average')", names)
    with pytest.raises(ConfigError, match="expected one of 'average', 'rocchio'"):
        parse("prf(dense, kind='mean')", names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": -1}, "prf: k"),
        ({"k": 1.5}, "prf: k"),
        ({"kind": "roccio"}, "did you mean 'rocchio'"),
        ({"alpha": 0.5}, "alpha=0.5 is for kind='rocchio'"),
        ({"bottom": 2}, "bottom=2 is for kind='rocchio'"),
        ({"kind": "rocchio", "beta": -0.1}, "prf: beta"),
        ({"kind": "rocchio", "alpha": float("nan")}, "prf: alpha"),
        ({"kind": "rocchio", "bottom": 8, "k": 3, "depth": 10}, "expected 11 or more"),
    ],
)
def test_options_that_are_none(dense: Retriever, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prf(dense, **options)


def test_what_is_no_dense_retriever(bm25: Retriever, dense: Retriever) -> None:
    with pytest.raises(ConfigError, match=r"sparse vectors; use rm3\(bm25\)"):
        prf(bm25).run(QUERIES)
    for other in (bm25 | dense, dense % 10):
        with pytest.raises(ConfigError, match="needs a retriever to ask again"):
            prf(other)
    with pytest.raises(ConfigError, match="needs a retriever to ask again"):
        prf(Rerank(type("S", (), {"score": lambda self, pairs: []})())).run(QUERIES)


def test_several_vectors_a_document_are_refused() -> None:
    for encoder, stage in ((WordEncoder(), prf), (BM25Encoder(), rm3)):
        several = Retriever.build(encoder, documents(8), passages=Passages(4, 1))
        with pytest.raises(ConfigError, match="build the retriever without passages"):
            stage(several).run(QUERIES)
        one = Retriever.build(encoder, documents(8), passages=Passages(4, 1, "mean"))
        assert len(stage(one).run(QUERIES, None, 3)["a"]) > 0


def test_lists_that_are_short_empty_or_of_another_corpus(dense: Retriever) -> None:
    given = Run({"a": [("d03", 1.0)], "b": [], "c": [("elsewhere", 9.0), ("d05", 1.0)]})
    found = prf(dense, k=3).run(QUERIES, given, 9)
    plain = dense.run(QUERIES, None, 9)
    assert found["b"] == plain["b"]
    assert found["d"] == plain["d"]  # no list at all
    assert found["a"] == prf(dense, k=1).run(QUERIES, given, 9)["a"]
    alone = Run({query: [("d05", 1.0)] for query in QUERIES})
    assert found["c"] == prf(dense, k=3).run(QUERIES, alone, 9)["c"]
    assert dict(prf(dense, k=99).run(QUERIES)) == dict(prf(dense, k=40).run(QUERIES))


def test_blank_queries_and_none(dense: Retriever, caplog: pytest.LogCaptureFixture) -> None:
    found = prf(dense).run({"a": "gold", "e": "  "}, None, 5)
    assert len(found["a"]) == 5
    assert len(found["e"]) == 0
    assert len([record for record in caplog.records if "empty quer" in record.message]) == 1
    assert dict(prf(dense).run({})) == {}
    assert len(prf(dense).run({"e": ""})["e"]) == 0


def test_one_document_and_none() -> None:
    one = Retriever.build(WordEncoder(), documents(1))
    assert list(prf(one, k=5).run(QUERIES)["a"].doc_ids) == ["d00"]
    rocchio_of_one = prf(one, k=1, kind="rocchio", bottom=4).run(QUERIES)
    assert list(rocchio_of_one["a"].doc_ids) == ["d00"]
    empty = Retriever.build(WordEncoder(), [], index=FlatIndex())
    assert [len(ranking) for ranking in prf(empty).run(QUERIES).values()] == [0] * 4


def test_the_own_document_is_no_hit_and_gives_no_feedback(dense: Retriever) -> None:
    text = dense.store.text("d11")
    queries = SelfExcluding({"d11": text, "d12": dense.store.text("d12")})
    found = prf(dense, k=2).run(queries, None, 39)
    assert all(query not in ranking.doc_ids for query, ranking in found.items())
    assert len(found["d11"]) == 39
    others = dense.run(SelfExcluding({"d11": text}), None, 2)
    expected = prf(dense, k=2).run(SelfExcluding({"d11": text}), others, 39)
    assert found["d11"] == expected["d11"]
    given = Run({"d11": [("d11", 9.0), *others["d11"]]})
    assert prf(dense, k=2).run(queries, given, 39)["d11"] == expected["d11"]


def test_deleted_documents_give_no_feedback(tmp_path: Path) -> None:
    retriever = Retriever.build(WordEncoder(), documents(), path=tmp_path / "r")
    given = Run({"a": [("d03", 2.0), ("d05", 1.0)]})
    queries = {"a": "gold river"}
    retriever.delete(["d03"])
    left = Run({"a": [("d05", 1.0)]})
    expected = prf(retriever, k=2).run(queries, left, 39)
    assert prf(retriever, k=2).run(queries, given, 39)["a"] == expected["a"]
    assert "d03" not in expected["a"].doc_ids


def test_filters_hold_for_both_searches() -> None:
    made = [
        Document(document.id, document.title, document.text, {"even": number % 2 == 0})
        for number, document in enumerate(documents())
    ]
    retriever = Retriever.build(WordEncoder(), made)
    kept = prf(retriever, k=2).filtered({"even": True})
    found = kept.run(QUERIES, None, 40)
    evens = Retriever.build(WordEncoder(), made[::2])
    assert dict(found) == dict(prf(evens, k=2).run(QUERIES, None, 40))


def test_ties_are_ordered_as_in_every_run() -> None:
    same = [Document(name, "", "gold") for name in "cabd"]
    retriever = Retriever.build(WordEncoder(), same)
    found = prf(retriever, k=2).run({"q": "gold"})["q"]
    assert list(found.doc_ids) == ["d", "c", "b", "a"]
    assert len(set(found.scores.tolist())) == 1


def test_indexes_that_want_unit_queries_or_decode_their_documents() -> None:
    made = Retriever.build(UnitWords(), documents(), index=FaissIndex("Flat", metric="cosine"))
    flat = Retriever.build(UnitWords(), documents())
    given = flat.run(QUERIES, None, 5)
    found = prf(made, k=3).run(QUERIES, given, 10)
    for query, ranking in prf(flat, k=3).run(QUERIES, given, 10).items():
        np.testing.assert_allclose(found[query].scores, ranking.scores, rtol=1e-5)
    rounded = Retriever.build(UnitWords(), documents(), index=FaissIndex("SQ8"))
    assert all(len(ranking) == 10 for ranking in prf(rounded).run(QUERIES, None, 10).values())


def test_many_queries_are_one_search_and_as_one_by_one(dense: Retriever) -> None:
    many = {f"{name}{number}": text for number in range(150) for name, text in QUERIES.items()}
    whole = prf(dense).run(many, None, 5)
    one_by_one = prf(dense).run(QUERIES, None, 5)
    assert all(whole[query] == one_by_one[query[0]] for query in many)


def test_a_trace_names_the_feedback(dense: Retriever) -> None:
    with tracing() as spans:
        prf(dense, k=2).run({"a": "gold river"}, None, 5)
    first = dense.run({"a": "gold river"}, None, 2)["a"]
    assert spans[0].facts["feedback"] == {"a": list(first.doc_ids)}
