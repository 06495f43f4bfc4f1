"""Probabilities of rerankers: those of scikit-learn, in the scorer's order, from 0 to 1."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Rerank, Run, evaluate
from sluice.retrieval.pipelines.expression import count_open, parse
from sluice.retrieval.pipelines.fitting.choice import is_open
from sluice.retrieval.pipelines.fitting.fitter import QueryFitter, fit_on, read_fit
from sluice.retrieval.pipelines.fitting.probability_fit import (
    ProbabilityFit,
    UnfittedProbability,
    fit_probability,
)
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.stages.abstain import NO_ANSWER
from tests.retrieval.pipelines.fitting.test_fitting import Judge, Noisy, judged


def pairs(seed: int, queries: int = 30, depth: int = 12) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(queries):
        hits = (rng.random(depth) < 0.2).astype(float)
        drawn.append((rng.normal(3, 2, depth) + 2.5 * hits, hits))
    return drawn


def test_scale_and_bias_are_those_of_scikit_learn() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    drawn = pairs(1)
    scores, hits = (np.concatenate(part) for part in zip(*drawn, strict=True))
    slope, intercept = calibration._sigmoid_calibration(scores, hits)  # sigmoid(-(a f + b))
    fit = fit_probability(drawn, "cross")
    assert fit.scale == pytest.approx(-slope, rel=1e-4)
    assert fit.bias == pytest.approx(-intercept, rel=1e-4)
    likely = 1 / (1 + np.exp(-(fit.scale * scores + fit.bias)))
    bins = np.minimum((likely * 10).astype(int), 9)
    gaps = [
        (bins == b).sum() * abs(likely[bins == b].mean() - hits[bins == b].mean())
        for b in set(bins.tolist())
    ]
    assert fit.value == pytest.approx(sum(gaps) / len(scores))
    assert fit.held_out is not None
    assert (fit.queries, fit.pairs, fit.relevant) == (30, 360, int(hits.sum()))


def test_few_queries_make_nothing_certain_and_a_wrong_scorer_says_nothing() -> None:
    hits = np.array([1.0, 0, 0, 0])
    sure = fit_probability([(np.array([9.0, 1, 2, 3]), hits)] * 6)
    likely = 1 / (1 + np.exp(-(sure.scale * 9 + sure.bias)))
    assert 0.8 < likely < 0.9  # the target is (6 + 1) / (6 + 2)
    wrong = fit_probability([(np.array([0.0, 1, 2, 3]), hits)] * 6)
    assert wrong.scale == 0
    with pytest.raises(DataError, match=r"0 of the 8 documents .*for 2 dev queries.*both kinds"):
        fit_probability([(np.arange(4.0), np.zeros(4))] * 2, "cross")


def test_a_pipeline_gives_probabilities_in_the_order_it_had(tmp_path: Path) -> None:
    queries, qrels = judged(60)
    first, judge = Noisy("first", 0.8, qrels), Judge(qrels, 0.4)
    text = "first >> cross(depth=10, probability=True)"
    opened = parse(text, {"first": lambda: first, "cross": lambda: judge})
    assert is_open(opened)
    assert count_open(text, where="x") == 1
    stage = fit_on(opened, queries, qrels)
    assert stage.gives_probabilities
    plain = first >> Rerank(judge, 10)
    likely, raw = stage.run(queries), plain.run(queries)
    for query in queries:
        assert likely[query].doc_ids == raw[query].doc_ids
        scores = likely[query].scores
        assert (np.diff(scores) <= 0).all()
        assert scores.max() <= 1
        assert scores.min() >= 0
    assert evaluate(likely, qrels, ["nDCG@10"]).mean == evaluate(raw, qrels, ["nDCG@10"]).mean
    # kept as a file, and read by another pipeline
    (open_stage,) = [each for each in opened.inner if isinstance(each, UnfittedProbability)]
    fit = QueryFitter(queries, qrels).choose(open_stage, first)
    fit.save(file := tmp_path / "p.json")
    assert read_fit(file) == fit
    again = parse(f"first >> cross(depth=10, probability='{file}')",
                  {"first": lambda: first, "cross": lambda: judge})  # fmt: skip
    assert again.run(queries) == likely


def test_scores_that_saturate_keep_their_order_through_a_file(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    numbers = {"a": 100.0, "b": 300.0, "c": 200.0, "d": -400.0}
    sure = Rerank(lambda pairs: [numbers[text] for _, text in pairs], 4, documents=Texts())
    given = Run({"q": {name: 1.0 - n / 10 for n, name in enumerate(names)}})
    run = sure.with_probability(1.0, 0.0).run({"q": "x"}, given)
    assert run["q"].doc_ids == ["b", "c", "a", "d"]
    run.save(tmp_path / "r.trec")
    assert list(Run.load(tmp_path / "r.trec")["q"].doc_ids) == ["b", "c", "a", "d"]
    nothing = Rerank(lambda pairs: [0.0] * len(pairs), 0, documents=Texts())
    assert nothing.with_probability(1.0, 0.0).run({"q": "x"}, given)["q"].scores.tolist() == [0] * 4
    assert not len(sure.with_probability(1.0, 0.0).run({"q": "x"}, Run({}))["q"])


class Texts:
    def texts(self, document_ids: Any) -> list[str]:
        return list(document_ids)


def test_abstaining_by_probability_says_so_and_what_no_probability_has() -> None:
    queries, qrels = judged(60)
    first, judge = Noisy("first", 0.8, qrels), Judge(qrels, 0.3)
    names = {"first": lambda: first, "cross": lambda: judge}
    text = "abstain(first >> cross(depth=10, probability=True), threshold=0.5)"
    stage = fit_on(parse(text, names), queries, qrels)
    sure = fit_on(parse(text[8:].partition(", threshold")[0], names), queries, qrels)
    tops = {query: each.scores[0] for query, each in sure.run(queries).items()}
    with tracing() as spans:
        run = stage.run(queries)
    assert {query for query in queries if not len(run[query])} == {
        query for query, top in tops.items() if top < 0.5
    }
    assert set(spans[-1].facts[NO_ANSWER]) == {q for q, top in tops.items() if top < 0.5}
    with pytest.raises(ConfigError, match=r"threshold 1\.5 refuses every query"):
        parse(text.replace("0.5", "1.5"), names)
    for option, reason in (
        ("interpolate=0.5", "leave interpolate out"),
        ("deadline_ms=5", "leave deadline_ms out"),
        ("cut_off=0.5", "leave the rule of its depth out"),
    ):
        with pytest.raises(ConfigError, match=reason):
            parse(f"first >> cross({option}, probability=True)", names)
    with pytest.raises(ConfigError, match="probability: 3; expected True, or a file"):
        parse("first >> cross(probability=3)", names)
    with pytest.raises(ConfigError, match="no probability can be not fitted"):
        fit_on(parse("first >> cross(probability=True)", names), queries, {})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    ProbabilityFit(1.0, 0.5, "cross", value=0.1).save(path)
    values = json.loads(path.read_text())
    for wrong in ({"scale": -1}, {"bias": "x"}, {"format": "sluice.rerank"}):
        path.write_text(json.dumps({**values, **wrong}))
        with pytest.raises(ConfigError, match=r"p\.json"):
            ProbabilityFit.load(path)
