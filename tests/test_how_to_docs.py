"""How-to pages: their YAML is valid, their verbs parse; troubleshooting quotes what is printed."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import verb_of
from places import ROOT

from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = rf"```{language}\n(.*?)```"
    return [
        (page.stem, block)
        for page in PAGES
        for block in re.findall(pattern, page.read_text(encoding="utf-8"), re.S)
    ]


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_the_yaml_is_valid(page: str, text: str) -> None:
    values = yaml.safe_load(text)
    if isinstance(values["dataset"], list):
        values["dataset"] = values["dataset"][0]
    if "loss" in values:
        check_training(checked(values, TrainConfig), "")
    else:
        check_experiment(checked(values, ExperimentConfig))


@pytest.mark.parametrize(("page", "text"), blocks("sh"))
def test_the_commands_parse(page: str, text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "sluice"
        verb_of(words[1:])


def test_messages_are_those_of_the_code() -> None:
    printed = (ROOT / "tests" / "mistakes.txt").read_text(encoding="utf-8")
    sources = (
        file.read_text(encoding="utf-8")
        for package in ("encoders", "retrieval", "training", "indexing")
        for file in Path(ROOT / package).rglob("*.py")
    )
    code = "\n".join(sources)
    quoted = re.findall(r"^> (.+)$|^### `([^`]+)`$", TROUBLES, re.M)
    assert len(quoted) > 15
    for message in (first or second for first, second in quoted):
        assert message in printed or message in code, message
