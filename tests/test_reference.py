"""docs/reference/ is what the code has: every key, component, stage, measure and public class."""

import re
from pkgutil import resolve_name

import pytest
from places import ROOT
from site_scripts import site_script

import sluice
from sluice.encoders.table import ENCODERS, TUNINGS
from sluice.indexing.table import INDEXES
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, TuneConfig
from sluice.retrieval.evaluation.measure_table import MEASURES
from sluice.retrieval.pipelines.table import SCORERS, STAGES
from sluice.training.losses import LOSSES

FOLDER = ROOT / "docs" / "reference"
reference = site_script("make_reference")


def page(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_the_pages_are_made_from_the_code() -> None:
    made = reference.pages()
    assert made.keys() == {file.name for file in FOLDER.iterdir()}
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, (
            f"{name}: run scripts/make_schema.py, then scripts/make_reference.py"
        )


def test_every_loss_has_its_paper() -> None:
    losses = page("losses")
    for name, place in LOSSES.items():
        loss = resolve_name(place)
        assert "summary" in vars(loss), name
        assert name == "sum" or loss.paper in losses, name


def test_nothing_of_the_tables_is_missing() -> None:
    tables = {"encoders": ENCODERS, "indexes": INDEXES, "losses": LOSSES, "rerankers": SCORERS}
    for name, table in {**tables, "stages": STAGES}.items():
        headings = re.findall(r"^## (\w+)$", page(name), re.M)
        assert set(table) <= set(headings), name
    for name in TUNINGS:
        assert f"\n### {name} tuning\n" in page("encoders")
    for name in MEASURES:
        assert f"| `{name}" in page("stages")
    for name in sluice.__all__:
        assert f"\n## {name}\n" in page("python")


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (ExperimentConfig, "An experiment"),
        (TrainConfig, "A training run"),
        (TuneConfig, "A tuning"),
    ],
)
def test_every_key_has_a_meaning(kind: type[ExperimentConfig], heading: str) -> None:
    section = page("yaml").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    base = reference.EXTENDED.get(kind.__name__)
    if base:
        section += (
            page("yaml").partition(f"\n## {reference.SECTIONS[base]}\n")[2].partition("\n## ")[0]
        )
    rows = re.findall(r"^- `(\w+)` \((.+)\): (.+)$", section, re.M)
    assert {key for key, *_ in rows} == set(kind.model_fields)
    for key, values, meaning in rows:
        field = kind.model_fields[key]
        required = field.is_required() or (kind is TuneConfig and key == "tune")
        assert values.endswith("; required") == required, key
        assert meaning.endswith((".", "`")), key


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "integer, at least 1"),
        ({"type": ["string", "null"]}, "text"),
        ({"enum": ["a", True, 2]}, "`a`, `true`, `2`"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "names with number"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number"),
        (
            {"anyOf": [{"enum": ["x"]}, {"type": "string", "pattern": ":"},
                       {"$ref": "#/$defs/losses"}]},
            "[a loss](losses.md)",
        ),
        ({"$ref": "#/$defs/TuneSection"}, "[tune](yaml.md#tune)"),
        ({}, "any"),
    ],
)  # fmt: skip
def test_types_in_words(schema: dict[str, object], words: str) -> None:
    assert reference.typed(schema) == words
