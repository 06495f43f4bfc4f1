"""Open stages and their fits: what is promised is what running the stages scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Fuse, Rerank, Run, Stage, evaluate
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.pipelines.expression import depths_in, parse
from sluice.retrieval.pipelines.fitting.choice import Unfitted, is_open, supported
from sluice.retrieval.pipelines.fitting.fitter import QueryFitter, closed, fit_on, fitted
from sluice.retrieval.pipelines.fitting.rerank_fit import (
    RerankFit,
    RerankSearch,
    UnfittedRerank,
    fit_rerank,
    settings_up_to,
)
from sluice.retrieval.pipelines.operators import Then
from sluice.retrieval.runs.queries import Queries

Qrels = dict[str, dict[str, int]]
DOCS = [f"d{number:02d}" for number in range(40)]


class Noisy(Stage):
    """Finds relevant documents through noise; counts how often it searched."""

    def __init__(self, name: str, noise: float, qrels: Qrels, seed: int = 0) -> None:
        self.name, self.asked = name, 0
        rng = np.random.default_rng(seed)
        self.scores = {
            query: {d: judged.get(d, 0) + rng.normal(0, noise) for d in DOCS}
            for query, judged in qrels.items()
        }

    @property
    def documents(self) -> Any:
        return Texts()

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        self.asked += 1
        return Run({query: self.scores[query] for query in queries}, name=self.name).top(k or 1000)


class Texts:
    """The text of a document is its id."""

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        return list(document_ids)


class Judge:
    """Scores pairs by the judgements, with noise; ties where ``rounded``; counts the pairs."""

    def __init__(self, qrels: Qrels, noise: float, seed: int = 9) -> None:
        rng = np.random.default_rng(seed)
        self.qrels, self.pairs = qrels, 0
        self.noise = {q: {d: rng.normal(0, noise) for d in DOCS} for q in qrels}

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.pairs += len(pairs)
        return [round(self.qrels[q].get(d, 0) + self.noise[q][d], 1) for q, d in pairs]


def judged(queries: int = 40, seed: int = 0) -> tuple[dict[str, str], Qrels]:
    rng = np.random.default_rng(seed)
    qrels = {
        f"q{number}": {DOCS[d]: int(rng.integers(1, 3)) for d in rng.choice(40, 3, replace=False)}
        for number in range(queries)
    }
    return {query: query for query in qrels}, qrels


def test_an_open_stage_does_not_run() -> None:
    _, qrels = judged()
    a, b = Noisy("a", 1, qrels), Noisy("b", 1, qrels)
    for stage in (fitted(a, b), (fitted(a, b) % 5), a >> fitted(Judge(qrels, 1))):
        assert is_open(stage)
        with pytest.raises(ConfigError, match=r"is not fitted.*sluice run.*fit_on.*sluice fit"):
            stage.run({"q0": "q0"})


def test_fit_on_closes_everything_and_searches_each_part_once() -> None:
    queries, qrels = judged()
    a, b, c = Noisy("a", 0.9, qrels, 1), Noisy("b", 0.9, qrels, 2), Noisy("c", 0.9, qrels, 3)
    judge = Judge(qrels, 0.3)
    opened = (fitted(fitted(a, b), c) % 20) >> fitted(judge, depth=12)
    stage = fit_on(opened, queries, qrels)
    assert not is_open(stage)
    assert (a.asked, b.asked, c.asked) == (1, 1, 1)
    assert judge.pairs == 12 * len(queries)
    assert isinstance(stage, Then)
    assert isinstance(stage.second, Rerank)
    assert 0 < stage.second.depth <= 12
    values = {
        name: evaluate(part.run(queries), qrels, ["nDCG@10"]).mean["nDCG@10"]
        for name, part in {"all": stage, "first": stage.first, "a": a, "b": b, "c": c}.items()
    }
    assert values["all"] > values["first"] > max(values["a"], values["b"], values["c"])


def test_a_useless_part_is_left_out_and_one_part_stands_alone() -> None:
    queries, qrels = judged(100)
    good, noise = Noisy("good", 0.2, qrels, 1), Noisy("noise", 50, qrels, 2)
    stage = fit_on(fitted(good, noise), queries, qrels)
    assert stage is good
    third = Noisy("third", 0.8, qrels, 4)
    other = Noisy("other", 0.8, qrels, 5)
    fused = fit_on(fitted(third, noise, other), queries, qrels)
    assert isinstance(fused, Fuse)
    assert fused.stages == (third, other)


@pytest.mark.parametrize("measure", ["nDCG@10", "RR@10", "R@5", "AP", "P@3", "ERR@10"])
def test_the_values_of_a_reranker_are_those_of_running_it(measure: str) -> None:
    queries, qrels = judged(12)
    qrels["absent"] = {"d01": 1}
    first = Noisy("first", 1.0, qrels, 1).run(queries)
    first = Run({q: r[: 3 * place] for place, (q, r) in enumerate(first.items())})  # one empty
    judge = Judge(qrels, 0.5)
    scored = Rerank(judge, 20, documents=Texts()).run(queries, first.top(20))
    search = RerankSearch(first, scored, qrels, parse_measure(measure))
    for depth, share in [(0, 0.0), (1, 0.0), (5, 0.0), (5, 0.4), (20, 0.0), (20, 0.3), (20, 0.9)]:
        run = Rerank(judge, depth, interpolate=share, documents=Texts()).run(queries, first)
        expected = evaluate(run, qrels, [measure])
        found = search.values(depth, share)
        assert found.mean() == pytest.approx(expected.mean[measure], abs=1e-12)
        assert found.tolist() == pytest.approx(list(expected.per_query[measure].values()))


def test_a_reranker_is_fitted_only_where_queries_support_it(tmp_path: Path) -> None:
    queries, qrels = judged()
    first = Noisy("first", 0.5, qrels, 1).run(queries)
    good = Rerank(Judge(qrels, 0.1), 30, documents=Texts()).run(queries, first.top(30))
    wrong = {query: {d: -grade for d, grade in known.items()} for query, known in qrels.items()}
    bad = Rerank(Judge(wrong, 0.1), 30, documents=Texts()).run(queries, first.top(30))
    fit = fit_rerank(first, good, qrels, depth=30, name="cross")
    assert fit.depth > 10
    assert fit.value is not None
    assert fit.first is not None
    assert fit.value > fit.first
    assert fit.gain is not None
    assert fit.gain.low > 0
    assert fit.tried == 1 + 10 * 5
    assert fit.shown.startswith(f"cross(depth={fit.depth}")
    assert fit.why.startswith("chose cross(depth=")
    none = fit_rerank(first, bad, qrels, depth=30, name="cross")
    assert (none.depth, none.interpolate) == (0, 0.0)
    assert (
        none.value
        == none.first
        == pytest.approx(evaluate(first, qrels, ["nDCG@10"]).mean["nDCG@10"])
    )
    assert none.why.startswith("kept the first stage as it is, no cross, on 40 judged queries")
    fit.save(tmp_path / "fit.json")
    assert RerankFit.load(tmp_path / "fit.json") == fit


def test_supported_is_more_than_one_standard_error() -> None:
    values = [0.1, 0.3, -0.1, 0.2]
    mean = sum(values) / 4
    error = (sum((v - mean) ** 2 for v in values) / 3) ** 0.5 / 2
    assert supported(np.array(values)) == (mean > error)
    assert supported(np.array([0.1, 0.3, -0.1, 0.2]) - mean + 1.01 * error)
    assert not supported(np.array([0.1, 0.3, -0.1, 0.2]) - mean + 0.99 * error)
    assert not supported(np.zeros(5))
    assert not supported(np.array([1.0]))
    assert supported(np.full(3, 0.2))


def test_settings_begin_with_the_first_stage() -> None:
    assert settings_up_to(12)[0] == (0, 0.0)
    assert sorted({depth for depth, _ in settings_up_to(12)}) == [0, 5, 10, 12]
    assert sorted({depth for depth, _ in settings_up_to(12, steps=False)}) == [0, 12]
    assert len(settings_up_to(12)) == 1 + 3 * 10


def test_a_list_scorer_is_tried_at_its_depth_only() -> None:
    queries, qrels = judged()

    class Lists:
        name = "lists"

        def score_lists(
            self, queries: Queries, heads: Any, documents: Any
        ) -> dict[str, list[float]]:
            return {q: [qrels[q].get(d, 0.0) for d in head.doc_ids] for q, head in heads.items()}

    stage = fit_on((Noisy("first", 0.8, qrels, 1) >> fitted(Lists(), depth=15)), queries, qrels)
    assert isinstance(stage, Then)
    assert isinstance(stage.second, Rerank)
    assert stage.second.depth == 15


def test_few_or_no_judgements_give_the_choice_for_all() -> None:
    queries, qrels = judged(4)
    a, b = Noisy("a", 0.9, qrels, 1), Noisy("b", 0.9, qrels, 2)
    judge = Judge(qrels, 0.1)
    for given in (qrels, {}):
        stage = fit_on((fitted(a, b) >> fitted(judge)), queries, given)
        assert isinstance(stage, Fuse)  # the reranker is left out
        assert stage.fusion.normalise == "steep"
        assert stage.fusion.weights == (0.5, 0.5)
    assert judge.pairs == a.asked == 0


def test_queries_are_bounded() -> None:
    queries, qrels = judged(60)
    judge = Judge(qrels, 0.3)
    first = Noisy("first", 0.9, qrels, 1)
    fitter = QueryFitter(queries, qrels)
    stage = fitted(judge, depth=5, queries=10).attached(Texts())
    fit = fitter.choose(stage, first)
    assert fit.queries == 10
    assert judge.pairs == 50
    assert QueryFitter(queries, qrels).choose(stage, first) == fit  # the same queries


def test_only_relevant_grades_count_as_judged() -> None:
    queries, qrels = judged(10)
    a, b = Noisy("a", 0.9, qrels, 1), Noisy("b", 0.9, qrels, 2)
    fit = QueryFitter(queries, qrels, level=3).choose(_fusion(a, b), None)
    assert not fit.judged
    assert QueryFitter(queries, qrels, level=1).choose(_fusion(a, b), None).queries == 10


def _fusion(*stages: Stage) -> Unfitted:
    return fitted(*stages)


def test_the_depth_of_a_fusion_cuts_its_parts() -> None:
    queries, qrels = judged()
    a, b = Noisy("a", 0.9, qrels, 1), Noisy("b", 0.9, qrels, 2)
    stage = fit_on(fitted(a, b, depth=7), queries, qrels)
    assert isinstance(stage, Fuse)
    assert [part.name for part in stage.stages] == ["a % 7", "b % 7"]


def test_expressions() -> None:
    queries, qrels = judged()
    names = {
        "a": lambda: Noisy("a", 0.9, qrels, 1),
        "b": lambda: Noisy("b", 0.9, qrels, 2),
        "cross": lambda: Judge(qrels, 0.2),
    }
    opened = parse("fitted(a, b, depth=30) % 20 >> fitted(cross, depth=10)", names)
    assert opened.name == "(fitted(a, b)) % 20 >> fitted(cross)"
    stage = fit_on(opened, queries, qrels)
    assert isinstance(stage, Then)
    assert stage.second.name.startswith("cross(depth=")
    assert depths_in("a >> fitted(cross)", "cross", 100) == [50]
    assert depths_in("a >> fitted(cross, depth=7)", "cross", 100) == [7]
    assert depths_in("a >> cross(depth=3)", "cross", 100) == [3]
    assert depths_in("fitted(a, b) >> cross()", "cross", 100) == [100]


def test_a_fitted_file_of_a_reranker_in_an_expression(tmp_path: Path) -> None:
    queries, qrels = judged()
    first = Noisy("a", 0.8, qrels, 1)
    judge = Judge(qrels, 0.2)
    names = {"a": lambda: first, "cross": lambda: judge}
    fitter = QueryFitter(queries, qrels)
    open_stage = UnfittedRerank(judge, depth=20, documents=Texts())
    fit = fitter.choose(open_stage, first)
    path = tmp_path / "cross.json"
    fit.save(path)
    stage = parse(f"a >> cross(fitted='{path}')", names)
    expected = (first >> closed(open_stage, fit)).run(queries)
    assert dict(stage.run(queries)) == dict(expected)
    assert stage.name.startswith("a >> cross(depth=")
    for text, message in [
        (f"a >> cross(fitted='{path}', depth=3)", "fitted and depth: both give it"),
        ("a >> cross(fitted='nowhere.json')", "no such file; .sluice fit rerank"),
        ("a >> cross(fitted=3)", "fitted"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(text, names)
    for damage in ('{"depth": -1', '"depth": 1, "interpolate": 3', '"measure": "AP"'):
        text = '{"format": "sluice.rerank", "version": 1, ' + damage.lstrip("{") + "}"
        path.write_text(text)
        with pytest.raises(ConfigError, match="not the file of a fitted reranker"):
            RerankFit.load(path)
    with pytest.raises(ConfigError, match="settings of another kind"):
        closed(fitted(first, Noisy("b", 1, qrels)), fit)


def test_what_cannot_be_fitted() -> None:
    queries, qrels = judged()
    with pytest.raises(DataError, match="no query of the runs has judgements"):
        fit_rerank(Run({}), Run({}), qrels)
    with pytest.raises(ConfigError, match="unknown measure"):
        fit_rerank(Run({}), Run({}), qrels, "nDGC@10")
    with pytest.raises(ConfigError, match="a reranker needs candidates"):
        fit_on(fitted(Judge(qrels, 1)), queries, qrels)
    with pytest.raises(ConfigError, match="expected a scorer"):
        fitted(3)


def test_fewer_queries_than_a_fit_needs_are_refused() -> None:
    with pytest.raises(ConfigError, match="queries is 4, expected a whole number, 5 or more"):
        fitted(lambda pairs: [0.0] * len(pairs), queries=4)
