"""docs/generative.md: its YAML is valid, and its Python runs."""

import json
import re
from pathlib import Path

import pytest
import yaml
from places import ROOT

from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.checks import check_experiment

PAGE = (ROOT / "docs" / "generative.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_yaml_is_valid(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"query": "q", "pos": ["d"], "negative_queries": ["m"]}
    Path("described.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    ranked = {"query": "q", "documents": ["d", "e"], "grades": [1.0, 0.6]}
    Path("ranked.jsonl").write_text(json.dumps(ranked) + "\n", encoding="utf-8")
    check_experiment(checked(yaml.safe_load(text), ExperimentConfig))


@pytest.mark.parametrize("text", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_python_runs(text: str) -> None:
    exec(text, {})
