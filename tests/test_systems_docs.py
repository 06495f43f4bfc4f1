"""The page on systems is made from its table: configs are good, figures stand where it says."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.retrieval.planning.problems import problems

ROOT = Path(__file__).parents[1]


def _script() -> Any:
    path = ROOT / "scripts" / "make_systems_docs.py"
    spec = importlib.util.spec_from_file_location("make_systems_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _script()
ROWS = {row["system"]: row for rows in made.rows().values() for row in rows}
LINES = [name for name, row in ROWS.items() if ": " in row["config"]]


def section(link: str) -> str:
    """The text below the heading that a link names."""
    page, _, anchor = link.partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    parts = re.split(r"^(#+) (.*)$", text, flags=re.M)
    for place in range(1, len(parts), 3):
        title = re.sub(r"[^\w\- ]", "", parts[place + 1].lower()).replace(" ", "-")
        if title == anchor:
            return parts[place + 2]
    raise AssertionError(f"{link}: no such section")


def test_the_page_is_made_from_the_table() -> None:
    text = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    assert made.page() == text, "run scripts/make_systems_docs.py"
    assert len(ROWS) >= 62


@pytest.mark.parametrize("name", ROWS)
def test_what_a_row_names_is_there(name: str) -> None:
    row = ROWS[name]
    assert row["open"], "what is not shown"
    if ".md#" in row["config"]:
        assert "```" in section(row["config"]) or "`" in section(row["config"])
    elif name not in LINES:
        assert (ROOT / row["config"]).is_file()
    script = row["proof"].split()[0]
    if script.startswith(("scripts/", "configs/")):
        assert (ROOT / script).exists()
    if row["page"]:
        page = section(row["page"])
        for number in re.findall(r"\d*\.\d+|\d+e-\d+", row["figure"]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", page), number
    else:
        assert not row["figure"]


@pytest.mark.parametrize("name", LINES)
def test_lines_make_a_config(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load(
        (ROOT / "configs" / "train-dense-mined.yaml").read_text(encoding="utf-8")
    )
    values |= {"dataset": "pydocs", **yaml.safe_load(ROWS[name]["config"])}
    assert [text for text in problems(values) if "no model" not in text] == []
