"""``datasets`` of a training: negatives and dev measures of each, and what they may not share."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from small_world import write_marked

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import run, train
from sluice.retrieval.experiments.training.parts import mean_evaluation, names_of
from sluice.retrieval.experiments.training.summary import training_summary
from sluice.training.protocol import DevMeasures

BM25 = {"encoder": {"type": "bm25"}}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "output": str(tmp_path / "out"),
        "datasets": [
            str(write_marked(tmp_path / "a", "red")),
            str(write_marked(tmp_path / "b", "blue")),
        ],
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": "info_nce",
        "negatives": {"type": "mined", "retriever": BM25, "per_query": 1, "mode": "naive"},
        "evaluate": {"every": 2, "measures": ["nDCG@10", "RR@10"]},
        "trainer": {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1},
    }


@pytest.mark.thorough
def test_each_dataset_has_negatives_and_dev_measures_of_its_own(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = train(config)
    manifest = read_json(folder / "manifest.json")
    assert manifest["config"]["dataset"] == ["a", "b"]
    assert manifest["examples"] == 2 * (12 + 6)  # 12 queries each, half with two positives
    for name in "ab":
        assert (tmp_path / f"out/training/datasets/{name}/negatives.parquet").is_file()
    lines = read_lines(tmp_path / "out" / "training" / "metrics.jsonl")
    measured = [line for line in lines if "eval_nDCG@10" in line]
    assert len(measured) == 3
    for line in measured:
        for measure in ("nDCG@10", "RR@10"):
            each = [line[f"eval_{measure} {name}"] for name in "ab"]
            assert line[f"eval_{measure}"] == pytest.approx(sum(each) / 2)
    assert "from a and b" in training_summary(folder)
    assert (
        "judgements of 8 queries of a; judgements of 8 queries of b"
        in manifest["summary"]["judged_by"]
    )
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert train(config) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    changed = {**config, "sampling_temperature": 1.0}
    assert (train(changed) / "manifest.json").stat().st_mtime_ns != before


@pytest.mark.thorough
def test_a_training_of_an_experiment_builds_its_retrievers_over_each_dataset(
    config: dict[str, Any], tmp_path: Path
) -> None:
    section = {key: value for key, value in config.items() if key != "output"}
    section["negatives"] = {**section["negatives"], "retriever": "bm25"}
    folder = run({
        "dataset": str(write_marked(tmp_path / "c", "green")), "output": config["output"],
        "train": {"ft": section},
        "retrievers": {"bm25": BM25, "dense": {"encoder": {"type": "dense", "model": "ft"}}},
        "evaluate": {"latency_queries": 0},
    })  # fmt: skip
    assert folder is not None
    work = tmp_path / "out" / "training" / "ft" / "datasets"
    assert {path.parent.parent.name for path in work.glob("*/retrievers/bm25")} == {"a", "b"}
    assert not (work / "a" / "retrievers" / "dense").exists()


def test_a_query_of_one_in_the_test_of_another_is_refused(
    config: dict[str, Any], tmp_path: Path, sluice: Call
) -> None:
    queries = tmp_path / "b" / "queries.jsonl"
    lines = read_lines(queries)
    red = read_lines(tmp_path / "a" / "queries.jsonl")
    lines[-1]["text"] = red[3]["text"].upper()  # a train query of a becomes a test query of b
    queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
    message = (
        r"datasets: 1 of 8 tested queries of b \(such as 'q27'\) are among the train queries of a, "
        "by text: training on the test is refused; leave one of the two out"
    )
    with pytest.raises(ConfigError, match=message):
        train(config)
    assert not (tmp_path / "out" / "training").exists()
    (tmp_path / "x.yaml").write_text(json.dumps(config))
    code, _, err = sluice("train", tmp_path / "x.yaml")
    assert (code, "training on the test is refused" in err) == (2, True)


@pytest.mark.thorough
def test_a_query_in_the_test_of_the_experiment_is_refused(
    config: dict[str, Any], tmp_path: Path
) -> None:
    tested = write_marked(tmp_path / "c", "green")
    queries = tested / "queries.jsonl"
    lines = read_lines(queries)
    lines[20]["text"] = read_lines(tmp_path / "b" / "queries.jsonl")[12]["text"]
    queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
    experiment = {
        "dataset": str(tested), "output": config.pop("output"), "train": {"ft": config},
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "ft"}}},
    }  # fmt: skip
    message = (
        r"train\.ft\.datasets: 1 of 8 tested queries of c \(such as 'q20'\) are among the dev "
        "queries of b"
    )
    with pytest.raises(ConfigError, match=message):
        run(experiment)
    del config["evaluate"]  # then nothing is chosen by them
    run({**experiment, "evaluate": {"latency_queries": 0}})


@pytest.mark.thorough
def test_the_experiment_and_a_training_may_name_one_dataset_in_two_ways(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":  # 40 tested queries, one of which has the text of a training query
        queries = tmp_path / name / "queries.jsonl"
        lines = read_lines(queries)
        lines += [{"_id": f"t{n}", "text": f"{name} {n} of its own"} for n in range(39)]
        lines.append({"_id": "t39", "text": lines[3]["text"]})
        queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with (tmp_path / name / "qrels" / "test.tsv").open("a") as file:
            file.writelines(f"t{n}\td00\t1\n" for n in range(40))
    experiment = {
        "dataset": {"name": str(tmp_path / "a"), "split": "test"}, "output": config.pop("output"),
        "train": {"ft": config},
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "ft"}}},
        "evaluate": {"latency_queries": 0},
    }  # fmt: skip
    assert run(experiment) is not None
    assert "(such as 't39') have the text of a train query with another id" in caplog.text


def test_one_dataset_does_not_stand_beside_several(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="datasets: stands beside dataset, and training takes"):
        train({**config, "dataset": "c"})


def test_names_tell_datasets_apart() -> None:
    assert names_of(["x/a", "y/a", {"name": "a"}, "b"]) == ["x-a", "y-a", "a", "b"]
    assert names_of(["/x/a", "/y/a", "a", "b"]) == ["a", "a-2", "a-3", "b"]


def test_the_mean_is_that_of_the_datasets() -> None:
    values = {"a": {"nDCG@10": 0.5, "P@1": 0.0}, "b": {"nDCG@10": 0.1, "P@1": 1.0}}
    evaluate = mean_evaluation({name: lambda _, v=v: v for name, v in values.items()}, ["a", "b"])
    assert evaluate(None) == {
        "nDCG@10": pytest.approx(0.3), "P@1": 0.5, "nDCG@10 a": 0.5, "nDCG@10 b": 0.1,
        "P@1 a": 0.0, "P@1 b": 1.0,
    }  # fmt: skip


def test_the_mean_may_be_over_some_of_the_datasets() -> None:
    values = {"a": DevMeasures({"m": 0.5}, [0.25, 0.75]), "b": DevMeasures({"m": 0.1}, [0.1])}
    found = mean_evaluation({name: lambda _, v=v: v for name, v in values.items()}, ["a"])(None)
    assert found == {"m": 0.5, "m a": 0.5, "m b": 0.1}
    assert isinstance(found, DevMeasures)
    assert found.by_query == (0.25, 0.75)


def test_the_queries_of_all_datasets_have_the_mean_of_the_datasets() -> None:
    values = {"a": [0.2, 0.4, 0.9], "b": [1.0, 0.0, 0.5, 0.5, 0.25], "c": [0.75]}
    evaluate = mean_evaluation({
        name: lambda _, v=v: DevMeasures({"nDCG@10": sum(v) / len(v)}, v)
        for name, v in values.items()
    }, list(values))  # fmt: skip
    found = evaluate(None)
    assert isinstance(found, DevMeasures)
    assert len(found.by_query) == 9
    assert sum(found.by_query) / 9 == pytest.approx(found["nDCG@10"])
    assert found["nDCG@10"] == pytest.approx((0.5 + 0.45 + 0.75) / 3)


@pytest.mark.thorough
def test_relative_datasets_are_found_beside_the_file(
    config: dict[str, Any], tmp_path: Path, sluice: Call, caplog: pytest.LogCaptureFixture
) -> None:
    config["datasets"] = ["a", {"name": "b"}]
    (tmp_path / "x.yaml").write_text(json.dumps(config))
    with caplog.at_level(logging.INFO, "sluice"):
        code, out, err = sluice("train", tmp_path / "x.yaml")
    assert (code, "from a and b" in out) == (0, True), err
