from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.trec_files import read_qrels

PUBLISHED = {  # by Pyserini's reproductions; reference_scores.json of the collections has them
    "BM25": (0.5058, 0.4796),
    "BM25_RM3": (0.5216, 0.4896),
    "SPLADE_P_P_ENSEMBLE_DISTIL": (0.7308, 0.7197),
    "D_BERT_KD_TASB": (0.7210, 0.6854),
    "OPEN_AI_ADA2": (0.7035, 0.6759),
    "REP_LLAMA": (0.7384, 0.7195),
}


@pytest.mark.parametrize("year", [19, 20])
@pytest.mark.parametrize("system", PUBLISHED)
def test_published_figures(collections: Path, system: str, year: int) -> None:
    run = Run.load(collections / "msmarco-dl-pool" / "runs" / f"dl{year}.{system}.trec")
    qrels = read_qrels(collections / f"dl{year}-passage" / "qrels" / "test.tsv")
    scores = evaluate(run, qrels, ["nDCG@10"])
    assert round(scores.mean["nDCG@10"], 4) == PUBLISHED[system][year - 19]
    again = evaluate(Run(dict(run)), qrels, ["nDCG@10"])
    assert again.per_query == scores.per_query


QRELS = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1}, "q3": {"x": 0}}


def test_missing_and_ignored_queries_are_counted() -> None:
    scores = evaluate({"q1": {"b": 2.0, "a": 1.0}, "other": {"a": 1.0}}, QRELS, ["nDCG@10", "RR"])
    assert (scores.queries, scores.missing, scores.ignored) == (3, 2, 1)
    assert scores.mean["nDCG@10"] == pytest.approx(1 / 3)
    assert scores.per_query["nDCG@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.0}
    assert "2 of them missing" in str(scores)
    assert "ignored: 1 query of the run without judgements" in str(scores)
    assert scores.to_dict()["measures"] == {"nDCG@10": scores.mean["nDCG@10"], "RR": 1 / 3}


def test_values_are_found_under_any_spelling() -> None:
    scores = evaluate({"q1": {"b": 2.0}}, QRELS, ["ndcg_cut_10"])
    assert list(scores.mean) == ["nDCG@10"]
    assert scores.mean["ndcg@10"] == scores.mean["nDCG@10"]
    assert scores.per_query["NDCG@10"]["q1"] > 0
    for absent in ("AP", "nonsense"):
        with pytest.raises(KeyError):
            scores.mean[absent]


def test_identical_ids_are_dropped_only_when_asked() -> None:
    run = Run({"q1": Ranking(["q1", "a"], [2.0, 1.0])})
    qrels = {"q1": {"a": 1, "q1": 0}}
    assert evaluate(run, qrels, ["RR"]).mean["RR"] == 0.5
    assert evaluate(run, qrels, ["RR"], ignore_identical_ids=True).mean["RR"] == 1.0
    assert evaluate(run, qrels, "Judged@2").mean["Judged@2"] == 1.0


def test_columns_with_identical_ids(tmp_path: Path) -> None:
    Run({"q1": {"q1": 2.0, "a": 1.0}}).save(tmp_path / "r")
    run = Run.load(tmp_path / "r")
    assert evaluate(run, {"q1": {"a": 1}}, ["RR"], ignore_identical_ids=True).mean["RR"] == 1.0


def test_columns_and_rankings_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    run = Run(
        {f"q{q}": {f"d{d}": float(rng.integers(0, 9)) for d in rng.permutation(40)[:25]}
         for q in rng.permutation(30)}
    )  # fmt: skip
    qrels = {
        f"q{q}": {f"d{d}": int(rng.integers(-1, 4)) for d in rng.permutation(60)[:9]}
        for q in rng.permutation(40)[:30]
    }
    run.save(tmp_path / "r.trec.gz")
    loaded = Run.load(tmp_path / "r.trec.gz")
    for measures in (["nDCG@10", "P@3"], ["AP", "RR", "nDCG", "Judged@30", "AP(rel=2)@7"]):
        assert evaluate(run, qrels, measures) == evaluate(loaded, qrels, measures)


def test_empty_rankings_and_runs_score_zero() -> None:
    assert evaluate({"q1": {}}, QRELS, ["nDCG@10", "Judged@5"]).mean["Judged@5"] == 0.0
    scores = evaluate(Run({}), QRELS, ["AP"])
    assert (scores.mean["AP"], scores.missing) == (0.0, 3)


def test_queries_without_a_judgement_do_not_exist() -> None:
    assert evaluate({"q1": {"a": 1.0}}, {"q1": {"a": 1}, "q2": {}}, ["RR"]).queries == 1


def test_errors_explain() -> None:
    with pytest.raises(DataError, match=r"do not match.*'7'.*'q1'"):
        evaluate({"7": {"a": 1.0}}, QRELS, ["AP"])
    with pytest.raises(DataError, match="no judgements"):
        evaluate({"7": {"a": 1.0}}, {}, ["AP"])
    with pytest.raises(DataError, match="not an integer"):
        evaluate({"q": {"a": 1.0}}, {"q": {"a": 0.5}}, ["AP"])  # type: ignore[dict-item]
    with pytest.raises(DataError, match="expected qrels as"):
        evaluate({"q": {"a": 1.0}}, {"q": ["a"]}, ["AP"])  # type: ignore[dict-item]
    with pytest.raises(DataError, match="twice"):
        evaluate(Run({"q1": Ranking(["a", "a"], [2.0, 1.0])}), QRELS, ["AP"])
    with pytest.raises(ConfigError, match="no measure"):
        evaluate({"q1": {"a": 1.0}}, QRELS, [])
    with pytest.raises(ConfigError, match="expected a Run"):
        evaluate("run.trec", QRELS, ["AP"])  # type: ignore[arg-type]


class Pipeline:
    """Answers every query with one document and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: tuple[list[str], int] = ([], 0)

    def run(self, queries: Mapping[str, str], k: int) -> Run:
        self.asked = (list(queries), k)
        return Run({query: {"a": 1.0} for query in queries})


def test_a_pipeline_is_run_on_the_judged_queries() -> None:
    dataset = SimpleNamespace(queries={"q1": "one", "q2": "two", "q9": "unjudged"}, qrels=QRELS)
    pipeline = Pipeline()
    assert evaluate(pipeline, dataset, ["RR"]).per_query["RR"]["q1"] == 1.0
    assert pipeline.asked == (["q1", "q2"], 1000)
    evaluate(pipeline, dataset, ["R@2000"], ignore_identical_ids=True)
    assert pipeline.asked[1] == 2001
    with pytest.raises(ConfigError, match="pass the dataset"):
        evaluate(pipeline, QRELS, ["RR"])
