import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.fusion.fusion import Fusion, reciprocal_rank_fusion
from sluice.retrieval.runs.run import Ranking, Run

HITS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=8
)
RUNS = st.lists(
    st.dictionaries(st.sampled_from(["q1", "q2"]), HITS).map(Run), min_size=1, max_size=3
)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(RUNS, st.sampled_from([0, 1, 60]))
def test_rrf_is_the_sum_of_reciprocal_ranks(runs: list[Run], k: int) -> None:
    fused = reciprocal_rank_fusion(runs, k=k)
    expected: dict[str, dict[str, float]] = {}
    for run in runs:
        for query, ranking in run.items():
            sums = expected.setdefault(query, {})
            for rank, (doc_id, _) in enumerate(ranking, 1):
                sums[doc_id] = sums.get(doc_id, 0.0) + 1 / (k + rank)
    assert dict(fused) == dict(Run(expected))


@settings(derandomize=True, max_examples=80, deadline=None)
@given(RUNS, st.sampled_from(["min-max", "z-score", "none"]), st.integers(0, 99))
def test_weighted_fusion_by_definition(runs: list[Run], normalise: str, seed: int) -> None:
    weights = np.random.default_rng(seed).uniform(0.1, 2, len(runs)).tolist()
    fused = Fusion("weighted", weights, normalise).fuse(runs)
    for query in {query for run in runs for query in run}:
        lists = [(dict(run.get(query, Ranking([], []))), w) for run, w in zip(runs, weights)]  # noqa: B905
        everything = {doc for hits, _ in lists for doc in hits}
        assert set(fused[query].doc_ids) == everything
        for doc, score in fused[query]:
            expected = sum(w * share(hits, doc, normalise) for hits, w in lists if hits)
            assert score == pytest.approx(expected, abs=1e-5)


def share(hits: dict[str, float], doc: str, normalise: str) -> float:
    values = list(hits.values())
    low, high = min(values), max(values)
    score = hits.get(doc, low)
    if normalise == "none":
        return score
    if low == high:
        return float(doc in hits) if normalise == "min-max" else 0.0
    if normalise == "min-max":
        return (score - low) / (high - low)
    return float((score - np.mean(values)) / np.std(values))


def test_weight_zero_reproduces_the_single_runs() -> None:
    first = Run({"q": {"a": 3.0, "b": 1.0, "c": -2.0}})
    second = Run({"q": {"c": 9.0, "d": 8.0}, "p": {"a": 1.0}})
    for weights, single in (([1, 0], first), ([0, 2], second)):
        fused = [
            reciprocal_rank_fusion([first, second], weights=weights),
            *(
                Fusion("weighted", weights, n).fuse([first, second])
                for n in ("min-max", "z-score", "none")
            ),
        ]
        for run in fused:
            assert {q: list(r.doc_ids) for q, r in run.items()} == {
                q: list(r.doc_ids) for q, r in single.items()
            }
    assert Fusion("weighted", [1, 0], "none").fuse([first, second])["q"] == first["q"]


def test_ranks_are_the_runs_own_and_ties_fall_by_id() -> None:
    odd = Run({"q": Ranking(["a", "b"], [1.0, 5.0])})
    assert list(reciprocal_rank_fusion([odd])["q"].doc_ids) == ["a", "b"]
    mirrored = Run({"q": {"b": 2.0, "a": 1.0}})
    assert list(reciprocal_rank_fusion([odd, mirrored])["q"].doc_ids) == ["b", "a"]


def test_errors() -> None:
    run = Run({"q": {"a": 1.0}})
    for call, message in [
        (lambda: reciprocal_rank_fusion([]), "no runs"),
        (lambda: reciprocal_rank_fusion([run], k=-1), "rank_constant=-1"),
        (lambda: reciprocal_rank_fusion([run], weights=[1, 2]), "2 weights for 1 runs"),
        (lambda: Fusion("weighted", [1, -1]).fuse([run, run]), "0 or more"),
        (lambda: Fusion("weighted", [0, 0]).fuse([run, run]), "not all of them 0"),
        (lambda: Fusion("weighted", None, "minmax").fuse([run]), "did you mean 'min-max'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            call()
