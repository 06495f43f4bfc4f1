"""Public names load when first asked for, and are those that type checkers see."""

import importlib
import sys
from pathlib import Path

import pytest

PACKAGES = ["encoders", "indexing", "training", "retrieval"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_loads_and_is_listed(name: str) -> None:
    package = importlib.import_module(name)
    public = vars(package)["__all__"]
    assert dir(package) == public == sorted(public)
    assert len(public) > 5
    assert all(getattr(package, each) is not None for each in public)
    assert set(public) <= set(vars(package))  # and is looked up once
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_package_inside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer_house" / "room"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from sluice.encoders.foundation.lazy import lazy\n"
        "if TYPE_CHECKING:\n"
        "    from outer_house.room.chair import (\n"
        "        sit as sit,\n"
        "        stand as stand,\n"
        "    )\n"
        "else:\n"
        "    __getattr__, __dir__, __all__ = lazy(__name__)\n"
    )
    (inner / "chair.py").write_text("def sit(): return 'well'\n\ndef stand(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    room = importlib.import_module("outer_house.room")
    assert dir(room) == ["sit", "stand"]
    assert "outer_house.room.chair" not in sys.modules
    assert room.sit() == "well"
    assert room.sit is vars(room)["sit"] is sys.modules["outer_house.room.chair"].sit
