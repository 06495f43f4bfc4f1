"""What an evaluation would stop at later is found before any work."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files import registry
from sluice.encoders.model_files.locate import model_folder
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments import evaluation
from sluice.retrieval.experiments.evaluation import prepare
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.jobs import index, run

DENSE = {"type": "dense", "model": "./none"}


def config(tmp_path: Path, **parts: Any) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": "bm25"}, "dense": {"encoder": DENSE}},
        "evaluate": {"latency_queries": 0, "report": False},
        **parts,
    }


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        ({}, "retrievers.dense.encoder.model"),
        (
            {
                "retrievers": {
                    "bm25": {"encoder": "bm25"},
                    "two": {"encoder": {"type": "towers", "query": DENSE, "document": DENSE}},
                }
            },
            "retrievers.two.encoder.query.model",
        ),
        (
            {
                "rerankers": {"cross": {"type": "cross_encoder", "model": "./none"}},
                "pipelines": {"bm25": "bm25", "two": "bm25 >> cross"},
            },
            "rerankers.cross.model",
        ),
    ],
)
def test_a_model_is_looked_up_first(tmp_path: Path, parts: dict[str, Any], place: str) -> None:
    with pytest.raises(ModelError) as raised:
        run(config(tmp_path, **parts))
    assert str(raised.value).startswith(f"{place}: ./none: no such model folder; ")
    assert not (tmp_path / "out").exists()


def taught(tmp_path: Path, bert: Path, teacher: Any) -> dict[str, Any]:
    """Two trainings, of which the second has a teacher."""
    plain = {
        "encoder": {"type": "dense", "model": str(bert), "document_length": 16},
        "loss": "info_nce",
        "trainer": {"max_steps": 1, "save_strategy": "no", "per_device_train_batch_size": 4},
    }
    mined = {"type": "mined", "retriever": "bm25", "per_query": 1}
    learns = {**plain, "loss": "kl_div", "negatives": mined, "teacher": teacher}
    retrievers: dict[str, Any] = {"bm25": {"encoder": "bm25"}}
    retrievers |= {name: {"encoder": {"type": "dense", "model": name}} for name in "ab"}
    return config(tmp_path, train={"a": plain, "b": learns}, retrievers=retrievers)


@pytest.mark.parametrize(
    ("teacher", "place"),
    [
        ("no/where", "teacher"),
        (["bm25", {"type": "dense", "model": "no/where"}], "teacher.teachers[1].model"),
    ],
)
def test_a_teacher_of_a_later_training_is_looked_up_first(
    tmp_path: Path, bert: Path, teacher: Any, place: str
) -> None:
    with pytest.raises(ModelError) as raised:
        run(taught(tmp_path, bert, teacher))
    assert str(raised.value).startswith(f"train.b.{place}: no/where: model not found")
    assert not (tmp_path / "out").exists()


def test_what_a_finished_model_learnt_from_is_not_looked_up(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its teacher may be out of reach, unless the model is to be trained by another one."""
    values = taught(tmp_path, bert, "org/teacher")
    folder = model_folder(str(bert))
    away = False

    def found(name: str) -> Path:
        if name == "org/teacher":
            if away:
                raise ModelError("org/teacher: model not found")
            return folder
        return model_folder(name)

    for module in (evaluation, registry):
        monkeypatch.setattr(module, "model_folder", found)
    run(values)
    changed = copy.deepcopy(values)
    changed["train"]["b"]["teacher"] = "no/where"
    changed["train"]["a"]["trainer"]["max_steps"] = 2
    manifest = (tmp_path / "out" / "models" / "a" / "manifest.json").read_bytes()
    with pytest.raises(ModelError, match=r"^train\.b\.teacher: no/where: model not found"):
        run(changed)
    assert (tmp_path / "out" / "models" / "a" / "manifest.json").read_bytes() == manifest
    away = True
    shutil.rmtree(tmp_path / "out" / "models" / "b")  # its retriever is there
    values["evaluate"]["measures"] = ["R@5"]
    run(values)
    assert not (tmp_path / "out" / "models" / "b").exists()


def test_a_teacher_has_no_name_of_a_reranker(tmp_path: Path, bert: Path) -> None:
    values = taught(tmp_path, bert, "cross")
    values["rerankers"] = {"cross": {"type": "cross_encoder", "model": str(bert)}}
    with pytest.raises(ModelError, match=r"^train\.b\.teacher: cross: model not found"):
        run(values)


def test_only_what_is_needed_is_looked_up(tmp_path: Path) -> None:
    values = config(tmp_path, pipelines={"bm25": "bm25"})
    assert len(index(values, only=["bm25"])) == 1
    table, _ = run(values)
    assert list(table.rows) == ["bm25"]
    values["rerankers"] = {"far": {"type": "http", "url": "http://127.0.0.1:9", "model": "x/y/z"}}
    values["pipelines"]["far"] = "bm25 >> far"
    prepare(Experiment(checked(values, ExperimentConfig)))


def test_the_device_and_the_output(tmp_path: Path, bert: Path) -> None:
    if not torch.cuda.is_available():
        encoder = {"type": "dense", "model": str(bert), "device": "cuda"}
        parts = {"retrievers": {"dense": {"encoder": encoder}}}
        with pytest.raises(ConfigError, match=r"dense\.encoder\.device: 'cuda' cannot be used"):
            run(config(tmp_path, **parts))
    (tmp_path / "file").write_text("x", encoding="utf-8")
    values = config(tmp_path, pipelines={"bm25": "bm25"}, output=str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match=r"output: .*file is a file; choose a folder"):
        run(values)
    values["output"] = str(tmp_path / "a\0b")
    with pytest.raises(ConfigError, match=r"output: .* has a character that no path may have"):
        run(values)
