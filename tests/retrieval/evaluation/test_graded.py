"""Levels, the exponential gain, and what a run finds of each grade."""

import math

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.file_keys import normalised_dataset
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.evaluation.measures import Measure, at_level, parse_measure
from sluice.retrieval.evaluation.scores import evaluate, grade_breakdown

EXP = "nDCG_exp@10"
THEIRS = "nDCG(dcg='exp-log2')@10"


def random_graded(seed: int) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, int]]]:
    rng = np.random.default_rng(seed)
    queries = [f"q{n}" for n in range(6)]
    run = {
        q: {f"d{d}": float(rng.permutation(900)[0]) + d / 100 for d in range(15)} for q in queries
    }
    qrels = {q: {f"d{d}": int(rng.integers(4)) for d in range(0, 25, 2)} for q in queries}
    return run, qrels


@pytest.mark.parametrize(
    "text",
    [
        EXP,
        THEIRS,
        "nDCG(gain=exp)@10",
        "ndcg(DCG=exp-log2)@10",
        "ndcg_burges@10",
        "nDCG@10(gain='exp')",
    ],
)
def test_spellings_of_the_exponential_gain(text: str) -> None:
    measure = parse_measure(text)
    assert str(measure) == EXP
    assert parse_measure(str(measure)) == measure == Measure("nDCG_exp", 10)
    assert str(ir_measures.parse_measure(THEIRS)) == THEIRS


def test_the_linear_gain_is_the_default() -> None:
    for text in ("nDCG(gain=linear)@10", 'nDCG(dcg="log2")@10'):
        assert parse_measure(text) == parse_measure("nDCG@10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P(gain=exp)@5", "P has no 'gain'"),
        ("nDCG(gain=cubic)@10", "dcg is 'exp-log2'"),
        ("ndcg_burges(gain=linear)@10", "nDCG_exp has no 'gain'"),
        ("nDCG(gain=exp,gain=exp)@10", "gain is given twice"),
    ],
)
def test_gains_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_measure(text)


