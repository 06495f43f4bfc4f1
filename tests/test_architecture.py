"""docs/architecture.md shows the floors that import-linter holds, and names what exists."""

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FRONT = ("README.md", "CONTRIBUTING.md")
PACKAGES = ("encoders", "indexing", "training", "retrieval")
ROOMS = sorted(
    path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")
)


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


def test_links_work() -> None:
    for page in (ROOT / name for name in ("docs/architecture.md", "docs/glossary.md", *FRONT[1:])):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)


def test_the_pages_can_be_found() -> None:
    for name in FRONT:
        text = (ROOT / name).read_text(encoding="utf-8")
        for page in ("docs/architecture.md", "docs/glossary.md"):
            assert page in text, name


def test_the_glossary_is_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [line.split("|")[1].strip().lower() for line in text.splitlines() if line[:1] == "|"]
    words = words[2:]
    assert len(words) > 50
    assert words == sorted(words)


def test_every_room_says_what_it_is_for_and_what_it_may_import() -> None:
    texts = {room: (room / "__init__.py").read_text(encoding="utf-8") for room in ROOMS}
    assert [room for room, text in texts.items() if not text.startswith('"""')] == []
    assert [room for room, text in texts.items() if "May import:" not in text.split('"""')[1]] == []


def test_no_room_is_crowded() -> None:
    hidden = ("__init__.py", "__pycache__", "py.typed")
    for room in ROOMS:
        entries = [entry.name for entry in room.iterdir() if entry.name not in hidden]
        assert len(entries) <= (18 if room.parent == ROOT else 14), (room, entries)
