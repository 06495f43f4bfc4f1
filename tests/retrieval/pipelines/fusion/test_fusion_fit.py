"""Fusion weights fitted on judged queries: the values promised are those that fusing gives."""

import json
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Run, Stage, evaluate
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit, fit_fusion
from sluice.retrieval.pipelines.fusion.fusion import METHODS, Fusion
from sluice.retrieval.pipelines.fusion.search import FusionSearch
from sluice.retrieval.runs.queries import Queries

Qrels = dict[str, dict[str, int]]


def world(runs: int = 2, queries: int = 30, seed: int = 0) -> tuple[list[Run], Qrels]:
    """Runs that see relevance through noise, the later ones worse; ties and gaps included."""
    rng = np.random.default_rng(seed)
    docs = [f"d{number}" for number in range(60)]
    qrels: Qrels = {}
    lists: list[dict[str, dict[str, float]]] = [{} for _ in range(runs)]
    for number in range(queries):
        relevant = rng.choice(60, 5, replace=False)
        qrels[f"q{number}"] = {docs[d]: int(rng.integers(0, 3)) for d in relevant}
        truth = np.zeros(60)
        truth[relevant] = 2.0
        for run in range(runs):
            scores = np.round(truth + rng.normal(0, 1 + 0.5 * run, 60), 1)
            kept = np.argsort(-scores)[: int(rng.integers(0, 40))]
            lists[run][f"q{number}"] = {docs[d]: float(scores[d]) for d in kept}
    lists[0].pop("q3")
    qrels["absent"] = {"d1": 1}
    return [Run(each, name=f"run{i}") for i, each in enumerate(lists)], qrels


@pytest.mark.parametrize("measure", ["nDCG@10", "R@20", "RR@10", "AP", "P@5", "Judged@10"])
@pytest.mark.parametrize("method", METHODS)
def test_the_value_is_what_fusing_scores(method: str, measure: str) -> None:
    runs, qrels = world(runs=3)
    search = FusionSearch(runs, qrels, parse_measure(measure))
    for weights in ((1.0, 0.0, 0.0), (0.0, 0.5, 0.5), (0.2, 0.3, 0.5)):
        for normalise in ("min-max", "z-score", "theoretical-min"):
            fusion = Fusion(method, weights, normalise, minimum=-9.0)
            expected = evaluate(fusion.fuse(runs), qrels, [measure]).mean[measure]
            assert search.mean(fusion) == pytest.approx(expected, abs=1e-12)


def test_the_best_is_no_worse_than_any_run_or_equal_weights() -> None:
    runs, qrels = world()
    fit = fit_fusion(runs, qrels)
    assert fit.value >= max(*fit.single, fit.equal)
    assert fit.value > fit.single[0]
    assert fit.value == pytest.approx(evaluate(fit.fuse(runs), qrels, ["nDCG@10"]).mean["nDCG@10"])
    assert fit.queries == 31
    assert fit.names == ("run0", "run1")
    assert fit.tried == 2 * 21
    assert fit.held_out is not None
    assert 0 < fit.held_out <= fit.value
    assert sum(fit.fusion.weights or ()) == pytest.approx(1)
    single = [evaluate(run, qrels, ["nDCG@10"]).mean["nDCG@10"] for run in runs]
    assert fit.single == pytest.approx(single)
    assert fit_fusion(runs, qrels) == fit


def test_of_equals_even_weights_are_taken() -> None:
    run = Run({"q": {"a": 2.0, "b": 1.0}, "p": {"b": 1.0}})
    qrels = {"q": {"a": 1}, "p": {"b": 1}}
    assert fit_fusion([run, run, run], qrels, "RR").fusion.weights == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("count", [3, 4, 6])
def test_several_runs(count: int) -> None:
    runs, qrels = world(count, queries=12)
    fit = fit_fusion(runs, qrels, "R@10", methods=["rrf"])
    assert fit.fusion.method == "rrf"
    assert fit.value >= max(*fit.single, fit.equal)


def test_a_fit_is_a_file_and_an_expression(tmp_path: Path) -> None:
    runs, qrels = world()
    fit = fit_fusion(runs, qrels, methods=["weighted"], normalise=["theoretical-min"], minimum=-9)
    path = tmp_path / "fit.json"
    fit.save(path)
    assert FusionFit.load(path) == fit

    class Fixed(Stage):
        def __init__(self, place: int) -> None:
            self.place, self.name = place, f"run{place}"

        def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
            return runs[self.place]

    names = {"run0": lambda: Fixed(0), "run1": lambda: Fixed(1)}
    for text in (
        fit.expression(),
        f"weighted(run0, run1, fitted='{path}')",
        f"fused(run0, run1, fitted='{path}')",
    ):
        assert dict(parse(text, names).run({})) == dict(fit.fuse(runs))
    mnz = fit_fusion(runs, qrels, methods=["comb_mnz"])
    assert dict(parse(mnz.expression("run0", "run1"), names).run({})) == dict(mnz.fuse(runs))
    for text, message in [
        (
            f"weighted(run0, run1, run1, fitted='{path}')",
            r"2 stages .*, but 3 are fused",
        ),
        (f"rrf(run0, run1, fitted='{path}')", "was fitted as weighted, not rrf"),
        (f"weighted(run0, run1, fitted='{path}', weights=[1, 2])", "both give weights"),
        (
            "weighted(run0, run1, fitted='nowhere.json')",
            r"nowhere\.json: no such file; .sluice fit fusion",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(text, names)
    with pytest.raises(ConfigError, match="1 names for 2 stages"):
        fit.expression("a")
    for damage, message in (
        ("{", "not readable as JSON"),
        ("[]", "a JSON list, expected an object of format 'sluice.fusion'"),
        ('{"format": "sluice-fusion"}', "not the file of a fitted fusion"),
        (
            '{"format": "sluice.fusion", "version": 1, "fusion": 3}',
            "not the file of a fitted fusion",
        ),
        ('{"format": "other"}', "holds 'other', expected 'sluice.fusion'"),
        ('{"format": "sluice.fusion", "version": 2}', "newer version of Sluice, in format 2"),
    ):
        path.write_text(damage)
        with pytest.raises(ConfigError, match=message):
            FusionFit.load(path)
    found = {"format": "sluice-fusion", "fusion": {"method": "nothing"}}
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=r"fit\.json: not the file .* 'nothing'; known"):
        FusionFit.load(path)


def test_what_cannot_be_fitted() -> None:
    runs, qrels = world()
    for message, error, call in [
        ("1 runs; expected two or more", ConfigError, lambda: fit_fusion(runs[:1], qrels)),
        ("no query of the runs", DataError, lambda: fit_fusion(runs, {"x": {"d1": 1}})),
        ("no query of the runs", DataError, lambda: fit_fusion(runs, {})),
        ("mean 'weighted'", ConfigError, lambda: fit_fusion(runs, qrels, methods=["weihted"])),
        ("no methods", ConfigError, lambda: fit_fusion(runs, qrels, methods=[])),
        ("unknown normalisation", ConfigError, lambda: fit_fusion(runs, qrels, normalise=["max"])),
        ("unknown measure", ConfigError, lambda: fit_fusion(runs, qrels, "nDGC@10")),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            call()
    one = fit_fusion(runs, {"q1": qrels["q1"]})
    assert one.held_out is None
