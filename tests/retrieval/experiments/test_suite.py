"""Evaluation that resumes, and many datasets by many pipelines."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import load_dataset, run
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.measures import depth_for, parse_measure
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.significance import holm
from sluice.retrieval.experiments.suites.suite import CQADUPSTACK, _table, beir_datasets, is_suite
from sluice.retrieval.jobs import suite
from sluice.retrieval.pipelines.stage import Stage

Call = Callable[..., tuple[int, str, str]]
PIPELINES = {"bm25": "bm25", "short": "bm25 % 3"}


def config(tmp_path: Path, **parts: Any) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "one")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": PIPELINES,
        "evaluate": {"latency_queries": 4},
        **parts,
    }


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pipelines whose runs were made, by name."""
    from sluice.retrieval.experiments import system as system_result

    names: list[str] = []
    made = system_result.run_on

    def noted(stage: Stage, *rest: Any) -> Any:
        names.append(stage.name)
        return made(stage, *rest)

    monkeypatch.setattr(system_result, "run_on", noted)
    return names


def test_only_what_is_new_or_changed_is_run(tmp_path: Path, ran: list[str]) -> None:
    values = config(tmp_path)
    first, _ = run(values)
    assert ran == ["bm25", "bm25 % 3"]
    again, _ = run(values)
    assert len(ran) == 2
    assert again.rows == first.rows
    run({**values, "pipelines": {**PIPELINES, "deeper": "bm25 % 4"}})
    assert ran[2:] == ["bm25 % 4"]
    run({**values, "pipelines": {"bm25": "bm25", "short": "bm25 % 2"}})
    assert ran[3:] == ["bm25 % 2"]
    more = {"measures": ["RR@10", "P@5"], "latency_queries": 4}
    other, _ = run({**values, "evaluate": more, "pipelines": {"bm25": "bm25"}})
    assert len(ran) == 4  # other measures of the same run
    assert list(other.columns)[:2] == ["RR@10", "P@5"]
    queries = Path(values["dataset"]) / "queries.jsonl"
    queries.write_text(queries.read_text().replace("word", "words"))
    run({**values, "pipelines": {"bm25": "bm25"}})
    assert ran[4:] == ["bm25"]


def test_a_run_that_was_exchanged_or_half_written_is_made_again(
    tmp_path: Path, ran: list[str]
) -> None:
    values = config(tmp_path, pipelines={"bm25": "bm25"})
    run(values)
    folder = tmp_path / "out" / "runs"
    (folder / "bm25.trec.gz").write_bytes((folder / "bm25.trec.gz").read_bytes() + b" ")
    run(values)
    (folder / "bm25.json").unlink()  # killed between the two
    run(values)
    assert len(ran) == 3


@pytest.mark.parametrize("damage", ["{", "[]", '{"key": 1}', '{"result": {}}'])
def test_a_damaged_note_is_made_again(damage: str, tmp_path: Path, ran: list[str]) -> None:
    values = config(tmp_path, pipelines={"bm25": "bm25"})
    run(values)
    (tmp_path / "out" / "runs" / "bm25.json").write_text(damage)
    run(values)
    assert len(ran) == 2


def test_a_run_of_other_weights_is_made_again(tmp_path: Path, ran: list[str]) -> None:
    values = config(tmp_path, pipelines={"bm25": "bm25"})
    run(values)
    note = tmp_path / "out" / "runs" / "bm25.json"
    found = json.loads(note.read_text())
    found["result"]["fingerprints"]["bm25"] = "trained before"
    note.write_text(json.dumps(found))
    run(values)
    assert len(ran) == 2


@pytest.mark.thorough
def test_a_trained_reranker_that_is_gone_is_made_again(
    tmp_path: Path, ran: list[str], bert: Path
) -> None:
    cross = {
        "encoder": {"type": "cross_encoder", "model": str(bert)}, "loss": {"type": "bce"},
        "negatives": {"type": "mined", "retriever": "bm25", "per_query": 1},
        "trainer": {"max_steps": 1, "per_device_train_batch_size": 2},
    }  # fmt: skip
    values = config(
        tmp_path, train={"ft": cross}, pipelines={"cascade": "bm25 >> cross(depth=2)"},
        rerankers={"cross": {"type": "cross_encoder", "model": "ft"}},
    )  # fmt: skip
    run(values)
    run(values)
    assert len(ran) == 1
    shutil.rmtree(tmp_path / "out" / "models" / "ft")
    run(values)
    assert len(ran) == 2
    assert (tmp_path / "out" / "models" / "ft").is_dir()


