from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.confidence_exit import ConfidenceExit, exit_rule, fit_exit

Judged = tuple[Run, Run, dict[str, dict[str, int]]]


def cascade(queries: int, seed: int) -> Judged:
    """A first stage whose large margins are mostly right, and a reranker that mostly helps."""
    rng = np.random.default_rng(seed)
    before, after, qrels = {}, {}, {}
    for number in range(queries):
        margin = float(rng.uniform(0, 1))
        scores = [1.0, 1.0 - margin * 0.9, *np.sort(rng.uniform(0, 1 - margin, 8) * 0.1)[::-1]]
        names = [f"d{place}" for place in range(10)]
        rank = 0 if rng.random() < margin else int(rng.integers(1, 10))
        better = 0 if rng.random() < 0.8 else int(rng.integers(0, 10))
        moved = [name for name in names if name != f"d{rank}"]
        moved.insert(better, f"d{rank}")
        before[f"q{number}"] = Ranking(names, scores)
        after[f"q{number}"] = Ranking(moved, np.arange(10, 0, -1))
        qrels[f"q{number}"] = {f"d{rank}": 1}
    return Run(before), Run(after), qrels


def with_exit(rule: ConfidenceExit, before: Run, after: Run) -> Run:
    return Run({q: after[q] if rule.depth(before[q]) else before[q] for q in before})


class TestConfidence:
    def test_margin_is_a_share_of_the_spread(self) -> None:
        rule = ConfidenceExit(0.5)
        assert rule.confidence(Ranking(["a", "b", "c"], [4, 3, 0])) == 0.25
        assert rule.confidence(Ranking(["a", "b", "c"], [-40, -70, -160])) == 0.25
        assert rule.confidence(Ranking(["a", "b"], [2, 1])) == 1.0
        assert rule.confidence(Ranking(["a", "b"], [1, 1])) == 0.0
        assert rule.confidence(Ranking(["a", "b"], [1, 2])) == 0.0  # the order is data

    def test_softmax_of_the_first(self) -> None:
        rule = ConfidenceExit(0.5, "softmax")
        scores = np.array([2.0, 1.0, 0.0])
        expected = float(np.exp(2) / np.exp(scores).sum())
        assert rule.confidence(Ranking(["a", "b", "c"], scores)) == pytest.approx(expected)
        assert rule.confidence(Ranking(["a", "b"], [3e38, -3e38])) == 1.0
        assert rule.confidence(Ranking(["a", "b"], [5, 5])) == 0.5

    def test_looks_at_the_first_only(self) -> None:
        long = Ranking([str(n) for n in range(50)], np.linspace(1, 0, 50))
        for kind in ("margin", "softmax"):
            rule = ConfidenceExit(0.5, kind, 5)
            assert rule.confidence(long) == rule.confidence(long[:5])
            assert rule.confidence(long) != rule.confidence(long[:4])

    def test_depth_is_all_or_nothing(self) -> None:
        ranking = Ranking(["a", "b", "c"], [4, 3, 0])
        assert ConfidenceExit(0.25).depth(ranking) == 0
        assert ConfidenceExit(0.26).depth(ranking) == 3
        assert ConfidenceExit(1).depth(Ranking(["a"], [1])) == 0
        assert ConfidenceExit(0.5).depth(Ranking([], [])) == 0

    @pytest.mark.parametrize("threshold", [-0.1, 2.1, True, float("nan"), "x"])
    def test_thresholds_that_are_none(self, threshold: float) -> None:
        with pytest.raises(ConfigError, match="exit"):
            ConfidenceExit(threshold)

    def test_kinds_and_widths_that_are_none(self) -> None:
        with pytest.raises(ConfigError, match="did you mean 'margin'"):
            ConfidenceExit(0.5, "margins")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="width"):
            ConfidenceExit(0.5, "margin", 1)


