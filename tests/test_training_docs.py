"""The page on training names what there is, and its YAML is valid."""

import re
from pathlib import Path
from typing import Any

import yaml

from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.training_data.clicks.examples import ClickExamples
from sluice.retrieval.training_data.files.corpus_mixture import CorpusExamples
from sluice.retrieval.training_data.files.examples import FileExamples
from sluice.training.negatives.settings import MODES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_every_mode_of_mining_is_named() -> None:
    for mode in MODES:
        assert f"`{mode}`" in PAGE


def test_the_examples_have_keys_that_exist() -> None:
    whole, own, part, *parts = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.S))
    checked(whole, TrainConfig)
    checked(own, TrainConfig)
    columns = checked({**own, **part}, TrainConfig).examples
    assert columns is not None
    FileExamples(columns["file"], columns=columns["columns"])
    plain = {"dataset": "pydocs", "output": "runs/mine", "loss": "info_nce"}
    for more in parts:
        if "train" in more:
            (section,) = checked({"dataset": "x", **more}, ExperimentConfig).train.values()
            assert section.examples is not None
            settings = {key: value for key, value in section.examples.items() if key != "type"}
            CorpusExamples(**settings)
        elif "datasets" in more:
            checked(more, TrainConfig)
        elif more.get("examples", {}).get("type") == "clicks":
            ClickExamples(
                **{key: value for key, value in more["examples"].items() if key != "type"}
            )
        else:
            check_training(checked({**plain, **more}, TrainConfig), "")


def test_the_python_example_trains(tmp_path: Path, bert: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    block = block.replace("runs/mine", str(tmp_path / "out"))
    block = block.replace("sentence-transformers/all-MiniLM-L6-v2", str(bert))
    names: dict[str, Any] = {"documents": [Document("1", "", "in the river")]}
    exec(compile(block, "docs/training.md", "exec"), names)
    assert [hit.doc_id for hit in names["retriever"].search("where is gold", k=3)] == ["1"]
