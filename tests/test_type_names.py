"""A type's name is compared in its own file and in the table, nowhere else: traits decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.encoders.table import KNOWN, MATCHING

ROOT = Path(__file__).parents[1]
# Names that are ordinary words too: forms of vectors, sides of databases, protocols, places.
ORDINARY = {"dense", "tokens", "http", "experts"}
NAMES = {*KNOWN} - ORDINARY
# A word of a file's own: hubs are normalised in a static or a dynamic mode.
OTHERWISE = {("retrieval/stages/hubs.py", "static")}


def compared(tree: ast.AST) -> Iterator[str]:
    """Yield the names of types that are compared, alone or in a written list, or matched."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            for each in (node.left, *node.comparators):
                written = isinstance(each, ast.Tuple | ast.List | ast.Set)
                places += each.elts if written else [each]  # type: ignore[attr-defined]
        elif isinstance(node, ast.MatchValue):
            places.append(node.value)
        for each in places:
            if isinstance(each, ast.Constant) and each.value in NAMES:
                yield str(each.value)


def of_home(name: str, path: str) -> bool:
    """Whether a file is the one that a type is made in, or lies beside it in the type's folder."""
    home = KNOWN[name].make.partition(":")[0].removeprefix("sluice.").replace(".", "/")
    own = home.rpartition("/")[0] if home.endswith("/encoder") and name != "splade" else home
    return path == f"{home}.py" or (own.endswith(name) and path.startswith(f"{own}/"))


@pytest.mark.parametrize("room", ["encoders", "indexing", "training", "retrieval"])
def test_names_of_types_are_compared_at_home(room: str) -> None:
    assert set(MATCHING) <= NAMES
    for path in sorted((ROOT / room).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place == "encoders/table.py":
            continue
        away = {
            each for each in compared(ast.parse(path.read_text("utf-8")))
            if not of_home(each, place) and (place, each) not in OTHERWISE
        }  # fmt: skip
        assert not away, f"{place}: ask traits_of(...), not the type's name"
