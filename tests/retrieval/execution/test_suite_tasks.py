"""Datasets of a suite as tasks; the executor in YAML and on the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.jobs import index, suite

Call = Callable[..., tuple[int, str, str]]
TWO = {"type": "processes", "workers": 2}


def config(folder: Path, **parts: Any) -> dict[str, Any]:
    datasets = [str(write_beir(folder / name, count)) for name, count in (("a", 40), ("b", 30))]
    return {
        "dataset": datasets,
        "output": str(folder / "out"),
        "retrievers": {"bm25": "bm25"},
        "evaluate": {"latency_queries": 0, "report": False},
        **parts,
    }


def runs(folder: Path) -> dict[str, bytes]:
    files = (folder / "out/datasets").glob("*/runs/*.trec.gz")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.thorough
def test_a_suite_by_processes_is_that_of_one(tmp_path: Path, sluice: Call) -> None:
    """The first dataset is evaluated by the plan, the other ones after it; one of them fails."""
    alone = suite(config(tmp_path / "one"))
    assert alone is not None
    two = tmp_path / "two"
    shared = config(two, executor={**TWO, "workers": 1})
    (two / "none").mkdir()
    shared["dataset"].append(str(two / "none"))
    file = two / "suite.yaml"
    file.write_text(yaml.safe_dump(shared))
    code, out, _ = sluice("evaluate", str(file), "--plan")
    assert code == 0
    assert out.startswith("evaluate: 3 tasks, 1 done; about ")
    assert len(runs(two)) == 1
    found = suite(shared)
    assert found is not None
    rows = [{m: t.rows for m, t in each.tables.items()} for each in (found, alone)]
    assert rows[0] == rows[1]
    assert runs(two) == runs(tmp_path / "one")
    assert len(runs(two)) == 2
    assert list(found.failed) == ["none"]
    assert not list((two / "out").rglob("task.json"))
    for wrong in (["--plan", "--rebuild"], ["executor=cluster"]):
        assert sluice("evaluate", str(file), *wrong)[0] == 2
    _, out, _ = sluice("evaluate", str(file), "executor=local", "--plan")
    assert out == "evaluate: no open task; the rest is done in this process\n"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"executor": "procesess"}, "executor.type: unknown type 'procesess'.*'processes'"),
        ({"executor": {"type": "processes", "wokers": 2}}, "executor.wokers: unknown key"),
        ({"executor": {"type": "local", "workers": 2}}, "executor.workers: unknown key"),
        (
            {"executor": {"type": "processes", "workers": 0}},
            "executor.workers: 0; expected",
        ),
        ({"executor": "os:system"}, r"executor.type"),
        ({"executor": {"type": "ray", "num_gpus": -1}}, "executor.num_gpus: -1; expected"),
        ({"executor": {"type": "ray", "num_cpus": 0}}, "num_cpus: 0, and nothing else"),
        ({"executor": {"type": "ray", "resources": {"GPU": 1}}}, "resources.GPU: has a key"),
        (
            {"executor": TWO, "retrievers": {"b": {"encoder": "bm25", "encoding": {"workers": 2}}}},
            "retrievers.b.encoding.workers: the executor shares texts out already",
        ),
        (
            {"executor": TWO, "retrievers": {"h": {"encoder": {"type": "http", "model": "m"}}}},
            "retrievers.h.encoder: an encoder behind HTTP makes its requests in one process",
        ),
        (
            {
                "executor": TWO,
                "retrievers": {"x": {"encoder": {"type": "dense", "backend": "onnx"}}},
            },
            r"retrievers.x.encoder: an exported graph \(backend\) runs in one process",
        ),
        (
            {
                "executor": TWO,
                "retrievers": {
                    "d": {
                        "encoder": {"type": "dense", "model": "all-MiniLM-L6-v2"},
                        "passages": {"late": True, "length": 80},
                    }
                },
            },
            "retrievers.d.passages.late: encodes in one process",
        ),
    ],
)
def test_a_bad_executor_is_refused_before_any_work(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    values = {**config(tmp_path, **parts), "dataset": str(tmp_path / "a")}
    with pytest.raises(ConfigError, match=message):
        index(values)
    assert not (tmp_path / "out").exists()


def test_what_no_task_does_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {**config(tmp_path, executor=TWO), "dataset": str(tmp_path / "a")}
    index(values)
    assert "executor: processes shares out other work" in caplog.text
    shutil.rmtree(tmp_path / "out")
    caplog.clear()
    index({**values, "executor": "local"})
    assert "shares out" not in caplog.text
    saved = yaml.safe_load((tmp_path / "out/experiment.yaml").read_text())
    assert saved["executor"] == {"type": "local"}
    origin = json.loads((tmp_path / "out/retrievers/bm25/retriever.json").read_text())["origin"]
    assert "executor" not in origin["config"]
