import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.adaptive_depth import (
    CumulativeScore,
    PredictedDepth,
    cut_off,
    depth_report,
    fit_cut_off,
    ridge,
)

SCORES = st.lists(st.floats(-5, 5, width=32), max_size=12)


def ranking(scores: list[float]) -> Ranking:
    return Ranking([f"d{place}" for place in range(len(scores))], sorted(scores, reverse=True))


def judged_run(queries: int, seed: int, *, docs: int = 40) -> tuple[Run, dict[str, dict[str, int]]]:
    """Rankings whose first relevant rank is what their scores' steepness says, roughly."""
    rng = np.random.default_rng(seed)
    rankings, qrels = {}, {}
    for number in range(queries):
        scale = float(rng.uniform(1, 12))
        scores = np.exp(-np.arange(docs) / scale) + rng.normal(0, 0.004, docs)
        rank = int(np.clip(round(2 * scale + rng.normal(0, 1)), 1, docs))
        rankings[f"q{number}"] = ranking(scores.tolist())
        qrels[f"q{number}"] = {f"d{rank - 1}": 1}
    return Run(rankings), qrels


class Fixed(Stage):
    """Returns one run."""

    name = "fixed"

    def __init__(self, found: Run) -> None:
        self.found = found

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({query: self.found[query] for query in queries})


class Reverse:
    """Scores a list by its places: the last is best."""

    def score_lists(self, queries: object, heads: dict[str, Ranking], documents: object) -> object:
        return {query: np.arange(len(head)) for query, head in heads.items()}


class TestShareOfTheScores:
    @settings(derandomize=True, max_examples=50, deadline=None)
    @given(SCORES, st.floats(0.01, 0.99))
    def test_is_the_smallest_depth_that_reaches_it(self, scores: list[float], share: float) -> None:
        given_ranking = ranking(scores)
        depth = CumulativeScore(share).depth(given_ranking)
        values = given_ranking.scores.astype(np.float64)
        values = values - values.min() if len(values) else values
        if len(values) == 0:
            assert depth == 0
        elif values.sum() > 1e-3:
            parts = np.cumsum(values) / values.sum()
            assert parts[depth - 1] >= share - 1e-6
            assert depth == 1 or parts[depth - 2] < share + 1e-6

    @settings(derandomize=True, max_examples=50, deadline=None)
    @given(SCORES)
    def test_of_one_keeps_everything(self, scores: list[float]) -> None:
        assert CumulativeScore(1.0).depth(ranking(scores)) == len(scores)

    def test_grows_with_the_share_and_ignores_unit_and_zero(self) -> None:
        scores = [9.0, 5.0, 4.5, 1.0, 0.5, 0.25, 0.0]
        depths = [CumulativeScore(s).depth(ranking(scores)) for s in (0.1, 0.5, 0.8, 0.95, 1.0)]
        assert depths == [1, 2, 3, 4, 7]
        moved = ranking([4 * score - 100 for score in scores])
        assert [CumulativeScore(s).depth(moved) for s in (0.1, 0.5, 0.8, 0.95, 1.0)] == depths

    def test_equal_scores_count_the_same(self) -> None:
        assert CumulativeScore(0.9).depth(ranking([2.0] * 10)) == 9
        assert CumulativeScore(0.5).depth(ranking([-1.0])) == 1
        assert CumulativeScore(0.5).depth(ranking([])) == 0

    @pytest.mark.parametrize("share", [0, -0.5, 1.01, True, float("nan")])
    def test_shares_that_are_none(self, share: float) -> None:
        with pytest.raises(ConfigError, match="cut_off"):
            CumulativeScore(share)


class TestRidge:
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        return rng.random((30, 5)), rng.integers(1, 9, 30).astype(float)

    def test_equals_sklearns(self) -> None:
        linear_model = pytest.importorskip("sklearn.linear_model")
        features, targets = self.table()
        for alpha in (0.01, 1.0, 30.0):
            weights, intercept = ridge(features, targets, alpha)
            reference = linear_model.Ridge(alpha=alpha).fit(features, targets)
            np.testing.assert_allclose(weights, reference.coef_, rtol=1e-10, atol=1e-12)
            assert intercept == pytest.approx(reference.intercept_, rel=1e-10)

    def test_equals_the_equations_written_out(self) -> None:
        features, targets = self.table()
        weights, intercept = ridge(features, targets, 1.0)
        centred, wanted = features - features.mean(0), targets - targets.mean()
        direct = np.linalg.inv(centred.T @ centred + np.eye(5)) @ centred.T @ wanted
        np.testing.assert_allclose(weights, direct, atol=1e-10)
        # The intercept is a column that is not penalised.
        wide = np.hstack([features, np.ones((30, 1))])
        penalty = np.diag([1.0] * 5 + [0.0])
        whole = np.linalg.solve(wide.T @ wide + penalty, wide.T @ targets)
        np.testing.assert_allclose([*weights, intercept], whole, atol=1e-10)


