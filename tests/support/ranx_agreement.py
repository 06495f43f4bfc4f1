"""Fusion methods against ranx, for a process of its own: ranx compiles for minutes otherwise."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from sluice.retrieval import Ranking, Run
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.pipelines.fusion.search import RANX


def distinct_runs(count: int = 3, seed: int = 0, overlap: float = 0.6) -> list[Run]:
    """Runs with different scores everywhere, so that no tie hides a difference."""
    rng = np.random.default_rng(seed)
    runs = []
    for number in range(count):
        lists = {}
        for query in range(6):
            ids = [f"d{d}" for d in range(20) if rng.random() < overlap] or ["d0"]
            lists[f"q{query}"] = dict(zip(ids, rng.normal(size=len(ids)).tolist(), strict=True))
        runs.append(Run(lists, name=f"run{number}"))
    return runs


def by_ranx(name: str, runs: list[Run], norm: str | None, **options: Any) -> dict[str, Any]:
    import ranx

    given_runs = [ranx.Run({q: dict(r) for q, r in run.items()}) for run in runs]
    fused: dict[str, Any] = ranx.fuse(given_runs, norm=norm, method=name, params=options).to_dict()
    return fused


def same_scores(found: Run, expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for query, ranking in found.items():
        assert dict(ranking) == pytest.approx(expected[query], abs=1e-5)


def our_methods() -> None:
    """Those of ranx that we compute ourselves have its values."""
    weights = [0.2, 0.3, 0.5]
    cases: list[tuple[Fusion, str, str | None, dict[str, Any]]] = [
        (Fusion("rrf"), "rrf", None, {}),
        (Fusion("rank_biased", phi=0.7), "rbc", None, {"phi": 0.7}),
        (Fusion("comb_sum"), "sum", "min-max", {}),
        (Fusion("comb_mnz"), "mnz", "min-max", {}),
        (Fusion("comb_mnz", normalise="none"), "mnz", None, {}),
        (Fusion("comb_sum", weights), "wsum", "min-max", {"weights": weights}),
    ]
    for fusion, name, norm, options in cases:
        runs = distinct_runs()
        same_scores(fusion.fuse(runs), by_ranx(name, runs, norm, **options))


def methods_through_ranx() -> None:
    """By their definitions, computed here: ranx is what is called."""
    runs, weights = distinct_runs(), [0.5, 0.2, 0.3]
    by_score: dict[str, Any] = {
        "comb_anz": lambda s, w: sum(s) / len(s),
        "comb_max": lambda s, w: max(s),
        "comb_min": lambda s, w: min(s),
        "comb_med": lambda s, w: float(np.median(s)),
        "comb_gmnz": lambda s, w: sum(s) * len(s) ** 0.5,
        "wmnz": lambda s, w: sum(s) * sum(w),
        "mixed": lambda s, w: sum(a * b for a, b in zip(s, w, strict=True)) * len(s) ** 0.5,
    }
    by_rank: dict[str, Any] = {
        "isr": lambda n: sum(1 / r**2 for r in n) * len(n),
        "log_isr": lambda n: sum(1 / r**2 for r in n) * math.log(len(n)),
        "logn_isr": lambda n: sum(1 / r**2 for r in n) * math.log(len(n) + 0.01),
    }
    assert {*by_score, *by_rank} < set(RANX)
    for name, formula in {**by_score, **by_rank}.items():
        given_weights = weights if RANX[name].weighted else None
        fused = Fusion(name, given_weights, normalise="z-score").fuse(runs)
        for query, ranking in fused.items():
            for doc, score in ranking:
                places = [i for i, run in enumerate(runs) if doc in run[query].doc_ids]
                if name in by_rank:
                    ranks = [list(runs[i][query].doc_ids).index(doc) + 1 for i in places]
                    expected = formula(ranks)
                else:
                    expected = formula(
                        [z_score(runs[i][query], doc) for i in places],
                        [weights[i] for i in places],
                    )
                assert score == pytest.approx(expected, abs=1e-5), (name, query, doc)


def z_score(ranking: Ranking, doc: str) -> float:
    scores = ranking.scores.astype(float)
    return float((dict(ranking)[doc] - scores.mean()) / scores.std())


def borda() -> None:
    runs = distinct_runs(overlap=0.8)
    for name, weights in (("bordafuse", None), ("weighted_bordafuse", [2.0, 1.0, 1.0])):
        fused = Fusion(name, weights).fuse(runs)
        for query, ranking in fused.items():
            points: dict[str, float] = dict.fromkeys(ranking.doc_ids, 0.0)
            for run, weight in zip(runs, weights or [1.0] * 3, strict=True):
                ids = list(run[query].doc_ids)
                for doc in points:
                    place = ids.index(doc) if doc in ids else None
                    rest = (len(points) - len(ids) + 1) / 2
                    points[doc] += weight * (rest if place is None else len(points) - place)
            assert dict(ranking) == pytest.approx(points, abs=1e-4)


def odd_lists(name: str) -> None:
    """Empty lists, missing queries, one document, ties: what enters is what the lists have."""
    runs = [
        Run({"one": {"a": 1.0}, "tied": {"a": 1.0, "b": 1.0}, "none": {}, "left": {"x": 2.0}}),
        Run({"one": {}, "tied": {"b": 1.0, "c": 1.0}, "none": {}}, name="second"),
    ]
    fused = Fusion(name).fuse(runs)
    assert {query: set(ranking.doc_ids) for query, ranking in fused.items()} == {
        "one": {"a"}, "tied": {"a", "b", "c"}, "none": set(), "left": {"x"},
    }  # fmt: skip
    assert all(np.isfinite(ranking.scores).all() for ranking in fused.values())
    assert dict(Fusion(name).fuse([Run({}), Run({})])) == {}
    assert Fusion(name).fuse(runs) is not None
    again = Fusion(name).fuse(runs)
    assert dict(again) == dict(fused)


def ranks_go_by_the_order_given() -> None:
    odd = Run({"q": Ranking(["a", "b", "c"], [1.0, 5.0, 3.0])})
    for name in ("isr", "bordafuse", "weighted_bordafuse"):
        assert list(Fusion(name).fuse([odd, odd])["q"].doc_ids) == ["a", "b", "c"]


if __name__ == "__main__":
    our_methods()
    methods_through_ranx()
    borda()
    ranks_go_by_the_order_given()
    for each in (*METHODS, *RANX):
        odd_lists(each)