def test_a_measure_without_a_cut_off_does_not_shorten_the_others() -> None:
    parsed = [parse_measure(text) for text in ("AP", "R@5000", "P@5")]
    assert depth_for(parsed) == 5000
    assert depth_for(parsed[:1]) == 1000


def test_a_kept_run_scores_as_the_made_one(tmp_path: Path) -> None:
    values = config(tmp_path, evaluate={"measures": ["nDCG@10", "AP", "RR"], "latency_queries": 2})
    made, _ = run(values)
    kept, _ = run(values)
    assert made.to_dict() == kept.to_dict()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    system = results["systems"][1]
    timed = {"p50", "p95", "p99", "queries", "stages", "bounds", "reference"}
    assert system["latency_ms"].keys() == timed
    assert system["bytes_per_document"] * system["documents"] == system["index_bytes"]
    assert system["queries_per_second"] > 0
    assert system["peak_memory_bytes"] > 1e7
    assert results["contents"].keys() == {"queries", "qrels"}
    assert {"effect_size", "low", "high"} <= results["comparisons"][0].keys()


def test_stages_are_timed_apart(tmp_path: Path) -> None:
    both = {"bm25": {"encoder": {"type": "bm25"}}, "other": {"encoder": {"type": "bm25"}}}
    run(config(tmp_path, retrievers=both, pipelines={"fused": "(bm25 | other) % 5"}))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = results["systems"][0]["latency_ms"]
    assert list(found["stages"]) == ["bm25", "other", "(bm25 | other)"]


def test_one_failing_dataset_does_not_stop_the_others(tmp_path: Path, sluice: Call) -> None:
    one, two = write_beir(tmp_path / "one"), write_beir(tmp_path / "two")
    values = config(tmp_path, dataset=[str(one), "not-there", str(two)])
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump(values))
    code, out, _ = sluice("evaluate", file)
    assert code == 1
    assert "failed: not-there" in out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["datasets"] == ["one", "two"]
    assert list(results["failed"]) == ["not-there"]
    table = results["tables"]["nDCG@10"]
    assert "Without not-there" in table["caption"]
    row = table["systems"][0]
    assert row["average"] == pytest.approx((row["one"] + row["two"]) / 2)
    alone = json.loads((tmp_path / "out/datasets/two/results.json").read_text())
    assert alone["systems"][0]["measures"]["nDCG@10"] == row["two"]
    (header, first, _) = csv.reader((tmp_path / "out" / "table.csv").read_text().splitlines())
    assert float(first[header.index("two nDCG@10")]) == row["two"]
    values["dataset"] = [str(one), str(two)]
    file.write_text(yaml.safe_dump(values))
    assert sluice("evaluate", file)[0] == 0


def test_an_interrupted_suite_goes_on_at_the_next_pipeline(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.retrieval.experiments import system as system_result

    values = config(tmp_path, dataset=[str(write_beir(tmp_path / n)) for n in ("one", "two")])
    made = system_result.run_on

    def interrupted(*given: Any) -> Any:
        if len(ran) == 3:
            raise KeyboardInterrupt
        return made(*given)

    monkeypatch.setattr(system_result, "run_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        suite(values)
    assert ran == ["bm25", "bm25 % 3", "bm25"]
    monkeypatch.setattr(system_result, "run_on", made)
    found = suite(values)
    assert ran[3:] == ["bm25 % 3"]
    assert found is not None
    assert list(found.tables["nDCG@10"].columns) == ["one", "two", "average", "average ±"]


def test_when_all_fail_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset could be evaluated"):
        suite(config(tmp_path, dataset=["not-there", "nor-there"]))
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "an empty list"),
        (["beir:scifat"], "did you mean 'scifact'"),
        (["a/x", "b/x"], "a-x"),
        (["x", "x"], "is listed twice"),
        (["x", "/data/average"], "a column of the table"),
        ([{"split": "test"}], "expected a name"),
    ],
)
def test_bad_lists(dataset: list[str], words: str, tmp_path: Path) -> None:
    if words == "a-x":
        with pytest.raises(DataError):  # two names, neither there
            suite(config(tmp_path, dataset=dataset))
        return
    with pytest.raises(ConfigError, match=words):
        suite(config(tmp_path, dataset=dataset))


