"""docs/architecture.md shows the floors that import-linter holds, and names what exists."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("encoders", "indexing", "training", "retrieval")
ROOMS = sorted(
    path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")
)
each_room = pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))


def _script() -> Any:
    file = ROOT / "scripts" / "make_architecture.py"
    spec = importlib.util.spec_from_file_location("make_architecture", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_floors() -> None:
    assert _script().page() == PAGE, "run python scripts/make_architecture.py"
    assert len(re.findall(r"^sluice[\w.]*$", PAGE, re.M)) >= 7


def test_the_pages_name_files_that_exist() -> None:
    named = re.findall(
        r"`((?:encoders|indexing|training|retrieval|docs|sluice|scripts|tests|configs)/[\w/.-]*)`",
        PAGE + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
    )
    assert len(named) > 30
    own = [name for name in named if "your_" not in name]
    assert [name for name in own if not (ROOT / name).exists()] == []
    new = [Path(name).parent for name in named if "your_" in name]
    assert new
    assert [folder for folder in new if not (ROOT / folder).is_dir()] == []


@pytest.mark.parametrize("name", ["architecture.md", "glossary.md", "../CONTRIBUTING.md"])
def test_links_work(name: str) -> None:
    page = ROOT / "docs" / name
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_pages_can_be_found(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for page in ("docs/architecture.md", "docs/glossary.md"):
        assert page in text


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [line.split("|")[1].strip().lower() for line in text.splitlines() if line[:1] == "|"]
    words = words[2:]
    assert len(words) > 50
    assert words == sorted(words)


@each_room
def test_every_room_says_what_it_is_for_and_what_it_may_import(room: Path) -> None:
    text = (room / "__init__.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert "May import:" in text.split('"""')[1]


@each_room
def test_no_room_is_crowded(room: Path) -> None:
    hidden = ("__init__.py", "__pycache__", "py.typed")
    entries = [entry.name for entry in room.iterdir() if entry.name not in hidden]
    assert len(entries) <= (18 if room.parent == ROOT else 14), entries