class TestPrediction:
    def test_is_the_fitted_line_rounded_clipped_and_one_more(self) -> None:
        run, qrels = judged_run(60, 2)
        rule = fit_cut_off(run, qrels, n=10, alpha=0.5)
        rows, targets = [], []
        for query, found in run.items():
            head = found.scores[:10].astype(float) - float(found.scores[9])
            rows.append(head / head.sum())
            (name,) = qrels[query]
            targets.append(min(int(name[1:]) + 1, 10))
        weights, intercept = ridge(rows, targets, 0.5)
        expected = np.clip(np.rint(np.array(rows) @ weights + intercept), min(targets), 10) + 1
        assert [rule.depth(found) for found in run.values()] == expected.tolist()
        assert (rule.least, rule.most) == (min(targets), max(targets))

    def test_beats_the_best_static_depth_on_held_out_queries(self) -> None:
        train, train_qrels = judged_run(400, 3)
        test, test_qrels = judged_run(300, 4)
        rule = fit_cut_off(train, train_qrels, n=25, alpha=0.01, success=0.9)
        found = depth_report(rule, test, test_qrels)
        static = next(
            depth for depth in range(1, 41)
            if depth_report(depth, test, test_qrels).success >= found.success
        )  # fmt: skip
        assert found.mean_depth < 0.85 * static

    def test_success_is_reached_on_the_training_queries(self) -> None:
        run, qrels = judged_run(200, 5)
        for success in (0.5, 0.8, 1.0):
            rule = fit_cut_off(run, qrels, n=40, success=success)
            assert depth_report(rule, run, qrels).success >= success

    def test_no_relevant_hit_counts_as_n(self) -> None:
        run = Run({"a": ranking([3, 2, 1]), "b": ranking([3, 2, 1])})
        rule = fit_cut_off(run, {"a": {"elsewhere": 1}, "b": {"d2": 1}}, n=2)
        assert rule.depth(run["a"]) == 3
        assert (rule.least, rule.most) == (2, 2)

    def test_short_and_empty_rankings(self) -> None:
        run, qrels = judged_run(30, 6)
        rule = fit_cut_off(run, qrels, n=25)
        assert rule.depth(Ranking([], [])) == 0
        assert 1 <= rule.depth(ranking([1.0])) <= 26
        assert 1 <= rule.depth(ranking([1.0] * 30)) <= 26

    def test_queries_that_teach_nothing_are_left_out(self) -> None:
        run, qrels = judged_run(30, 7)
        plain = fit_cut_off(run, qrels)
        more = Run({**dict(run), "empty": Ranking([], []), "unjudged": ranking([2, 1])})
        judged = {**qrels, "empty": {"d0": 1}, "missing": {"d0": 1}, "none": {"d0": 0}}
        assert fit_cut_off(more, judged) == plain
        with pytest.raises(DataError, match="no query of the run"):
            fit_cut_off(run, {"missing": {"d0": 1}})

    def test_sums_need_scores_from_zero(self) -> None:
        run = Run({"a": ranking([2.0, 1.0, 1.0])})
        assert fit_cut_off(run, {"a": {"d0": 1}}, n=3, normalise="sum").depth(run["a"]) == 2
        with pytest.raises(DataError, match="normalise='shift'"):
            fit_cut_off(Run({"a": ranking([1.0, -1.0])}), {"a": {"d0": 1}}, normalise="sum")

    @pytest.mark.parametrize(
        "options",
        [
            {"n": 0},
            {"alpha": 0},
            {"extra": -1},
            {"success": 1.5},
            {"normalise": "sums"},
            {"level": 0},
        ],
    )
    def test_bad_settings(self, options: dict[str, object]) -> None:
        run, qrels = judged_run(5, 8)
        with pytest.raises(ConfigError, match=next(iter(options))):
            fit_cut_off(run, qrels, **options)  # type: ignore[arg-type]


