"""docs/gallery.md is what its script writes, and its figures come from the present code."""

from pathlib import Path

import pytest
from site_scripts import site_script

gallery = site_script("make_gallery")


def test_the_page_is_written_by_the_script() -> None:
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page()


def test_the_figures_were_drawn_by_the_present_code() -> None:
    """After a change: scripts/make_gallery.py FOLDER, or --same-figures if no figure changes."""
    assert gallery.DRAWN_BY.read_text(encoding="utf-8").strip() == gallery.drawn_by()
    assert len(gallery.DRAWING) == 3
    for plate in gallery.PLATES:
        assert (gallery.IMAGES / f"{plate.name}.svg").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("", True),
        ('"""Other words."""\n\n\ndef f(x):\n    # why\n    return x + f"{x:g}, {x}"\n', True),
        ('def f(x):\n    """What."""\n    return (\n        x + f"{x:g}, {x}"\n    )\n', False),
        ('def f(x):\n    return x - f"{x:g}, {x}"\n', False),
        ('def f(x):\n    return x + f"{x:g}; {x}"\n', False),
    ],
)
def test_words_are_no_change_of_the_code(change: str, same: bool) -> None:
    source = (
        '"""A module."""\n\n\ndef f(x):\n    """What it does."""\n    return x + f"{x:g}, {x}"\n'
    )
    assert (gallery.code_of(change or source) == gallery.code_of(source)) is same


def test_a_figure_of_changed_code_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gallery.drawn_by()
    changed = tmp_path / "figures.py"
    changed.write_text(gallery.DRAWING[0].read_text(encoding="utf-8").replace("6.0", "7.0"))
    monkeypatch.setattr(gallery, "DRAWING", (changed, *gallery.DRAWING[1:]))
    assert gallery.drawn_by() != before
