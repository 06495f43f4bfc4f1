"""docs/late-interaction.md: its Python runs, its YAML is valid."""

import re

import pytest
import yaml
from places import ROOT

from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment

PAGE = (ROOT / "docs" / "late-interaction.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "docs/late-interaction.md", "exec"), names)
    assert len(names["hits"]) == 1  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith("[0] [0] ")


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_yaml_is_valid(text: str) -> None:
    check_experiment(checked({"dataset": "x", **yaml.safe_load(text)}, ExperimentConfig))
