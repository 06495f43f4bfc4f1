"""The page on systems is made from its table: configs are good, figures stand where it says."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click_logs import CLICK, write_log
from command_line import Call
from small_world import write_beir

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


FILES = [name for name, row in ROWS.items() if row["config"].startswith("configs/")]
STEP = {"max_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no"}


def with_tiny_models(value: Any, plain: str, masked: str) -> Any:
    """A config's values whose models are tiny (32 numbers, 64 tokens): SPLADE's has a head."""
    if isinstance(value, list):
        return [with_tiny_models(each, plain, masked) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: with_tiny_models(each, plain, masked) for key, each in value.items()}
    lengths = ("query_length", "document_length", "max_length")
    made |= {key: 64 for key in lengths if made.get(key, 0) > 64}
    made |= {key: [32, 16] for key in ("dims", "matryoshka_dims") if key in made}
    made |= {"terms": 20} if made.get("terms", 0) > 20 else {}
    made |= {"start": {"terms": 20}} if made.get("start") is True else {}
    if re.search("MiniLM|^runs/", str(value.get("model"))):
        started = value.get("start") is not None
        made["model"] = masked if value.get("type") == "splade" and not started else plain
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*LINES, *FILES])
def test_the_config_of_a_row_is_checked_and_trains(
    name: str, shell: Call, tmp_path: Path, bert: Path, masked_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every config with `sluice config check`, over a tiny collection; a step of each training."""
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "clicks.jsonl", [CLICK])  # that production-hybrid.yaml learns from
    config, lines = ROWS[name]["config"], name in LINES
    file = ROOT / ("configs/train-dense-mined.yaml" if lines else config)
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    values |= yaml.safe_load(config) if lines else {}
    values["dataset"] = str(write_beir(tmp_path / "data"))
    values = with_tiny_models(values, str(bert), str(masked_bert))
    values["output"] = str(tmp_path / "out")
    own = tmp_path / "row.yaml"
    own.write_text(yaml.safe_dump(values), encoding="utf-8")
    code, out, err = shell("config", "check", own)
    assert code == 0, err
    assert str(tmp_path / "out") in out
    if "loss" not in values:
        return
    values["trainer"] = {**values["trainer"], **STEP}
    values.pop("evaluate", None)
    own.write_text(yaml.safe_dump(values), encoding="utf-8")
    code, _, err = shell("train", own)
    assert code == 0, err
    assert (tmp_path / "out" / "model" / "manifest.json").is_file()
