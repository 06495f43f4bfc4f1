"""The look of every figure and writing one to a file; CSV that no spreadsheet runs.

Needs matplotlib: ``pip install 'sluice-ir[plots]'``. Nothing here touches ``pyplot``: there is no
display, no list of open figures, and no setting is changed for others.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.disk.files import write_bytes
from sluice.encoders.foundation.errors import ConfigError, needed_package, suggest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# What spreadsheets take for the beginning of a formula. An apostrophe before it is doubled, so that
# taking one away from a cell that matches gives the text back.
FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as comma-separated lines; numbers stay as they are, None is an empty cell.

    A text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line end has an apostrophe before
    it, unless it is a number: spreadsheets then show it and run nothing.
    """
    return "".join(_line(row) for row in rows)


def _line(row: Iterable[object]) -> str:
    stream = io.StringIO()
    csv.writer(stream).writerow([_cell(each) for each in row])  # \r\n, so that both are quoted
    return stream.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> object:
    if not isinstance(value, str) or not FORMULA.match(value) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE) is not None


FORMATS = ("svg", "png", "pdf")
COLOURS = (  # distinct to colour-blind readers and in grey (Wong 2011)
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
GREY = "#999999"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # a second sign beside colour, for print
DASHES = ("-", "--", ":", "-.")
INCHES = (6.0, 4.0)
DECADE = 10  # costs that span as much are drawn on a logarithmic axis
_SETTINGS = {"svg.hashsalt": "sluice", "pdf.fonttype": 42, "font.size": 9}
_DATES: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def styled(doing: str) -> Iterator[None]:
    """Draw inside with this project's settings; ``doing`` is named where matplotlib is missing."""
    with needed_package("matplotlib", "plots", doing):
        import matplotlib
    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(inches: tuple[float, float] = INCHES) -> Figure:
    """Return an empty figure, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=inches, layout="constrained")


def axes_of(ax: Axes | None, inches: tuple[float, float] = INCHES) -> Axes:
    """Return the axes to draw into: the caller's, or those of a new figure.

    Raises ``ConfigError`` for anything else, as a figure or an array of axes.
    """
    if ax is None:
        return new_figure(inches).add_subplot()
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise ConfigError(
            f"ax: {type(ax).__name__}; expected one matplotlib Axes, as figure.add_subplot() "
            "returns it"
        )
    return ax


def figure_of(axes: Axes) -> Figure:
    """Return the figure that axes are on, also where a part of it holds them."""
    from matplotlib.figure import Figure

    figure = axes.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def tidied(axes: Axes) -> Axes:
    """Return axes with a light grid and without the box; with a legend of more than one name."""
    axes.set_axisbelow(True)
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=7, frameon=False)
    return axes


def plain_text(text: str) -> str:
    """Return a text in which matplotlib reads no mathematics and no name to be hidden."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def check_format(path: str | Path) -> str:
    """Return a file's format by its ending; ``ConfigError`` if no figure is written as that."""
    name = Path(path).name
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(
            f"output: {name!r}; expected a name that ends in {', '.join(FORMATS)}"
            f"{suggest(kind, FORMATS)}"
        )
    return kind


def save_figure(figure: Figure, output: str | Path) -> Path:
    """Write a figure; the file's ending chooses the format: svg, png or pdf.

    Equal figures make equal files. Folders are made where there are none. Raises ``ConfigError``
    for another ending.
    """
    path, kind = Path(output), check_format(output)
    drawn = io.BytesIO()
    with styled("writing a figure"):
        figure.savefig(drawn, format=kind, dpi=150, metadata=_DATES.get(kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn.getvalue())
    return path
