"""Measures that trec_eval does not have, by literal formulas; and what is no plain mean."""

import math
import pkgutil
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Scores, evaluate
from sluice.retrieval.pipelines.fusion.search import FusionSearch
from sluice.retrieval.runs.run import Run

DOCS = [f"d{i}" for i in range(12)]
LISTS = st.lists(st.sampled_from(DOCS), unique=True)
GRADES = st.dictionaries(st.sampled_from(DOCS), st.integers(-2, 4), min_size=1)
CASES = st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), st.tuples(LISTS, GRADES), min_size=1)
K = 4


def scored(cases: dict[str, tuple[list[str], dict[str, int]]], measures: list[str]) -> Scores:
    run = {
        query: {doc: float(-place) for place, doc in enumerate(found)}
        for query, (found, _) in cases.items()
    }
    return evaluate(Run(run), {query: grades for query, (_, grades) in cases.items()}, measures)


def expected_reciprocal_rank(grades: list[int], largest: int) -> float:
    """Chapelle et al. (2009), the loop of their algorithm 1."""
    still, value = 1.0, 0.0
    for rank, grade in enumerate(grades, 1):
        satisfied = (2 ** max(grade, 0) - 1) / 2**largest
        value += still * satisfied / rank
        still *= 1 - satisfied
    return value


def dcg(grades: list[int]) -> float:
    return sum((2 ** max(g, 0) - 1) / math.log2(rank + 1) for rank, g in enumerate(grades, 1))


@settings(derandomize=True, max_examples=120, deadline=None)
@given(CASES, st.sampled_from([0.5, 0.8, 0.95]), st.integers(1, 3))
def test_values_are_those_of_the_formulas(
    cases: dict[str, tuple[list[str], dict[str, int]]], p: float, level: int
) -> None:
    largest = max(1, *(grade for _, grades in cases.values() for grade in grades.values()), 1)
    ours = scored(
        cases,
        [f"RBP(p={p},rel={level})", f"RBP(p={p},rel={level})@{K}", f"RBP_residual(p={p})",
         f"RBP_residual(p={p})@{K}", f"ERR@{K}", "ERR", "ERR(max=4)@20", f"Hole@{K}",
         f"nDCG_exp@{K}", f"R_cap(rel={level})@{K}", "GMAP", "AP", "NumRel"],
    )  # fmt: skip
    for query, (found, judged) in cases.items():
        grades = [judged.get(doc, 0) for doc in found]
        top = found[:K]
        weights = [(1 - p) * p**place for place in range(len(found))]
        gained = [w * (grade >= level) for w, grade in zip(weights, grades, strict=True)]
        known = [w * (doc in judged) for w, doc in zip(weights, found, strict=True)]
        relevant = sum(grade >= level for grade in judged.values())
        hits = sum(judged.get(doc, 0) >= level for doc in top)
        ideal = dcg(sorted(judged.values(), reverse=True)[:K])
        expected = {
            f"RBP(p={p},rel={level})": sum(gained),
            f"RBP(p={p},rel={level})@{K}": sum(gained[:K]),
            f"RBP_residual(p={p})": 1 - sum(known),
            f"RBP_residual(p={p})@{K}": 1 - sum(known[:K]),
            f"ERR@{K}": expected_reciprocal_rank(grades[:K], largest),
            "ERR": expected_reciprocal_rank(grades, largest),
            "ERR(max=4)@20": expected_reciprocal_rank(grades, 4),
            f"Hole@{K}": sum(doc not in judged for doc in top) / K,
            f"nDCG_exp@{K}": dcg(grades[:K]) / ideal if ideal else 0.0,
            f"R_cap(rel={level})@{K}": hits / min(relevant, K) if relevant else 0.0,
            "GMAP": math.log(max(ours.per_query["AP"][query], 1e-5)),
            "NumRel": sum(grade >= 1 for grade in judged.values()),
        }
        for measure, value in expected.items():
            assert ours.per_query[measure][query] == pytest.approx(value, abs=1e-12), measure


