"""The tuner: its space, its memory against the plain stages, its costs, its choice, its files."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import TuneConfig, checked


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "dense", "model": str(bert)}},
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": str(bert)}},
        "tune": {
            "timed_queries": 3,
            "pipelines": ["bm25", "both >> cross(depth={d})"],
            "choices": {"d": [0, 2]},
        },
        "pipelines": {"both": "(bm25 | dense) % 5"},
    }


@pytest.mark.thorough
def test_tune_writes_what_evaluate_runs(
    tmp_path: Path, config: dict[str, Any], sluice: Call
) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(config))
    code, out, err = sluice("tune", file)
    assert code == 0, err
    assert "p95 ms promised" in out
    folder = tmp_path / "out" / "tune"
    front = json.loads((folder / "front.json").read_text())
    with (folder / "trials.csv").open() as stream:
        trials = list(csv.DictReader(stream))
    assert [t["pipeline"] for t in trials] == [
        "bm25", "both >> cross(depth=0)", "both >> cross(depth=2)",
    ]  # fmt: skip
    assert max(float(t["value"]) for t in trials) == front["best"]["value"]
    assert [float(t["pairs"]) for t in trials] == [0.0, 0.0, 2.0]
    assert "## The front" in (folder / "report.md").read_text()
    code, out, err = sluice("evaluate", folder / "tuned.yaml", "evaluate.latency_queries=0")
    assert code == 0, err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = {system["name"]: system["measures"]["nDCG@10"] for system in results["systems"]}
    assert found["tuned"] == pytest.approx(front["test"]["tuned"]["value"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split", "test", "tuning on the test is refused"),
        ("budget", {"p95_ms": 1e-6}, "or less; the cheapest, "),
        ("budget", {"p95": 3}, "did you mean 'p95_ms'"),
        ("pipelines", ["bm52 % {d}"], "did you mean 'bm25'"),
        ("measure", "nDGC@10", "tune"),
        ("prices", {"crss": 1.0}, "did you mean 'cross'"),
        ("pipelines", ["both >> cross(depth={d}, deadline_ms=5)"], "deadline_ms in"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, config: dict[str, Any], sluice: Call, key: str, value: Any, message: str
) -> None:
    config["tune"][key] = value
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(config))
    code, _, err = sluice("tune", file)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out" / "tune" / "tuned.yaml").exists()


def test_dev_queries_that_are_tested_are_refused_before_any_work(
    tmp_path: Path, config: dict[str, Any], sluice: Call
) -> None:
    qrels = tmp_path / "data" / "qrels"
    shutil.copy(qrels / "test.tsv", qrels / "dev.tsv")
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(config))
    code, _, err = sluice("tune", file)
    assert (code, "8 of 8 dev queries (such as 'q20') are queries of test" in err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_name_that_the_tuner_gives_is_refused(
    tmp_path: Path, config: dict[str, Any], sluice: Call
) -> None:
    config["pipelines"] = {"best": "(bm25 | dense) % 5"}
    config["tune"]["pipelines"] = ["best >> cross(depth={d})"]
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(config))
    code, _, err = sluice("tune", file)
    assert code == 2
    assert "pipelines.best: tuned.yaml uses this name for a pipeline" in err


def test_the_config_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"tune\.budget\.p99_ms"):
        checked({"dataset": "x", "tune": {"budget": {"p99_ms": 1}}}, TuneConfig)
