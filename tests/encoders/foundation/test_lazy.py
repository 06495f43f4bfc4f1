"""Public names load when first asked for, and type checkers see the same names."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

PACKAGES = ["encoders", "indexing", "training", "retrieval"]


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_what_is_exported(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        (alias.asname, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # only these are exports to a type checker
    }
    (call,) = [node for node in ast.walk(block.orelse[0]) if isinstance(node, ast.Call)]
    homes = ast.literal_eval(call.args[1])
    assert seen == {(public, module) for module, names in homes.items() for public in names}
    assert sorted(public for public, _ in seen if public) == vars(package)["__all__"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_loads_and_is_listed(name: str) -> None:
    package = importlib.import_module(name)
    public = vars(package)["__all__"]
    assert dir(package) == public
    assert all(getattr(package, each) is not None for each in public)
    assert set(public) <= set(vars(package))  # and is looked up once
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_package_inside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer_house" / "room"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner / "__init__.py").write_text(
        "from sluice.encoders.foundation.lazy import lazy\n"
        "__getattr__, __dir__, __all__ = lazy(__name__, {f'{__name__}.chair': ['sit']})\n"
    )
    (inner / "chair.py").write_text("def sit(): return 'well'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    room = importlib.import_module("outer_house.room")
    assert "outer_house.room.chair" not in sys.modules
    assert room.sit() == "well"
    assert room.sit is vars(room)["sit"] is sys.modules["outer_house.room.chair"].sit
