"""docs/other-representations.md: its YAML is valid, and its Python runs."""

import re
from pathlib import Path

import pytest
import yaml
from places import ROOT

from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment

PAGE = (ROOT / "docs" / "other-representations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_yaml_is_valid(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("concepts.txt").write_text("genes\nviruses\n")
    ErrorAdapter(2, 2).save(Path("runs/adapter"))
    check_experiment(checked(yaml.safe_load(text), ExperimentConfig))


@pytest.mark.parametrize("text", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_python_runs(text: str) -> None:
    exec(text, {})