def test_a_faulty_config_is_found_before_any_dataset(tmp_path: Path) -> None:
    values = config(tmp_path, pipelines={"x": "bm26"})
    with pytest.raises(ConfigError, match="bm25"):
        suite({**values, "dataset": [values["dataset"]]})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", [{"evaluate": None}, {"evaluate": [1]}, {"output": 5}])
def test_faulty_sections_of_a_suite(fault: dict[str, Any], tmp_path: Path) -> None:
    values = config(tmp_path)
    with pytest.raises(ConfigError, match=next(iter(fault))):
        suite({**values, "dataset": [values["dataset"]], **fault})


def test_what_beir_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_DATA", raising=False)
    every = [each["dataset"] for each in beir_datasets("beir:*")]
    assert len(every) == 13 + len(CQADUPSTACK)
    assert "beir/cqadupstack/android" in every
    assert "beir/webis-touche2020/v2" in every
    assert "beir/msmarco" not in every
    assert beir_datasets("beir:msmarco") == [
        {"dataset": "beir/msmarco", "evaluate": {"split": "dev"}}
    ]
    write_beir(tmp_path / "scifact")
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path))
    assert beir_datasets("beir:scifact") == [{"dataset": "scifact"}]
    assert load_dataset("scifact").queries
    assert (is_suite("beir:*"), is_suite(["a"]), is_suite("a")) == (True, True, False)


def _scores(values: list[float]) -> Scores:
    by_query = {f"q{i}": v for i, v in enumerate(values)}
    return Scores({"RR": sum(values) / len(values)}, {"RR": by_query}, len(values))


def test_cqadupstack_is_one_dataset_of_the_average() -> None:
    found = {
        name: {"a": _scores([1.0, 0.0]), "b": _scores([1.0, place / 24])}
        for place, name in enumerate(CQADUPSTACK)
    }
    found["scifact"] = {"a": _scores([0.0, 0.2]), "b": _scores([0.3, 0.1])}
    table = _table("RR", found, None, SignificanceTest(), {})
    assert list(table.columns) == ["cqadupstack", "scifact", "average", "average ±"]
    parts = sum((1 + place / 24) / 2 for place in range(12)) / 12
    assert table.rows["b"]["cqadupstack"] == pytest.approx(parts)
    assert table.rows["b"]["average"] == pytest.approx((parts + 0.2) / 2)
    del found[CQADUPSTACK[0]]
    found["nq"] = {"a": _scores([0.5]), "b": _scores([0.6])}
    part = _table("RR", found, None, SignificanceTest(), {})
    assert len(part.columns) == 15
    assert part.rows["b"]["average ±"] is None  # nq has a single query
    assert part.rows["b"]["average"] == pytest.approx((0.2 + 0.6) / 2)
    assert "11 of 12 parts" in part.caption


def test_p_values_are_corrected_over_systems_and_datasets() -> None:
    values = [[0.1, 0.4, 0.3, 0.8], [0.2, 0.5, 0.4, 0.8], [0.3, 0.2, 0.9, 0.9]]
    names = ("base", "one", "two")
    found = {
        dataset: {n: _scores([v**power for v in vs]) for n, vs in zip(names, values, strict=True)}
        for dataset, power in (("x", 1), ("y", 2))
    }
    every = _table("RR", found, "base", SignificanceTest(), {}).comparisons
    comparisons, averages = every[:4], every[4:]
    assert [(c.dataset, c.system) for c in averages] == [("average", "one"), ("average", "two")]
    assert [c.p_corrected for c in averages] == holm([c.p for c in averages])
    assert [(c.dataset, c.system) for c in comparisons] == [
        ("x", "one"), ("x", "two"), ("y", "one"), ("y", "two")
    ]  # fmt: skip
    assert [c.p_corrected for c in comparisons] == holm([c.p for c in comparisons])