def test_rank_biased_precision_of_a_fully_judged_endless_list_leaves_no_residual() -> None:
    grades = {f"d{place:03}": place % 2 for place in range(300)}
    run = Run({"q": {doc: -float(doc[1:]) for doc in grades}})
    scores = evaluate(run, {"q": grades}, ["RBP(p=0.5)", "RBP_residual(p=0.5)"])
    assert scores.mean["RBP(p=0.5)"] == pytest.approx(1 / 3, abs=1e-12)  # 1/4 + 1/16 + ...
    assert scores.mean["RBP_residual(p=0.5)"] == pytest.approx(0, abs=1e-12)


def test_gdeval_agrees(tmp_path: Path) -> None:
    script = pkgutil.get_data("ir_measures", "bin/gdeval.pl")
    if shutil.which("perl") is None or script is None:
        pytest.skip("gdeval needs perl")
    rng = np.random.default_rng(5)
    qrels = {
        str(q): {f"d{d}": int(rng.integers(-2, 5)) for d in rng.permutation(40)[:20]}
        for q in range(1, 9)
    }
    run = Run(  # scores repeat: ties
        {str(q): {f"d{d}": float(rng.integers(0, 9)) for d in rng.permutation(40)[:25]}
         for q in range(1, 9)}
    )  # fmt: skip
    (tmp_path / "gdeval.pl").write_bytes(script)
    lines = [f"{q} 0 {doc} {grade}" for q, judged in qrels.items() for doc, grade in judged.items()]
    (tmp_path / "qrels").write_text("\n".join(lines) + "\n")
    run.save(tmp_path / "run")
    words = ["perl", "gdeval.pl", "qrels", "run", "10"]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    ours = evaluate(run, qrels, ["nDCG_exp@10", "ERR(max=4)@10"]).per_query
    rows = [line.split(",") for line in told.splitlines()[1:]]
    assert len(rows) == len(qrels)
    for _, query, ndcg, err in rows:  # printed with five decimals
        assert ours["nDCG_exp@10"][query] == pytest.approx(float(ndcg), abs=6e-6)
        assert ours["ERR(max=4)@10"][query] == pytest.approx(float(err), abs=6e-6)


def test_what_is_no_mean_over_queries() -> None:
    qrels = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}, "q3": {"c": 1}}
    run = {"q1": {"a": 2.0, "x": 1.0, "b": 0.5}, "q2": {"y": 2.0, "c": 1.0}}
    scores = evaluate(run, qrels, ["NumRet", "NumRel", "NumRelRet", "GMAP", "AP"])
    assert (scores.mean["NumRet"], scores.mean["NumRel"], scores.mean["NumRelRet"]) == (5, 4, 3)
    values = pytrec_eval.RelevanceEvaluator(qrels, {"gm_map"}).evaluate(run)
    for query, value in values.items():
        assert scores.per_query["GMAP"][query] == pytest.approx(value["gm_map"], abs=1e-12)
    both = {query: qrels[query] for query in run}
    means = pytrec_eval.compute_aggregated_measure(
        "gm_map", [value["gm_map"] for value in values.values()]
    )
    assert evaluate(run, both, ["GMAP"]).mean["GMAP"] == pytest.approx(means, abs=1e-12)
    missed = math.exp((sum(v["gm_map"] for v in values.values()) + math.log(1e-5)) / 3)
    assert scores.mean["GMAP"] == pytest.approx(missed, abs=1e-12)


def test_a_grade_above_the_largest_is_refused() -> None:
    run, qrels = {"q": {"a": 1.0}}, {"q": {"a": 3}}
    with pytest.raises(ConfigError, match=r"grade 3, above.*use max=3"):
        evaluate(run, qrels, ["ERR(max=2)@10"])
    assert evaluate(run, qrels, ["ERR@10"]).mean["ERR@10"] == 7 / 8


def test_a_fusion_is_fitted_by_the_largest_grade_of_all_queries() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"b": 4}}
    run = Run({"q1": {"a": 1.0}, "q2": {"b": 1.0}})
    search = FusionSearch([run, run], qrels, parse_measure("ERR@5"))
    assert str(search.measure) == "ERR(max=4)@5"