class TestCalibration:
    @pytest.mark.parametrize("kind", ["margin", "softmax"])
    def test_epsilon_0_runs_the_full_cascade(self, kind: str) -> None:
        before, after, qrels = cascade(80, 1)
        found = fit_exit(before, after, qrels, epsilon=0, kind=kind)  # type: ignore[arg-type]
        assert (found.exited, found.loss) == (0.0, 0.0)
        run = with_exit(found.rule, before, after)
        assert dict(run) == dict(after)
        full = evaluate(after, qrels, ["nDCG@10"]).mean["nDCG@10"]
        assert found.value == found.full == pytest.approx(full)

    @pytest.mark.thorough
    @pytest.mark.parametrize("kind", ["margin", "softmax"])
    @pytest.mark.parametrize("bound", ["dev", "expected", "hoeffding"])
    def test_loss_within_epsilon_and_cost_falls_with_it(self, kind: str, bound: str) -> None:
        before, after, qrels = cascade(300, 2)
        saved = []
        for epsilon in (0.0, 1e-9, 0.002, 0.01, 0.05, 0.2, 1.0):
            found = fit_exit(
                before, after, qrels, epsilon=epsilon, kind=kind, bound=bound,  # type: ignore[arg-type]
            )  # fmt: skip
            run = with_exit(found.rule, before, after)
            values = evaluate(run, qrels, ["nDCG@10"])
            full = evaluate(after, qrels, ["nDCG@10"])
            lost = [
                max(0.0, full.per_query["nDCG@10"][query] - value)
                for query, value in values.per_query["nDCG@10"].items()
            ]
            assert found.loss == pytest.approx(float(np.mean(lost)))
            assert found.loss <= epsilon
            assert values.mean["nDCG@10"] == pytest.approx(found.value)
            assert found.full - found.value <= epsilon + 1e-12
            exits = [found.rule.depth(before[query]) == 0 for query in before]
            assert found.exited == np.mean(exits)
            saved.append(found.exited)
        assert saved == sorted(saved)
        assert saved[-1] == (1.0 if bound != "hoeffding" else saved[-1])

    def test_saves_the_most_that_epsilon_allows(self) -> None:
        before, after, qrels = cascade(60, 3)
        found = fit_exit(before, after, qrels, epsilon=0.02)
        full = evaluate(after, qrels, ["nDCG@10"]).per_query["nDCG@10"]
        first = evaluate(before, qrels, ["nDCG@10"]).per_query["nDCG@10"]
        for threshold in {ConfidenceExit(1).confidence(r) for r in before.values()}:
            rule = ConfidenceExit(threshold)
            out = [query for query in before if rule.depth(before[query]) == 0]
            loss = sum(max(0.0, full[query] - first[query]) for query in out) / 60
            assert loss > 0.02 or len(out) / 60 <= found.exited

    def test_bounds_are_the_formulas(self) -> None:
        before, after, qrels = cascade(100, 4)
        found = fit_exit(before, after, qrels, epsilon=0.05, bound="expected")
        assert (100 * found.loss + 1) / 101 <= 0.05
        assert fit_exit(before, after, qrels, epsilon=0.009, bound="expected").exited == 0
        found = fit_exit(before, after, qrels, epsilon=0.15, bound="hoeffding", delta=0.1)
        assert 0 < found.exited < 1
        assert found.loss + np.sqrt(np.log(10) / 200) <= 0.15

    def test_expected_loss_of_new_queries(self) -> None:
        epsilon, losses = 0.02, []
        for seed in range(40):
            before, after, qrels = cascade(120, 100 + seed)
            new = cascade(120, 500 + seed)
            rule = fit_exit(before, after, qrels, epsilon=epsilon, bound="expected").rule
            full = evaluate(new[1], new[2], ["nDCG@10"]).per_query["nDCG@10"]
            got = evaluate(with_exit(rule, *new[:2]), new[2], ["nDCG@10"]).per_query["nDCG@10"]
            losses.append(np.mean([max(0.0, full[query] - got[query]) for query in full]))
        error = np.std(losses, ddof=1) / np.sqrt(len(losses))
        assert np.mean(losses) <= epsilon + 2 * error

    def test_queries_of_equal_confidence_exit_together(self) -> None:
        same = {f"q{n}": Ranking(["a", "b"], [2, 1]) for n in range(4)}
        after = {**same, "q3": Ranking(["b", "a"], [2, 1])}
        qrels = {**{q: {"a": 1} for q in same}, "q3": {"b": 1}}
        assert fit_exit(Run(same), Run(after), qrels, epsilon=0.01).exited == 0
        assert fit_exit(Run(same), Run(after), qrels, epsilon=0.5).exited == 1

    def test_gains_pay_for_no_loss(self) -> None:
        before = Run({"up": Ranking(["a", "b", "c"], [3, 1, 0]),
                      "down": Ranking(["b", "a", "c"], [3, 2, 0])})  # fmt: skip
        after = Run({"up": Ranking(["b", "a", "c"], [3, 1, 0]),
                     "down": Ranking(["a", "b", "c"], [3, 2, 0])})  # fmt: skip
        qrels = {"up": {"a": 1}, "down": {"a": 1}}
        found = fit_exit(before, after, qrels, epsilon=0.01)
        assert (found.exited, found.loss) == (0.5, 0.0)
        assert found.value > found.full

    def test_queries_that_a_run_misses(self) -> None:
        before, after, qrels = cascade(20, 5)
        found = fit_exit(before, after, {**qrels, "none": {"d0": 1}}, epsilon=0.01)
        assert found.queries == 21
        with pytest.raises(DataError, match="no query"):
            fit_exit(before, after, {"none": {"d0": 1}})

    @pytest.mark.parametrize(
        "options",
        [{"epsilon": -0.1}, {"epsilon": 2}, {"bound": "test"}, {"bound": "hoeffding", "delta": 0}],
    )
    def test_bad_settings(self, options: dict[str, object]) -> None:
        before, after, qrels = cascade(5, 6)
        with pytest.raises(ConfigError, match=r"epsilon|bound|delta"):
            fit_exit(before, after, qrels, **options)  # type: ignore[arg-type]


