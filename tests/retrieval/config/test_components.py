"""Components by name alone, and types of the user's own."""

import sys
from pathlib import Path

import pytest
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import jobs
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    TrainConfig,
    checked,
    config_of,
    load_config,
)
from sluice.retrieval.experiments.experiment import Experiment


def test_a_name_stands_for_a_component_of_that_type() -> None:
    long = {"bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}}
    short = {"bm25": {"encoder": "bm25", "index": "inverted"}}
    one, other = (
        checked({"dataset": "x", "retrievers": retrievers}, ExperimentConfig)
        for retrievers in (long, short)
    )
    assert one == other
    alone = checked({"dataset": "x", "retrievers": {"bm25": "bm25"}}, ExperimentConfig)
    assert alone.retrievers["bm25"].encoder == {"type": "bm25"}


@pytest.mark.parametrize(
    ("examples", "spec"),
    [
        ("ict", {"type": "ict"}),
        ("my.module:Class", {"type": "my.module:Class"}),
        ("pairs.csv", {"type": "file", "file": "pairs.csv"}),
        ("C:/pairs.csv", {"type": "file", "file": "C:/pairs.csv"}),
        (["a.csv", "b.csv"], {"type": "file", "file": ["a.csv", "b.csv"]}),
    ],
)
def test_a_training_section_takes_names_too(examples: object, spec: dict) -> None:
    values = {
        "dataset": "x", "output": "y", "encoder": {"type": "dense", "model": "m"},
        "loss": "info_nce", "tuning": "bitfit", "teacher": "folder", "examples": examples,
    }  # fmt: skip
    config = checked(values, TrainConfig)
    assert (config.loss, config.tuning) == ({"type": "info_nce"}, {"type": "bitfit"})
    assert (config.teacher, config.examples) == ("folder", spec)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A YAML file beside a module with an encoder, and another folder as the current one."""
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    text = "from sluice.encoders.lexical.bm25 import BM25Encoder\nclass Mine(BM25Encoder): ...\n"
    (tmp_path / "project" / "beside_yaml.py").write_text(text)
    (tmp_path / "elsewhere" / "in_folder.py").write_text(text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("beside_yaml", "in_folder"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "project" / "own.yaml"


@pytest.mark.parametrize("module", ["beside_yaml", "in_folder"])
def test_a_type_may_lie_in_the_current_folder_or_beside_the_yaml(own: Path, module: str) -> None:
    own.write_text(f"dataset: x\nretrievers: {{mine: {{encoder: {{type: '{module}:Mine'}}}}}}\n")
    config, file = config_of(own, ExperimentConfig)
    Experiment(config, file=file)
    assert module in sys.modules


def test_values_from_python_find_types_in_the_current_folder(own: Path) -> None:
    values = {"dataset": "x", "retrievers": {"mine": {"encoder": "in_folder:Mine"}}}
    with pytest.raises(DataError, match="dataset 'x' not found"):
        jobs.index(values)
    assert "in_folder" in sys.modules


def test_an_own_class_that_is_no_encoder(tmp_path: Path) -> None:
    dataset = str(write_beir(tmp_path / "data", 20))
    encoder = {"type": "json:loads", "s": "{}"}
    values = {"dataset": dataset, "retrievers": {"a": {"encoder": encoder}}}
    with pytest.raises(ConfigError, match=r"'json:loads' is neither an encoder nor.*made a dict"):
        jobs.estimate(values)


def test_a_saved_folder_imports_nothing_from_the_current_folder(own: Path) -> None:
    own.write_text("dataset: x\nretrievers: {mine: {encoder: {type: 'in_folder:Mine'}}}\n")
    config = load_config(own, ExperimentConfig)
    with pytest.raises(ConfigError, match="never runs code that it names"):
        Experiment(config, file=own, allow=(), only_open=True)
    with pytest.raises(ConfigError, match="No module named 'in_folder'"):
        Experiment(config, file=own, allow=["in_folder:Mine"])
    Experiment(config, file=own, allow=["in_folder:Mine"], only_open=True)  # imports nothing yet
    assert "in_folder" not in sys.modules
