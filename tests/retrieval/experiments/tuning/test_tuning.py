"""The tuner: its space, its memory against the plain stages, its costs, its choice, its files."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import WordEncoder, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Rerank, Retriever, Run, evaluate, load_dataset
from sluice.retrieval.config.sections import BudgetSection, TuneSection
from sluice.retrieval.experiments.tuning.costs import (
    CostModel,
    PairCost,
    Recalled,
    Remembered,
    Spent,
    fitted_line,
)
from sluice.retrieval.experiments.tuning.tuner import (
    DEPTHS,
    Trial,
    Tuner,
    cascades,
    chosen_of,
    expanded,
    first_stages,
    front_of,
    tuned,
)
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache


class Overlap:
    """Scores a pair by the words it shares; counts what it was asked."""

    fingerprint = "overlap"

    def __init__(self) -> None:
        self.asked = 0

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        self.asked += len(pairs)
        return [
            float(len(set(q.split()) & set(d.split()))) / (1 + len(d.split())) for q, d in pairs
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    dataset = load_dataset(str(write_beir(tmp_path_factory.mktemp("tuning"))), "test")
    one = Retriever.build(BM25Encoder(), dataset.corpus, name="one")
    other = Retriever.build(BM25Encoder(k1=2.0, b=0.0), dataset.corpus, name="other")
    return dataset, one, other


def tuner_of(world: Any, scorer: Any = None, **settings: Any) -> Tuner:
    dataset, one, other = world
    names = {"one": lambda: one, "other": lambda: other, "cross": lambda: scorer or Overlap()}
    section = TuneSection(**{"timed_queries": 3, **settings})
    return Tuner(names, dataset.queries, dataset.qrels, section)


class TestSpace:
    def test_every_choice_is_put_in_once_in_order(self) -> None:
        found = expanded(["a % {k}", "b", "a % {k} >> c(depth={d})"], {"k": [5, 9], "d": [1]})
        assert found == ["a % 5", "a % 9", "b", "a % 5 >> c(depth=1)", "a % 9 >> c(depth=1)"]
        assert expanded(["a", "a"], {}) == ["a"]

    @pytest.mark.parametrize(
        ("templates", "choices", "message"),
        [
            (["a % {depht}"], {"depth": [1]}, "depht.*did you mean 'depth'"),
            (["a"], {"depth": [1]}, "no pipeline contains"),
            (["a % {k}"], {"k": []}, "empty list"),
        ],
    )
    def test_what_does_not_fit_is_said(
        self, templates: list[str], choices: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            expanded(templates, choices)

    def test_the_usual_space_can_be_parsed(self, world: Any) -> None:
        _, one, other = world
        firsts = first_stages(["one", "other"])
        assert firsts[:3] == ["one", "other", "(one | other)"]
        names = {"one": lambda: one, "other": lambda: other, "x": Overlap, "y": Overlap}
        for text in [*firsts, *cascades("(one | other)", ["x", "y"])]:
            parse(text, names)
        two = [text for text in cascades("one", ["x", "y"]) if "x(" in text and "y(" in text]
        assert two
        assert all(int(t.split("depth=")[1].split(")")[0]) > 5 for t in two)
        assert first_stages(["one"]) == ["one"]
        assert len(cascades("one", ["x"])) == 4 * len(DEPTHS)


class TestMemory:
    @pytest.mark.parametrize(
        "pipeline",
        [
            "one",
            "one % 3",
            "(one | other) % 4 >> cross(depth=3)",
            "weighted(one, other, weights=[0.3, 0.7]) % 5 >> cross(depth=4, interpolate=0.5)",
            "one % 5 >> cross(depth=4) % 3 >> cross(depth=2, interpolate=0.25, exit=0.4)",
            "one | other | one % 2",
        ],
    )
    def test_a_remembered_pipeline_finds_what_the_plain_one_does(
        self, world: Any, pipeline: str
    ) -> None:
        dataset, one, other = world
        scorer = Overlap()
        names = {"one": lambda: one, "other": lambda: other, "cross": lambda: scorer}
        plain = parse(pipeline, names).run(dataset.queries)
        tuner = tuner_of(world, scorer)
        for _ in range(2):
            found = tuner.run(pipeline)
            assert {q: list(r) for q, r in found.items()} == {q: list(r) for q, r in plain.items()}

    @pytest.mark.parametrize(
        "pipeline",
        [
            "prf(dense, k=2)",
            "one % 3 >> rm3(one, documents=2)",
            "weighted(one, (one | dense) >> prf(dense))",
            "normalised(dense, bank='{bank}', mode='static') % 4",
            "one % 5 >> dot(dense, depth=3)",
            "one % 5 >> passages(cross, length=3, overlap=1, depth=4)",
            "one % 5 >> cached(cross, file='{cache}', depth=4)",
            "one % 5 >> summarised(cross, one, words=4, depth=4)",
            "one % 5 >> (cross(depth=4) >> cross(depth=2))",
            "other % 3 >> (cross(depth=4) >> cross(depth=2))",
        ],
    )
    def test_calls_that_look_into_their_parts_find_them(
        self, world: Any, tmp_path: Path, pipeline: str
    ) -> None:
        dataset, one, other = world
        dense = Retriever.build(WordEncoder(), dataset.corpus, name="dense")
        (tmp_path / "bank.txt").write_text("gold river\nstone water\n")
        text = pipeline.format(bank=tmp_path / "bank.txt", cache=tmp_path / "scores.sqlite")
        names = {"one": one, "other": other, "dense": dense, "cross": Overlap()}
        opened = {name: (lambda part=part: part) for name, part in names.items()}
        plain = parse(text, opened).run(dataset.queries)
        section = TuneSection(timed_queries=3)
        tuner = Tuner(opened, dataset.queries, dataset.qrels, section)
        found = [tuner.run(text) for _ in range(2)]
        wanted = {q: list(r) for q, r in plain.items()}
        assert [{q: list(r) for q, r in run.items()} for run in found] == [wanted, wanted]
        assert tuner.measured(text).p50_ms > 0

    def test_what_a_stage_finds_behind_other_lists_is_its_own(self, world: Any) -> None:
        _, one, other = world
        names = {"one": lambda: one, "other": lambda: other, "cross": Overlap}
        tuner = tuner_of(world)
        for first in ("one % 1", "other % 3"):
            text = f"{first} >> (rm3(one, documents=3) >> cross(depth=2))"
            plain, found = parse(text, names).run(tuner.queries), tuner.run(text)
            assert {q: list(r) for q, r in found.items()} == {q: list(r) for q, r in plain.items()}

    def test_queries_of_the_corpus_do_not_find_themselves(self, world: Any) -> None:
        _, one, _ = world
        queries = SelfExcluding({"d00": "gold river", "d01": "word1 stone"})
        qrels = {"d00": {"d10": 1}, "d01": {"d11": 1}}
        names = {"one": lambda: one, "cross": Overlap}
        tuner = Tuner(names, queries, qrels, TuneSection(timed_queries=3))
        for text in ("one", "one % 2 >> cross(depth=2)", "one % 3 >> rm3(one)"):
            assert all(query not in ranking.doc_ids for query, ranking in tuner.run(text).items())

    def test_a_pair_is_scored_once(self, world: Any) -> None:
        dataset, one, _ = world
        scorer = Overlap()
        kept = Remembered(scorer, "cross")
        for depth in (4, 2, 4, 0):
            (one % 5 >> Rerank(kept, depth)).run(dataset.queries)
        assert scorer.asked == kept.scored == len(dataset.queries) * 4

    def test_a_retriever_is_asked_once_for_each_depth(self, world: Any) -> None:
        dataset, one, _ = world

        class Counting(Stage):
            name = "counting"
            asked = 0

            def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
                self.asked += 1
                return one.run(queries, given, k)

        counting = Counting()
        kept = Recalled(counting, lambda stage, span, k: Spent(np.zeros(1)))
        for k in (3, 3, 5, 3):
            kept.run(dataset.queries, None, k)
        assert counting.asked == 2


class TestCosts:
    def test_a_line_is_found_again(self) -> None:
        measured = [(count, 2.0 + 0.5 * count) for count in (1, 5, 20, 50)]
        assert fitted_line(measured) == pytest.approx((2.0, 0.5))
        assert fitted_line([(4, 8.0), (4, 8.0)]) == pytest.approx((0.0, 2.0))
        assert fitted_line([(1, 5.0), (10, 4.0)]).fixed == 0.0  # no negative cost of a pair
        assert fitted_line([]) == (0.0, 0.0)

    def test_stages_cost_what_their_parts_do(self, world: Any) -> None:
        dataset, one, _ = world
        costs = CostModel(dict(dataset.queries), {"cross": 0.25})
        costs.pairs["cross"] = PairCost(1.0, 10.0)
        stage = Recalled(one, costs.of_first) % 4 >> Rerank(Remembered(Overlap(), "cross"), 3)
        with tracing() as spans:
            stage.run(dataset.queries)
        taken, price, pairs = costs.of_span(spans[0])
        retriever = costs.time_retriever(one, 4)
        assert np.all(taken >= retriever + 31.0)
        assert np.all(taken < retriever + 41.0)  # the rest is far below ten milliseconds
        assert price == pytest.approx(0.75)
        assert pairs == 3.0

    def test_retrievers_of_one_name_are_timed_apart(self, world: Any) -> None:
        dataset, one, _ = world
        costs = CostModel(dict(list(dataset.queries.items())[:2]))
        twin = Retriever.build(BM25Encoder(), dataset.corpus, name="one")
        assert costs.time_retriever(one, 3) is costs.time_retriever(one, 3)
        assert costs.time_retriever(one, 3) is not costs.time_retriever(twin, 3)

    def test_a_retriever_alone_is_timed_as_it_is_measured(self, world: Any) -> None:
        _, one, _ = world
        tuner = tuner_of(world)
        tuner.measure(["one", "rm3(one)"])
        assert {k for retriever, k in tuner.costs._retrievers if retriever is one} == {None, 10}
        found = np.percentile(tuner.costs.time_retriever(one, 10), 50)
        assert tuner.trials["one"].p50_ms == pytest.approx(found, abs=1e-3)

    def test_scorers_of_lists_and_of_parts_have_their_price(self, world: Any) -> None:
        dataset, one, _ = world

        class Last:
            def score_lists(self, queries: Any, heads: Any, documents: Any) -> Any:
                return {query: list(range(len(head))) for query, head in heads.items()}

        section = TuneSection(timed_queries=3, prices={"judge": 2.0, "cross": 1.0})
        names = {"one": lambda: one, "judge": Last, "cross": Overlap}
        tuner = Tuner(names, dataset.queries, dataset.qrels, section)
        for call, price in (("judge", 6.0), ("cross", 3.0), ("passages", 3.0)):
            part = "cross, " if call == "passages" else ""
            assert tuner.measured(f"one % 5 >> {call}({part}depth=3)").price == price

    def test_a_skipped_query_costs_no_pair(self) -> None:
        assert PairCost(3.0, 1.0).milliseconds(np.array([0.0, 2.0])).tolist() == [0.0, 5.0]


class TestChoice:
    trials = (
        Trial("a", 0.5, 1.0, 2.0, 0.0, 0.0),
        Trial("b", 0.7, 5.0, 9.0, 1.0, 0.0),
        Trial("c", 0.6, 6.0, 9.0, 0.5, 0.0),
        Trial("d", 0.8, 20.0, 40.0, 2.0, 0.0),
        Trial("e", 0.7, 4.0, 30.0, 3.0, 0.0),
    )

    def test_the_front_has_what_nothing_beats(self) -> None:
        assert [t.pipeline for t in front_of(self.trials, "p95_ms")] == ["a", "b", "d"]
        assert [t.pipeline for t in front_of(self.trials, "p50_ms")] == ["a", "e", "d"]
        for trial in self.trials:
            beaten = any(
                o.p95_ms <= trial.p95_ms and o.value >= trial.value and o != trial
                and (o.p95_ms, -o.value) != (trial.p95_ms, -trial.value)
                for o in self.trials
            )  # fmt: skip
            assert beaten != (trial in front_of(self.trials, "p95_ms"))

    @pytest.mark.parametrize(
        ("budget", "chosen"),
        [
            ({}, "d"),
            ({"p95_ms": 10}, "b"),
            ({"p95_ms": 2}, "a"),
            ({"p50_ms": 4}, "e"),
            ({"price": 0.5}, "c"),
            ({"share_of_best": 0.8}, "b"),
            ({"share_of_best": 1.0}, "d"),
            ({"p95_ms": 10, "share_of_best": 0.5}, "a"),
        ],
    )
    def test_the_best_within_the_budget(self, budget: dict[str, float], chosen: str) -> None:
        assert chosen_of(self.trials, BudgetSection(**budget)).pipeline == chosen

    def test_a_budget_that_nothing_meets_names_the_cheapest(self) -> None:
        with pytest.raises(ConfigError, match=r"p95_ms 1 or less; the cheapest, a, has"):
            chosen_of(self.trials, BudgetSection(p95_ms=1))


def test_the_search_tries_fusions_rerankers_and_exits(world: Any) -> None:
    dataset, _, _ = world
    tuner = tuner_of(world, budget=BudgetSection(share_of_best=0.9))
    found = tuned(tuner, ["one", "other"], ["cross"])
    texts = [trial.pipeline for trial in found.trials]
    assert len(texts) == len(set(texts)) > 50
    for part in ("weighted(", ">> cross(depth=100", "interpolate=0.5", "exit="):
        assert any(part in text for text in texts)
    assert found.chosen in found.trials
    assert found.chosen.value >= 0.9 * found.best.value
    assert found.full.pairs == max(trial.pairs for trial in found.trials)
    run = tuner.stage(found.best.pipeline).run(dataset.queries)
    assert evaluate(run, dataset.qrels, ["nDCG@10"]).mean["nDCG@10"] == found.best.value


@pytest.mark.parametrize(("retrievers", "rerankers"), [(["one"], []), (["one"], ["cross"])])
@pytest.mark.parametrize(("measure", "name"), [("R@100", "R@100"), ("mrr@10", "RR@10")])
def test_few_parts_are_tuned_too(
    world: Any, retrievers: list[str], rerankers: list[str], measure: str, name: str
) -> None:
    found = tuned(tuner_of(world, measure=measure), retrievers, rerankers)
    assert found.measure == name
    assert found.chosen.value == found.best.value


def test_only_judged_queries_are_sampled(world: Any) -> None:
    dataset, one, _ = world
    queries = {**{f"unjudged{n}": "gold" for n in range(50)}, **dataset.queries}
    tuner = Tuner({"one": lambda: one}, queries, dataset.qrels, TuneSection(queries=3))
    assert len(tuner.queries) == len(tuner.qrels) == 3
    with pytest.raises(DataError, match="none of the queries has judgements"):
        Tuner({"one": lambda: one}, {"x": "gold"}, dataset.qrels, TuneSection())


def test_the_datasets_level_decides_what_is_relevant(world: Any) -> None:
    dataset, one, _ = world
    section = TuneSection(measure="RR@10", timed_queries=3)
    values = [
        Tuner({"one": lambda: one}, dataset.queries, dataset.qrels, section, level=level)
        .measured("one")
        .value
        for level in (1, 2)
    ]
    assert values[0] > values[1] == 0  # no grade is above 1


def test_texts_to_time_with_come_from_where_the_lists_do(world: Any) -> None:
    dataset, one, _ = world
    pruned = Retriever.build(BM25Encoder(), list(dataset.corpus)[:5], name="pruned")
    names = {"pruned": lambda: pruned, "one": lambda: one, "cross": Overlap}
    tuner = Tuner(names, dataset.queries, dataset.qrels, TuneSection(timed_queries=3))
    tuner.measure(["pruned"])
    tuner.time_rerankers(["one % 10 >> cross(depth=5)"])
    assert "cross" in tuner.costs.pairs


def test_scores_are_kept_on_disk(world: Any, tmp_path: Path) -> None:
    dataset, one, _ = world
    for asked in (len(dataset.queries) * 3, 0):
        scorer = Overlap()
        section = TuneSection(timed_queries=3, pipelines=["one % 3 >> cross(depth=3)"])
        cache = ScoreCache(tmp_path / "scores.sqlite")
        names = {"one": lambda: one, "cross": lambda scorer=scorer: scorer}
        tuner = Tuner(names, dataset.queries, dataset.qrels, section, cache=cache)
        tuner.measure(["one % 3 >> cross(depth=3)"])
        cache.close()
        assert scorer.asked == asked


def test_scores_of_a_scorer_without_a_fingerprint_are_not_kept(world: Any, tmp_path: Path) -> None:
    dataset, one, _ = world

    class Plain(Overlap):
        fingerprint = None  # type: ignore[assignment]

    for _ in range(2):
        scorer = Plain()
        with contextlib.closing(ScoreCache(tmp_path / "scores.sqlite")) as cache:
            names = {"one": lambda: one, "cross": lambda scorer=scorer: scorer}
            section = TuneSection(timed_queries=3)
            tuner = Tuner(names, dataset.queries, dataset.qrels, section, cache=cache)
            tuner.measure(["one % 3 >> cross(depth=3)"])
        assert scorer.asked == len(dataset.queries) * 3
