"""Draw training, trade-offs, differences.

Figures for papers and talks, from the folders that the other verbs write: svg, png or pdf, in
colours that the colour-blind and a grey printer tell apart. docs/gallery.md shows them with the
line of Python that makes each. They need matplotlib: `pip install 'sluice-ir[plots]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sluice.encoders.foundation.disk.figures import check_format, save_figure
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import Allow, allowed
from sluice.retrieval.cli.terminal.verbs import Command, Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Evaluated = Annotated[Path, "FOLDER", "The output folder of run or evaluate."]
Output = Annotated[
    Path | None, "The .svg, .png or .pdf file to write.", Shown("FOLDER/plots/VERB.svg")
]
MeasureName = Annotated[str | None, "MEASURE", "The measure to draw.", Shown("the first")]


def training(
    folders: Annotated[
        list[Path], "FOLDER", "Folders of training runs, finished or not, or of run."
    ],
    *,
    output: Output = None,
    panel: Annotated[
        str | None, "TITLE", "Draw this part only, as Loss.", Shown("all that were logged")
    ] = None,
) -> None:
    """Draw loss, dev measures and rates by step.

    Several folders are overlaid. A star marks the best value of a dev measure.

    Example:
      sluice plot training runs/quickstart --output curves.pdf
    """
    from sluice.retrieval.studies.plots import plot_training

    path = _path(output, folders[0], "training")
    if output is None:
        refuse_links(folders[0], ())  # plots/ in somebody's folder may lead elsewhere
    _write(plot_training(*folders, panel=panel), path)


def tradeoff(
    folder: Evaluated,
    *,
    output: Output = None,
    measure: MeasureName = None,
    cost: Annotated[str, "p50 ms, p95 ms, p99 ms, index MB, bytes/doc or peak MB."] = "p50 ms",
    allow: Allow = None,
) -> None:
    """Draw the systems by cost and quality.

    Retrievers that differ in their `search` parameters only, as nprobe or ef_search, are one line.

    Example:
      sluice plot tradeoff runs/indexes -m R@100 --cost 'index MB'
    """
    from sluice.retrieval.studies.plots import plot_tradeoff

    path = _path(output, folder, "tradeoff")
    _write(plot_tradeoff(folder, measure, cost, allow=allowed(allow)), path)


def cascades(
    folder: Annotated[Path, "FOLDER", "The output folder of tune."],
    *,
    output: Output = None,
    allow: Allow = None,
) -> None:
    """Draw what tune tried, by depth and cost.

    Example:
      sluice plot cascades runs/tune
    """
    from sluice.retrieval.studies.plots import plot_cascades

    path = _path(output, folder, "cascades")
    _write(plot_cascades(folder, allow=allowed(allow)), path)


def differences(
    folder: Evaluated,
    *,
    output: Output = None,
    system: Annotated[
        str | None, "NAME", "The system to draw.", Shown("the best beside the baseline")
    ] = None,
    baseline: Annotated[
        str | None, "NAME", "What it is compared with.", Shown("the evaluation's baseline")
    ] = None,
    measure: MeasureName = None,
    allow: Allow = None,
) -> None:
    """Draw a bar per query: gained or lost.

    Example:
      sluice plot differences runs/quickstart --system cascade --baseline bm25
    """
    from sluice.retrieval.studies.plots import plot_differences

    path = _path(output, folder, "differences")
    _write(plot_differences(folder, system, baseline, measure, allow=allowed(allow)), path)


def depths(folder: Evaluated, *, output: Output = None, allow: Allow = None) -> None:
    """Draw recall by the depth of the list.

    Example:
      sluice plot depths runs/quickstart
    """
    from sluice.retrieval.studies.plots import plot_depths

    path = _path(output, folder, "depths")
    _write(plot_depths(folder, allow=allowed(allow)), path)


def _path(output: Path | None, folder: Path, verb: str) -> Path:
    """Return where the figure goes; its ending is checked before any work."""
    path = folder / "plots" / f"{verb}.svg" if output is None else output
    check_format(path)
    return path


def _write(figure: Figure, path: Path) -> None:
    save_figure(figure, path)
    echo(f"{path}: {path.stat().st_size:,} bytes")


COMMANDS: dict[str, Command] = {
    "training": training, "tradeoff": tradeoff, "cascades": cascades,
    "differences": differences, "depths": depths,
}  # fmt: skip
