"""Weights: ``0.3 * a + 0.7 * b`` is the weighted fusion, in Python and in YAML."""

from collections.abc import Callable

import numpy as np
import pytest
from small_world import LengthScorer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Fuse, Rerank, Retriever, Stage
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.fusion_calls import rrf, weighted

QUERIES = {"a": "gold river", "b": "number 7", "c": "zzz"}


def same(one: Stage, other: Stage) -> bool:
    return dict(one.run(QUERIES)) == dict(other.run(QUERIES))


def test_a_sum_is_the_weighted_fusion(bm25: Retriever, dense: Retriever) -> None:
    total = 0.3 * bm25 + 0.7 * dense
    named = weighted(bm25, dense, weights=[0.3, 0.7])
    assert isinstance(total, Fuse)
    assert total.fusion == named.fusion
    assert same(total, named)
    assert total.name == named.name == "(0.3 * bm25 + 0.7 * dense)"
    assert (bm25 + dense).fusion == weighted(bm25, dense).fusion
    assert (bm25 * 0.3 + dense * 0.7).fusion == named.fusion
    assert (np.float64(0.3) * bm25 + dense * np.float64(0.7)).fusion == named.fusion
    assert sum([0.3 * bm25, 0.7 * dense]).fusion == named.fusion  # type: ignore[union-attr]
    assert ((0.3 * bm25 + 0.7 * dense) % 10).name == "(0.3 * bm25 + 0.7 * dense) % 10"
    assert ((bm25 % 9 >> Rerank(LengthScorer())) % 10).name.startswith("(bm25 % 9 >> ")
    with pytest.raises(TypeError):
        np.array([0.3, 0.7]) * bm25
    with pytest.raises(TypeError):
        1 + bm25


@pytest.mark.parametrize(
    ("text", "stages", "weights"),
    [
        ("0.3 * a + 0.7 * b", 2, (0.3, 0.7)),
        ("0.3 * a + 0.7 * b + c", 3, (0.3, 0.7, 1.0)),
        ("c + (a + b * 2)", 3, (1.0, 1.0, 2.0)),
        ("2 * (a + 3 * b) + c", 3, (2.0, 6.0, 1.0)),
        ("0.5 * (a | b) + c", 2, (0.5, 1.0)),
        ("0.5 * a % 10 + 0.25 * b % 20", 2, (0.5, 0.25)),
        ("(0.5 * a >> cross(depth=3)) + b", 2, (0.5, 1.0)),
        ("weighted(a, b, weights=[2, 4]) + c", 3, (2.0, 4.0, 1.0)),
        ("weighted(a, b, normalise='z-score') + 2 * c", 2, (1.0, 2.0)),
        ("(a + b) % 9 + 2 * c", 2, (1.0, 2.0)),
        ("0.2 * a | b | 3 * c", 3, (0.2, 1.0, 3.0)),
        ("a + b | c", 2, None),
        ("rrf(a, b, weights=[2, 1]) | c", 2, None),  # as it was before there were weights
    ],
)
def test_chains_are_flat_and_weights_stay(
    bm25: Retriever, dense: Retriever, text: str, stages: int, weights: object
) -> None:
    names: dict[str, Callable[[], object]] = {
        "a": lambda: bm25, "b": lambda: dense, "c": lambda: bm25, "cross": LengthScorer,
    }  # fmt: skip
    fuse = parse(text, names)
    assert isinstance(fuse, Fuse)
    assert (len(fuse.stages), fuse.fusion.weights) == (stages, weights)
    scope = {"a": bm25, "b": dense, "c": bm25, "weighted": weighted, "rrf": rrf}
    scope["cross"] = lambda depth: Rerank(LengthScorer(), depth)
    assert same(fuse, eval(text, {}, scope))


def test_a_weight_by_itself_multiplies_scores(bm25: Retriever) -> None:
    half, whole = (0.5 * bm25).run(QUERIES), bm25.run(QUERIES)
    for query, ranking in whole.items():
        assert list(half[query].doc_ids) == list(ranking.doc_ids)
        assert (half[query].scores == ranking.scores / 2).all()
    assert (0.5 * bm25).search("gold", 2, where={"id": ["d10", "d20"]})
    with pytest.raises(ConfigError, match="weight"):
        (-1.0) * bm25
    with pytest.raises(TypeError):
        "0.3" * bm25  # type: ignore[operator]


def test_k_and_where_mean_the_same_for_every_stage(bm25: Retriever, dense: Retriever) -> None:
    stages: list[Stage] = [
        bm25, bm25 | dense, bm25 + dense, 0.5 * bm25, (bm25 | dense) % 30,
        bm25 >> Rerank(LengthScorer(), 5), bm25.filtered({"id": {"not": "d00"}}),
    ]  # fmt: skip
    chosen = {"id": ["d00", "d10", "d20", "nowhere"]}
    for stage in stages:
        whole = stage.run(QUERIES)
        for k in (1, 3):
            cut = stage.run(QUERIES, k=k)
            assert {q: len(r) for q, r in cut.items()} == {
                q: min(k, len(r)) for q, r in whole.items()
            }
            for query, ranking in whole.items():  # of documents that tie with the last any may be
                assert cut[query].scores.tolist() == ranking.scores[:k].tolist()
        if not stage.base_where:
            found = stage.run(QUERIES, where=chosen)
            assert {doc for r in found.values() for doc in r.doc_ids} <= set(chosen["id"])
            assert [hit.doc_id for hit in stage.search("gold river", 3, where=chosen)] == list(
                found["a"].doc_ids
            )[:3]
    with pytest.raises(ConfigError, match="k is -1"):
        bm25.run(QUERIES, k=-1)


def test_ids_are_filtered_like_metadata(bm25: Retriever) -> None:
    all_but = bm25.run({"a": "number"}, where={"id": {"not": ["d00", "d01"]}})["a"]
    assert len(all_but) == len(bm25) - 2
    for wrong, said in (({"id": {"gte": "d"}}, "ids have no order"), ({"id": 3}, "ids are texts")):
        with pytest.raises(ConfigError, match=said):
            bm25.search("gold", where=wrong)
