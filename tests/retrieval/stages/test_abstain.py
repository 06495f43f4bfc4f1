"""Predictors of a query's performance against their formulas, and queries without an answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Retriever, load_pipeline
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.abstain import Abstain, abstain, fit_abstention
from sluice.retrieval.stages.confidence import (
    KINDS,
    LEAST,
    SHARES,
    TEMPERED,
    Confidence,
    Kind,
    auroc,
)
from sluice.retrieval.stages.confidence_exit import ConfidenceExit, exit_rule, fit_exit


def ranking(*scores: float) -> Ranking:
    return Ranking([f"d{place}" for place in range(len(scores))], np.array(scores, np.float32))


SCORES = (3.0, 2.5, 1.0, -2.0)


def test_confidences_by_their_formulas() -> None:
    one = ranking(*SCORES)
    for temperature in (1.0, 0.25, 7.0):
        exact = temperature * math.log(sum(math.exp(each / temperature) for each in SCORES))
        assert Confidence("energy", 25, temperature).measure(one) == pytest.approx(exact, abs=1e-12)
        tempered = [math.exp(each / temperature) for each in SCORES]
        share = tempered[0] / sum(tempered)
        assert Confidence("softmax", 25, temperature).measure(one) == pytest.approx(
            share, abs=1e-12
        )
    mean = sum(SCORES) / 4
    deviation = math.sqrt(sum((each - mean) ** 2 for each in SCORES) / 4)
    assert Confidence("deviation").measure(one) == pytest.approx(deviation, abs=1e-12)
    assert Confidence("top").measure(one) == 3.0
    assert Confidence("margin").measure(one) == pytest.approx(0.1)
    assert Confidence("deviation", 2).measure(one) == pytest.approx(0.25)


def test_without_temperature_the_energy_is_the_highest_score() -> None:
    """T to 0; and neither small T nor large scores overflow."""
    for temperature in (1e-2, 1e-5, 1e-300):
        assert Confidence("energy", 25, temperature).measure(ranking(*SCORES)) == pytest.approx(3.0)
    assert Confidence("energy").measure(ranking(3e38, 1.0)) == pytest.approx(3e38, rel=1e-6)
    more = [Confidence("energy", 25, t).measure(ranking(*SCORES)) for t in (0.1, 1.0, 10.0)]
    assert more == sorted(more)


def test_rankings_of_no_documents_and_one() -> None:
    expected = {"margin": 1.0, "softmax": 1.0, "top": LEAST, "energy": LEAST, "deviation": 0.0}
    assert {kind: Confidence(kind).measure(ranking()) for kind in KINDS} == expected
    alone = {"margin": 1.0, "softmax": 1.0, "top": 2.0, "energy": 2.0, "deviation": 0.0}
    assert {kind: Confidence(kind).measure(ranking(2.0)) for kind in KINDS} == alone


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    chance = np.random.default_rng(3)
    positives = chance.integers(0, 6, 40).astype(np.float64)
    negatives = chance.integers(0, 4, 30).astype(np.float64)
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    assert auroc(positives, negatives) == pytest.approx(np.mean(pairs))
    assert auroc(positives, positives) == 0.5
    assert auroc(positives + 9, negatives) == 1.0


def runs(count: int = 100) -> tuple[Run, Run]:
    """Answerable queries have higher scores, with an overlap."""
    chance = np.random.default_rng(5)
    made = []
    for shift, name in ((1.0, "a"), (0.0, "u")):
        lists = {f"{name}{n}": ranking(*np.sort(chance.normal(shift, 1, 5))[::-1])
                 for n in range(count)}  # fmt: skip
        made.append(Run(lists))
    return made[0], made[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("refused", [0.0, 0.05, 0.3])
def test_a_fitted_threshold_refuses_no_more_than_asked(kind: Any, refused: float) -> None:
    answerable, unanswerable = runs()
    fitted = fit_abstention(answerable, unanswerable, kind=kind, refused=refused)
    known = np.array([Confidence(kind).measure(each) for each in answerable.values()])
    unknown = np.array([Confidence(kind).measure(each) for each in unanswerable.values()])
    assert fitted.refused == (known < fitted.threshold).mean() <= refused
    assert fitted.caught == (unknown < fitted.threshold).mean()
    # the next higher value would refuse more than asked
    higher = known[known > fitted.threshold].min()
    assert (known < higher).mean() > refused
    assert fitted.auroc[kind] == pytest.approx(auroc(known, unknown))
    if kind in ("top", "energy"):
        assert fitted.auroc[kind] > 0.7


@pytest.mark.parametrize("refused", [0.29, 0.57, 0.07, 1.0, 0.0])
def test_a_share_is_not_rounded_down(refused: float) -> None:
    known = Run({f"{n}": ranking(n) for n in range(100)})
    fitted = fit_abstention(known, known, kind="top", refused=refused)
    assert fitted.refused == min(refused, 0.99)


class Fixed(Stage):
    """Returns the lists it was made with."""

    def __init__(self, run: Run) -> None:
        self.run_, self.name = run, "fixed"

    def written(self, name_of: Any) -> str:
        return "one"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({query: self.run_[query][:k] for query in queries}, name=self.name)


def test_the_stage_leaves_the_sure_ones(tmp_path: Path) -> None:
    answerable, unanswerable = runs()
    fitted = fit_abstention(answerable, unanswerable, refused=0.1)
    fitted.save(tmp_path / "f.json")
    every = Run({**answerable, **unanswerable})
    stage = abstain(Fixed(every), fitted=str(tmp_path / "f.json"))
    for k in (None, 2):  # the confidence looks deeper than k
        run = stage.rank(dict.fromkeys(every, "x"), None, k)
        empty = [not len(run[query]) for query in every]
        assert np.mean(empty[:100]) == fitted.refused
        assert np.mean(empty[100:]) == fitted.caught
        assert all(len(each) in (0, k or 5) for each in run.values())
    own = abstain(Fixed(every), threshold=fitted.threshold, kind="energy", width=25)
    assert (own.threshold, own.confidence) == (stage.threshold, stage.confidence)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_stage_opens_and_answers_the_same(
    kind: Kind, bm25: Retriever, tmp_path: Path
) -> None:
    threshold = 0.25 if kind in SHARES else -1e-7
    temperature = 0.5 if kind in TEMPERED else None
    stage = abstain(bm25 % 9, threshold=threshold, kind=kind, width=7, temperature=temperature) % 3
    stage.save(tmp_path / "p")
    queries = {"a": "gold river", "b": "zzz", "c": "number 7"}
    opened = load_pipeline(tmp_path / "p")
    for query, ranking in stage.run(queries).items():
        assert list(opened.run(queries)[query]) == list(ranking)


def test_an_exit_by_energy_is_fitted_saved_and_read(tmp_path: Path) -> None:
    before = Run({f"q{n}": ranking(n / 10, 0.0) for n in range(10)})
    after = Run({f"q{n}": Ranking(["d1", "d0"], [1.0, 0.0]) for n in range(10)})
    # the reranker is right for the less sure half alone
    qrels = {f"q{n}": {"d0" if n >= 5 else "d1": 1} for n in range(10)}
    fitted = fit_exit(before, after, qrels, kind="energy", temperature=0.5, epsilon=0.01)
    assert fitted.exited == 0.5
    fitted.save(tmp_path / "e.json")
    rule = exit_rule(str(tmp_path / "e.json"))
    assert (rule.kind, rule.temperature) == ("energy", 0.5)
    assert [rule.depth(each) for each in before.values()] == [2] * 5 + [0] * 5
    none = fit_exit(before, after, qrels, kind="energy", epsilon=0.0)
    assert none.exited == 0
    assert ConfidenceExit(-3.5, "top").depth(ranking(-3.0, -9.0)) == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Confidence("energi"), "did you mean 'energy'"),  # type: ignore[arg-type]
        (lambda: Confidence("energy", 1), "width"),
        (lambda: Confidence("energy", 25, 0.0), "temperature: 0.0, expected a number above 0"),
        (lambda: Confidence("top", 25, 2.0), "temperature: 2.0: top reads none"),
        (lambda: ConfidenceExit(0.5, "margin", 25, 2.0), "exit: temperature"),
        (lambda: ConfidenceExit(float("inf"), "energy"), "exit is inf"),
        (lambda: abstain(Fixed(Run({}))), "expected either the file of"),
        (lambda: abstain(ranking, threshold=0.5), "expected a retriever or pipeline"),  # type: ignore[arg-type]
        (lambda: abstain(Fixed(Run({})), fitted="x", kind="top"), "kind and fitted='x'"),
        (lambda: abstain(Fixed(Run({})), kind="top"), "kind and fitted=None"),
        (lambda: abstain(Fixed(Run({})), threshold=0.5, width=0), "width"),
        (lambda: abstain(Fixed(Run({})), fitted="no.json"), "no such file"),
        (lambda: abstain(Fixed(Run({})), threshold=5, kind="margin"), "every query or none"),
        (lambda: abstain(Fixed(Run({})), threshold=-0.1, kind="softmax"), "every query or none"),
        (lambda: fit_abstention(*runs(3), refused=1.5), "refused"),
    ],
)
def test_settings_that_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_damaged_files_and_no_queries(tmp_path: Path) -> None:
    answerable, unanswerable = runs(5)
    fit_abstention(answerable, unanswerable).save(tmp_path / "f.json")
    facts = json.loads((tmp_path / "f.json").read_text())
    for change in ({"kind": "x"}, {"threshold": None}, {"width": 0}, {"format": "sluice.exit"}):
        (tmp_path / "g.json").write_text(json.dumps({**facts, **change}))
        with pytest.raises(ConfigError, match=r"g\.json"):
            abstain(Fixed(answerable), fitted=str(tmp_path / "g.json"))
    with pytest.raises(DataError, match="unanswerable: no queries"):
        fit_abstention(answerable, Run({}))


def test_a_journey(sluice: Call, tmp_path: Path) -> None:
    file, fitted = tmp_path / "x.yaml", tmp_path / "no.json"
    file.write_text(yaml.safe_dump({
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": {"bm25": "bm25", "sure": f"abstain(bm25, fitted='{fitted}') % 10"},
        "evaluate": {"latency_queries": 0},
    }), encoding="utf-8")  # fmt: skip
    (tmp_path / "foreign.txt").write_text("the of and\nnumber and of\n\nof the number\n")
    code, _, err = sluice("fit", "no-answer", file, "bm25", "--output", fitted)
    assert code == 2
    assert "every dev query has a relevant document" in err
    code, out, err = sluice(
        "fit", "no-answer", file, "bm25", "--unanswerable", tmp_path / "foreign.txt",
        "--kind", "top", "--output", fitted,
    )  # fmt: skip
    assert code == 0, err
    assert "0.0% of 8 dev queries with an answer get no hits, 100.0% of 3 without one" in out
    assert "AUROC: " in out
    assert "top 1.000" in out
    code, _, err = sluice("run", file)
    assert code == 0, err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {each["name"] for each in results["systems"]} == {"bm25", "sure"}
    code, out, err = sluice("search", tmp_path / "out", "of the", "--pipeline", "sure")
    assert code == 0, err
    assert "d0" not in out
    for words, says in (
        (["--unanswerable", tmp_path / "data"], "its queries have answers here"),
        (["--unanswerable", tmp_path / "none.txt"], "unanswerable: no file"),
        (["--unanswerable", tmp_path / "foreign.txt", "--kind", "best"], "kind: 'best'"),
        (["--unanswerable", tmp_path / "foreign.txt", "--temperature", "0"], "temperature"),
        (["--split", "test"], "never the test"),
    ):
        code, _, err = sluice("fit", "no-answer", file, "bm25", *words, "--output", fitted)
        assert code == 2
        assert says in err


def test_it_is_an_expression() -> None:
    every = Run({"q": ranking(*SCORES)})
    stage = parse("abstain(one, threshold=3.6, kind='energy') % 2", {"one": lambda: Fixed(every)},
                  where="p")  # fmt: skip
    assert len(stage.run({"q": "x"}, None, 5)["q"]) == 0
    inner = stage.inner[0]
    assert isinstance(inner, Abstain)
    written = stage.written(lambda part: "one")
    again = parse(written, {"one": lambda: Fixed(every)}, where="p")
    assert again.written(lambda part: "one") == written
    assert len(inner.over([Fixed(every)]).run({"q": "x"}, None, 1)["q"]) == 0
    lower = parse("abstain(one, threshold=3.4)", {"one": lambda: Fixed(every)}, where="p")
    assert len(lower.run({"q": "x"}, None, 2)["q"]) == 2
