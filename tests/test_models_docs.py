"""The page on models is made from its table, and every row of it from a test that exists."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from sluice.encoders.model_files.prompts import FAMILIES
from sluice.encoders.rerankers.recipes import RECIPES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def _script() -> Any:
    path = ROOT / "scripts" / "make_models_docs.py"
    spec = importlib.util.spec_from_file_location("make_models_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = _script()
ROWS = [*table.DENSE, *table.SPARSE, *table.SCORERS, *table.REFUSED]


def test_the_page_is_made_from_the_table() -> None:
    assert table.page(PAGE) == PAGE, "run scripts/make_models_docs.py"


@pytest.mark.parametrize("place", sorted({row.test for row in ROWS}))
def test_what_shows_a_row_exists(place: str) -> None:
    path, _, name = place.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    function, _, case = name.partition("[")
    assert not function or f"def {function}(" in text
    cases = text + (ROOT / "tests" / "support" / "families.py").read_text(encoding="utf-8")
    assert f'"{case.rstrip("]")}"' in cases or not case


def test_families_with_prompts_are_in_the_table_under_their_name() -> None:
    named = {row.prompts for row in table.DENSE} - {"none", "own"}
    assert named <= {family.name for family in FAMILIES}
    for family in FAMILIES:
        if family.name == "E5 with instructions":  # the folders name them too
            continue
        assert family.name in named, family.name
        rows = [row.models for row in table.DENSE if row.prompts == family.name]
        owners = {re.split(r"[ ,]", row)[0].partition("/")[0] for row in rows}
        assert {model.partition("/")[0] for model in family.models} <= owners


def test_recipes_are_in_the_table() -> None:
    asked = [row.models for row in table.SCORERS if row.kind == "generative"]
    assert len(asked) == len(RECIPES)
    for models, recipe in zip(asked, RECIPES, strict=True):
        assert {model.partition("-")[0] for model in recipe.models} == {models.partition("-")[0]}