def test_values_by_hand() -> None:
    run, qrels = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}}, {"q": {"a": 1, "c": 3, "d": 2}}
    scores = evaluate(run, qrels, ["nDCG@3", EXP])
    linear = (1 + 3 / 2) / (3 + 2 / math.log2(3) + 1 / 2)
    exponential = (1 + 7 / 2) / (7 + 3 / math.log2(3) + 1 / 2)
    assert scores.mean["nDCG@3"] == pytest.approx(linear, abs=1e-15)
    assert scores.mean["nDCG(gain=exp)@10"] == pytest.approx(exponential, abs=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_linear_is_pytrec_evals_and_exponential_pytrec_evals_of_mapped_grades(
    seed: int,
) -> None:
    run, qrels = random_graded(seed)
    ours = evaluate(run, qrels, ["nDCG@10", EXP])
    mapped = {q: {d: 2**g - 1 for d, g in grades.items()} for q, grades in qrels.items()}
    for measure, truth in (("nDCG@10", qrels), (EXP, mapped)):
        theirs = pytrec_eval.RelevanceEvaluator(truth, {"ndcg_cut.10"}).evaluate(run)
        for query, values in theirs.items():
            assert ours.per_query[measure][query] == pytest.approx(values["ndcg_cut_10"], abs=1e-12)


def test_grades_too_great_for_powers_of_two() -> None:
    run, qrels = {"q": {"a": 1.0}}, {"q": {"a": 5000}}
    assert evaluate(run, qrels, ["nDCG@10"]).mean["nDCG@10"] == 1.0
    with pytest.raises(DataError, match="grade 5000"):
        evaluate(run, qrels, [EXP])


def test_levels_decide_what_is_relevant() -> None:
    run, qrels = random_graded(7)
    names = ["P@5", "R@10", "AP", "RR", "nDCG@10", "Judged@10", "P(rel=3)@5"]
    found = evaluate(run, qrels, names, level=2)
    assert list(found.mean) == [
        "P(rel=2)@5", "R(rel=2)@10", "AP(rel=2)", "RR(rel=2)", "nDCG@10", "Judged@10", "P(rel=3)@5",
    ]  # fmt: skip
    raised_qrels = {q: {d: int(g >= 2) for d, g in own.items()} for q, own in qrels.items()}
    two = evaluate(run, raised_qrels, ["P@5", "R@10", "AP", "RR"])
    for name in ("P@5", "R@10", "AP", "RR"):
        raised = str(at_level([parse_measure(name)], 2)[0])
        assert found.per_query[raised] == two.per_query[name]
    with pytest.raises(ConfigError, match="level is 0"):
        evaluate(run, qrels, names, level=0)


def test_a_dataset_brings_its_level(tmp_path: object) -> None:
    folder = write_beir(tmp_path)  # type: ignore[arg-type]
    dataset = load_dataset({"name": str(folder), "level": 2})
    assert dataset.level == dataset.with_split("dev").level == 2
    run = {query: {doc: 1.0 for doc in grades} for query, grades in dataset.qrels.items()}
    assert list(evaluate(run, dataset, ["P@5"]).mean.items()) == [("P(rel=2)@5", 0.0)]
    assert evaluate(run, dataset, ["P@5"], level=1).mean["P@5"] > 0
    assert load_dataset(str(folder)).level == 1
    assert normalised_dataset({"name": "x", "level": 2}) == normalised_dataset("x")
    with pytest.raises(ConfigError, match=r"dataset\.level is 0"):
        load_dataset({"name": str(folder), "level": 0})


def test_a_run_grade_by_grade() -> None:
    qrels = {"q": {"a": 2, "b": 2, "c": 1, "d": 0}, "r": {"a": 1}, "none": {"a": 1}, "empty": {}}
    run = {"q": {"a": 4.0, "x": 3.0, "c": 2.0, "b": 1.0}, "r": {"x": 2.0, "a": 1.0}}
    found = grade_breakdown(run, qrels, [2, 3])
    two, one, zero = found.grades
    assert (two.grade, two.judged, two.queries, two.found) == (2, 2, 1, 2)
    assert two.recall == {2: 0.5, 3: 0.5}
    assert two.mean_rank == 2.5
    assert two.share == {2: 1 / 4, 3: 1 / 5}  # 2 + 2 places, 3 + 2 places
    assert (one.judged, one.queries, one.found) == (3, 3, 2)
    assert one.recall == {2: pytest.approx(1 / 3), 3: pytest.approx(2 / 3)}
    assert one.mean_rank == 2.5
    assert one.share == {2: 1 / 4, 3: 2 / 5}
    assert (zero.found, zero.mean_rank) == (0, None)
    assert found.unjudged == {2: pytest.approx(2 / 4), 3: pytest.approx(2 / 5)}
    table = found.table()
    assert list(table.rows) == ["grade 2", "grade 1", "grade 0", "unjudged"]
    assert "mean rank" in str(table)
    with pytest.raises(DataError, match="no judgements"):
        grade_breakdown(run, {"q": {}})
    with pytest.raises(ConfigError, match="no cut-offs"):
        grade_breakdown(run, qrels, [])


def test_the_breakdown_adds_up_to_recall_and_judged() -> None:
    run, qrels = random_graded(2)
    found = grade_breakdown(run, qrels, [10])
    scores = evaluate(run, qrels, ["Judged@10", "R(rel=3)@10"])
    assert found.unjudged[10] == pytest.approx(1 - scores.mean["Judged@10"])
    having = [query for query, grades in qrels.items() if 3 in grades.values()]
    recalls = [scores.per_query["R(rel=3)@10"][query] for query in having]
    assert found.grades[0].recall[10] == pytest.approx(sum(recalls) / len(recalls))
