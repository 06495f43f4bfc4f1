"""A type's name stands in its own file and in the table, nowhere else: traits decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sluice.encoders.table import GIVEN, KNOWN, MATCHING, TUNINGS
from sluice.indexing.table import AUGMENTATIONS, INDEXES
from sluice.retrieval.config.component_types import NEGATIVES
from sluice.retrieval.pipelines.table import DEPTH_RULES, SCORERS, STAGES
from sluice.retrieval.training_data.teachers.spec import COMPONENTS
from sluice.training.losses import LOSSES

ROOT = Path(__file__).parents[1]
MAKES: list[tuple[str, str]] = [
    *((name, each.make) for name, each in KNOWN.items()),
    *(
        (name, str(place))
        for table in (GIVEN, TUNINGS, INDEXES, AUGMENTATIONS, LOSSES, SCORERS, STAGES, DEPTH_RULES)
        for name, place in table.items()
    ),
    *((name, "sluice.retrieval.training_data.teachers.spec:") for name in COMPONENTS),
    *((name, "") for name in NEGATIVES),
]
# Names that are other words too: forms of vectors, similarities, fusions, options, columns, keys.
# They count where a type is plainly meant, the others wherever they stand.
WORDS = {
    "abstain", "adapter", "auto", "bce", "bm25", "cached", "comb_mnz", "comb_sum",
    "csr", "dense", "dot", "entries", "exit", "experts", "faiss", "fitted", "function",
    "generative", "graph", "http", "identifiers", "listwise", "live", "max_sim", "misfits",
    "pair_head", "passages", "prefix", "pseudo_queries", "rank_biased", "rankings", "rrf", "spans",
    "static", "sum", "tokens", "towers", "vocabulary", "weighted",
}  # fmt: skip
COMPARED = set(KNOWN) - {"dense", "tokens", "http", "experts"}  # always where they are compared
# Words of a file's own: keys of a folder's settings, the protocol of servers, rankers, modes.
OTHERWISE = {
    ("encoders/model_files/layout/read.py", "concepts"),
    ("encoders/model_files/layout/read.py", "gaussian"),
    ("retrieval/stages/hubs.py", "static"),
    ("retrieval/serving/http/guard.py", "http"),
    ("retrieval/serving/http/endpoints.py", "http"),
    ("retrieval/stages/ltr/ranker.py", "auto"),
}
TABLES = {
    "encoders/table.py", "indexing/table.py", "training/losses/__init__.py",
    "retrieval/pipelines/table.py", "retrieval/config/component_types.py",
    # What other names stand for, a line about each, and judges and writers by names of their own.
    "retrieval/config/other_names.py", "retrieval/config/schema/words.py",
    "retrieval/studies/judging/grading.py", "retrieval/training_data/written/written_corpus.py",
}  # fmt: skip


def homes(name: str) -> set[str]:
    """Return the files, without their ending, and the folders that a name is at home in."""
    places = set()
    for each, make in MAKES:
        if each == name:
            file = make.partition(":")[0].removeprefix("sluice.").replace(".", "/")
            folder = file.rpartition("/")[0]
            own = folder.endswith(name) or file.endswith("/encoder")
            alone = not any(
                other != name and f"{folder}/".replace("/", ".") in f"{place}."
                for other, place in MAKES
            )
            places |= {file, folder + "/"} if own or alone else {file}
    return places


HOMES: Mapping[str, set[str]] = {name: homes(name) for name, _ in MAKES}


def is_home(place: str, name: str) -> bool:
    """Whether a name is at home in a file."""
    return place.removesuffix(".py") in HOMES[name] or any(
        home.endswith("/") and place.startswith(home) for home in HOMES[name]
    )


def asks_type(node: ast.expr) -> bool:
    """Whether an expression is the type of something: ``x["type"]``, ``hooks.kind``, and so on."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "str":
        return any(asks_type(each) for each in node.args)
    text = ast.unparse(node).replace(" ", "")
    called = text.startswith(("type_name(", "kind_of(")) or text.endswith(".get('type')")
    own = (".type_name", "tuning", "hooks.kind", "encoder.kind", "_of(encoder).kind", "['type']")
    return called or text.endswith(own)


def meant(tree: ast.AST) -> Iterator[ast.expr | None]:
    """Yield what can only be a type: compared with one, or written where one stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            typed = any(asks_type(each) for each in sides)
            for part in (part for each in sides for part in getattr(each, "elts", [each])):
                if typed or getattr(part, "value", None) in COMPARED:
                    yield part
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "type":
                    yield from (
                        (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                    )
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".get"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and first.value == "type":
                yield from node.args[1:]


def written(tree: ast.AST) -> set[str]:
    """Return the names of types that a file writes, but for those in types of Python."""
    typed = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
        for part in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    plain = {node.value for node in nodes if id(node) not in typed} - WORDS
    plain |= {node.value for node in meant(tree) if isinstance(node, ast.Constant)}
    return {str(name) for name in plain if name in HOMES}


@pytest.mark.parametrize("room", ["encoders", "indexing", "training", "retrieval"])
def test_names_of_types_stand_at_home(room: str) -> None:
    assert set(MATCHING) <= set(HOMES) - WORDS
    away: set[tuple[str, str]] = set()
    for path in sorted((ROOT / room).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place not in TABLES:
            names = written(ast.parse(path.read_text("utf-8")))
            away |= {(place, name) for name in names if not is_home(place, name)}
    away -= OTHERWISE
    assert not away, f"ask traits_of(...), or the part itself, not the type's name: {sorted(away)}"