class TestReport:
    def test_static_depths(self) -> None:
        run = Run({"a": ranking([3, 2, 1]), "b": ranking([3])})
        qrels = {"a": {"d1": 1}, "b": {"d0": 2}, "missing": {"d0": 1}, "none": {"d0": 0}}
        assert depth_report(2, run, qrels) == (1.0, 2 / 3, 3)
        assert depth_report(0, run, qrels) == (0.0, 0.0, 3)
        with pytest.raises(DataError, match="no relevant document"):
            depth_report(2, run, {"a": {"d1": 0}})


class TestFile:
    def test_comes_back_as_it_was(self, tmp_path: Path) -> None:
        run, qrels = judged_run(40, 9)
        rule = fit_cut_off(run, qrels)
        rule.save(tmp_path / "cut.json")
        assert PredictedDepth.load(tmp_path / "cut.json") == rule
        assert cut_off(str(tmp_path / "cut.json")) == rule
        assert cut_off(0.5) == CumulativeScore(0.5)

    def test_missing_and_damaged_files(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.json"
        with pytest.raises(ConfigError, match="no such file; sluice fit"):
            cut_off(str(path))
        path.write_text("{")
        with pytest.raises(ConfigError, match="not readable as JSON"):
            cut_off(str(path))
        path.write_text('{"format": "sluice.exit", "version": 1}')
        with pytest.raises(ConfigError, match=r"holds 'sluice.exit', expected 'sluice.cut_off'"):
            cut_off(str(path))
        path.write_text('{"format": "sluice.cut_off", "version": 2}')
        with pytest.raises(ConfigError, match="in format 2"):
            cut_off(str(path))

    @pytest.mark.parametrize(
        "change", [{"weights": []}, {"weights": ["1"]}, {"least": -1}, {"normalise": "x"}]
    )
    def test_values_that_make_no_rule(self, tmp_path: Path, change: dict[str, object]) -> None:
        run, qrels = judged_run(10, 10)
        path = tmp_path / "cut.json"
        fit_cut_off(run, qrels).save(path)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(ConfigError, match="not the file of a fitted cut-off"):
            cut_off(str(path))


class TestPipeline:
    def test_the_reranker_touches_the_depth_only(self, tmp_path: Path) -> None:
        run, qrels = judged_run(20, 11)
        rule = fit_cut_off(run, qrels)
        rule.save(tmp_path / "cut.json")
        names = {"fixed": lambda: Fixed(run), "back": Reverse}
        queries = dict.fromkeys(run, "text")
        text = f"fixed >> back(depth=20, cut_off='{tmp_path / 'cut.json'}')"
        for query, found in parse(text, names).run(queries).items():
            depth = min(20, rule.depth(run[query]))
            before = list(run[query].doc_ids)
            assert list(found.doc_ids) == before[:depth][::-1] + before[depth:]

    def test_a_share_of_one_is_the_reranker_itself(self) -> None:
        run, _ = judged_run(5, 12)
        queries = dict.fromkeys(run, "text")
        names = {"fixed": lambda: Fixed(run), "back": Reverse}
        plain = parse("fixed >> back(depth=30)", names).run(queries)
        assert dict(parse("fixed >> back(depth=30, cut_off=1)", names).run(queries)) == dict(plain)

    def test_a_missing_file_is_said_before_any_work(self) -> None:
        with pytest.raises(ConfigError, match=r"no-such\.json: no such file"):
            parse("back(cut_off='no-such.json')", {"back": Reverse})
        with pytest.raises(ConfigError, match=r"cut_off: 1\.5"):
            parse("back(cut_off=1.5)", {"back": Reverse})

    def test_rules_from_python(self) -> None:
        run, _ = judged_run(3, 13)
        stage = Rerank(Reverse(), 50, rules=[CumulativeScore(0.3)])
        found = stage.run(dict.fromkeys(run, ""), run)
        depth = CumulativeScore(0.3).depth(run["q0"])
        assert found["q0"].doc_ids[0] == f"d{depth - 1}"


@pytest.mark.parametrize(
    "changed",
    [{"intercept": 10**400}, {"weights": [10**400]}, {"least": 9, "most": 1}, {"weights": None}],
)
def test_fitted_files_with_numbers_that_are_none_are_refused(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    file = tmp_path / "cut.json"
    PredictedDepth((1.0,), 0.0, 1, 5).save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(ConfigError, match="not the file of a fitted cut-off"):
        cut_off(str(file))
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="not readable as JSON"):
        cut_off(str(file))


def test_a_line_beyond_all_depths_is_clipped() -> None:
    head = Ranking(["a", "b"], [2.0, 1.0])
    assert PredictedDepth((1e308,), 1e308, 1, 5).depth(head) == 6
    assert PredictedDepth((-1e308,), -1e308, 1, 5).depth(head) == 2