class Fixed(Stage):
    """Returns one run."""

    name = "fixed"

    def __init__(self, found: Run) -> None:
        self.found = found

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({query: self.found[query] for query in queries})


class Last:
    """Puts the last candidate first."""

    def score_lists(self, queries: object, heads: dict[str, Ranking], documents: object) -> object:
        return {query: np.arange(len(head)) for query, head in heads.items()}


class TestPipeline:
    @pytest.mark.parametrize("kind", ["margin", "softmax"])
    def test_a_saved_exit_runs(self, tmp_path: Path, kind: str) -> None:
        before, after, qrels = cascade(50, 7)
        found = fit_exit(before, after, qrels, epsilon=0.05, kind=kind, width=6)  # type: ignore[arg-type]
        path = tmp_path / "exit.json"
        found.save(path)
        assert exit_rule(str(path)) == found.rule
        names = {"fixed": lambda: Fixed(before), "last": Last}
        run = parse(f"fixed >> last(exit='{path}')", names).run(dict.fromkeys(before, ""))
        left = [query for query in before if run[query] == before[query]]
        assert len(left) / 50 == found.exited

    def test_a_threshold_is_a_margin(self) -> None:
        run = Run({"sure": Ranking(["a", "b", "c"], [9, 1, 0]),
                   "open": Ranking(["a", "b", "c"], [9, 8, 0])})  # fmt: skip
        names = {"fixed": lambda: Fixed(run), "last": Last}
        found = parse("fixed >> last(exit=0.5)", names).run(dict.fromkeys(run, ""))
        assert list(found["sure"].doc_ids) == ["a", "b", "c"]
        assert list(found["open"].doc_ids) == ["c", "b", "a"]
        both = parse("fixed >> last(exit=0.5, cut_off=0.1)", names).run(dict.fromkeys(run, ""))
        assert list(both["open"].doc_ids) == ["a", "b", "c"]

    def test_bad_values(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="exit: 3"):
            parse("last(exit=3)", {"last": Last})
        path = tmp_path / "exit.json"
        path.write_text('{"format": "sluice.exit", "version": 1, "threshold": 5}')
        with pytest.raises(ConfigError, match="not the file of a fitted exit"):
            parse(f"last(exit='{path}')", {"last": Last})
