"""The README stays true: its commands, files, names and pipelines exist.

``scripts/readme`` runs its blocks for real, after the quickstart.
"""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import verb_of

from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, TuneConfig, load_config
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.pipelines.expression import names_in

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def test_shell_blocks_name_what_exists() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    assert lines[0].startswith("scripts/quickstart")
    assert lines[1].startswith("scripts/test")
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists(), line
            continue
        if words[:2] == ["pip", "install"]:
            continue
        assert words[0] == "sluice"
        verb_of(words[1:])
        if words[1] == "index" and not words[2].endswith(".yaml"):
            assert (ROOT / words[2]).exists(), line  # documents, without a YAML file
        elif words[1] in ("run", "train", "index", "evaluate", "tune"):
            kinds = {"train": TrainConfig, "tune": TuneConfig}
            kind = kinds.get(words[1], ExperimentConfig)
            overrides = [word for word in words[3:] if "=" in word]
            load_config(ROOT / words[2], kind, overrides)


def test_python_blocks_import_what_exists() -> None:
    python = blocks("python")
    assert python
    for block in python:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                home = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(home, alias.name), alias.name


def test_yaml_blocks_fit_the_quickstart() -> None:
    config = load_config(ROOT / "configs" / "quickstart.yaml", ExperimentConfig)
    for block in blocks("yaml"):
        part = yaml.safe_load(block)
        if "retrievers" in part:
            retrievers = {**config.retrievers, **part["retrievers"]}
            changed = config.model_dump() | {"retrievers": retrievers}
            check_experiment(ExperimentConfig.model_validate(changed))
        for name, text in part.get("pipelines", {}).items():
            assert config.pipelines[name] == text
            assert list(names_in(text, where=name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    if page.parent.name == "decisions":  # what was decided then, with the files of then
        return
    for target in re.findall(r"\b(?:configs|scripts)/[\w.-]+[\w]", text):
        assert (ROOT / target).exists(), target
