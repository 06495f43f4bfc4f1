"""The journals of training runs: written, read as series over steps, and drawn in panels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.disk.figures import (
    COLOURS,
    DASHES,
    axes_of,
    check_format,
    csv_text,
    figure_of,
    new_figure,
    plain_text,
    save_figure,
    styled,
    tidied,
)
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.training.protocol import DevMeasures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


VALUES = "dev-values.json"  # in the output of a training run: every dev query's value by step


def note_values(output: Path, step: int, measures: Mapping[str, float]) -> None:
    """Keep every query's value at a step, for the comparison with the start."""
    if isinstance(measures, DevMeasures):
        path = output / VALUES
        noted = read_json(path) if path.exists() and step else {}
        write_json(path, {**noted, str(step): list(measures.by_query)})


METRICS = "metrics.jsonl"  # the journal, in the output folder of a training run
TRAINING = "training.json"  # beside it: what is trained there, with its settings
SUMMARY = ("step", "epoch", "total_flos", "train_")  # of a line: no series
SHORT_TARGETS = {"query": "target_query_terms", "document": "target_doc_terms"}


class Series(NamedTuple):
    """Values by step."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> int:
        """The place of the first largest value."""
        return max(range(len(self.values)), key=self.values.__getitem__)


@dataclass(frozen=True, slots=True)
class Curves:
    """One training: its series by the journal's names, and target numbers of active terms."""

    name: str
    series: Mapping[str, Series]
    targets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure's part: title, what its vertical axis shows, and the series in it.

    A ``prefix`` is left out of labels; ``best`` marks each series' largest value; ``log`` allows a
    logarithmic axis; ``targets`` draws the runs' targets.
    """

    title: str
    axis: str
    names: tuple[str, ...]
    prefix: str = ""
    best: bool = False
    log: bool = False
    targets: bool = False


# Title, axis, names (or beginnings, with a star) and further settings of a panel.
_PANELS: tuple[tuple[str, str, tuple[str, ...], dict[str, Any]], ...] = (
    ("Loss", "loss", ("loss", "loss_ranking", "loss_masked_language"), {}),
    ("Sparsity penalties", "weighted penalty", ("loss_sparsity_*",), {"prefix": "loss_sparsity_"}),
    ("Dev measures", "measure", ("eval_*",), {"prefix": "eval_", "best": True}),
    ("Learning rate", "learning rate", ("learning_rate",), {}),
    ("Gradient norm", "norm", ("grad_norm",), {"log": True}),
    (
        "Active terms", "terms per text", ("active_terms_*",),
        {"prefix": "active_terms_", "log": True, "targets": True},
    ),
    (
        "Sparsity weights", "weight", ("sparsity_weight_*",),
        {"prefix": "sparsity_weight_", "log": True},
    ),
    ("Sparsity strength", "share of the weights", ("sparsity_strength",), {}),
    ("Postings cost", "multiplications per document", ("postings_cost",), {"log": True}),
    ("Index size", "MB per million documents", ("index_mb_per_million",), {"log": True}),
    ("Age of the negatives", "steps since mined", ("negatives_age",), {}),
)  # fmt: skip


def read_trainings(folders: Iterable[str | Path]) -> list[Curves]:
    """Read all training runs in the folders, each that of one training or an experiment's output.

    Each is named by the shortest end of its path that is unique. Raises ``DataError`` for a folder
    without a journal.
    """
    trainings: list[Path] = []
    for folder in map(Path, folders):
        own = folder / METRICS
        journals = [own] if own.is_file() else sorted(folder.rglob(METRICS))
        if not journals:
            raise DataError(
                f"{folder}: contains no {METRICS}; give the folder of one training run or "
                "of an experiment"
            )
        trainings += [file.parent for file in journals if file.parent not in trainings]
    if not trainings:
        raise DataError("training runs: no folder is given; expected one of a training run or more")
    names = _distinct_names([folder.resolve() for folder in trainings])
    return [
        Curves(name, _series(folder / METRICS), _targets(folder / TRAINING))
        for name, folder in zip(names, trainings, strict=True)
    ]


def panels_of(trainings: Sequence[Curves]) -> list[Panel]:
    """Return the panels that have data; a series that belongs to none gets its own."""
    unplaced = list(dict.fromkeys(name for training in trainings for name in training.series))
    panels = []
    for title, axis, patterns, settings in _PANELS:
        names = tuple(n for n in unplaced if any(_fits(n, pattern) for pattern in patterns))
        if names:
            panels.append(Panel(title, axis, names, **settings))
            unplaced = [name for name in unplaced if name not in names]
    return panels + [Panel(_title(name), "value", (name,)) for name in unplaced]


def as_csv(trainings: Iterable[Curves]) -> str:
    """Return all values as CSV with the columns training, name, step and value."""
    rows = [
        (training.name, name, step, value)
        for training in trainings
        for name, series in training.series.items()
        for step, value in zip(*series, strict=True)
    ]
    return csv_text([("training", "name", "step", "value"), *rows])


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _title(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _series(journal: Path) -> dict[str, Series]:
    points: dict[str, dict[int, float]] = {}
    for text in journal.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
            step = int(line["step"])
        except (ValueError, TypeError, KeyError):
            break  # the last line of a killed process
        for name, value in line.items():
            if is_number(value) and not name.startswith(SUMMARY):
                points.setdefault(name, {})[step] = float(value)
    if not points:
        raise DataError(f"{journal}: no training step is logged")
    return {n: Series(tuple(at), tuple(at.values())) for n, at in points.items()}


def _targets(settings: Path) -> dict[str, float]:
    """Read the target numbers of active terms from a run's settings."""
    try:
        sparsity: Any = json.loads(settings.read_text(encoding="utf-8")).get("sparsity") or {}
    except (OSError, ValueError, AttributeError):
        return {}
    targets = {}
    for side, short in SHORT_TARGETS.items():
        penalty = sparsity.get(side)
        target = sparsity.get(short) or (penalty or {}).get("target_terms")
        if isinstance(target, (int, float)):
            targets[f"active_terms_{side}"] = float(target)
    return targets


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ; a folder called training is left out."""
    paths = [[part for part in folder.parts if part != "training"] for folder in folders]
    for parts in range(1, 1 + max(map(len, paths))):
        names = ["/".join(path[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


COLUMNS = 3
PANEL_INCHES = (4.0, 2.8)
MARKED = 30  # a series of no more points has its points drawn
DECADES = 100  # a range as wide as this is drawn on a logarithmic axis


def draw_trainings(
    trainings: Sequence[Curves], *, panel: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw training runs, a panel for each kind of number that they logged; return the figure.

    ``panel`` chooses one by its title, as "Loss"; ``ax`` has room for one only. Raises
    ``ConfigError`` for a panel that the runs lack, ``DataError`` for no runs, and
    ``MissingPackageError`` without matplotlib.
    """
    if not trainings:
        raise DataError("training curves: no training run is given, so there is nothing to draw")
    panels = {each.title: each for each in panels_of(trainings)}
    if panel is not None and panel not in panels:
        raise ConfigError(
            f"panel: {panel!r}; the runs have {', '.join(panels)}{suggest(panel, panels)}"
        )
    if ax is not None and panel is None and len(panels) > 1:
        raise ConfigError(
            f"ax: one part of a figure has no room for {len(panels)} panels; choose one with "
            f"panel={next(iter(panels))!r}"
        )
    chosen = list(panels.values()) if panel is None else [panels[panel]]
    with styled("plotting training curves"):
        if len(chosen) == 1:
            axes = axes_of(ax, PANEL_INCHES)
            _draw(axes, chosen[0], trainings)
            return figure_of(axes)
        columns = min(COLUMNS, len(chosen))
        rows = -(-len(chosen) // columns)
        figure = new_figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows))
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        for place, each in enumerate(chosen, start=1):
            _draw(figure.add_subplot(rows, columns, place), each, trainings)
        return figure


def plot_trainings(trainings: Sequence[Curves], output: str | Path) -> Path:
    """Draw the curves of training runs into a file; its ending chooses the format: svg, png or pdf.

    Equal curves make equal files. Raises ``ConfigError`` for another ending and
    ``MissingPackageError`` without matplotlib.
    """
    check_format(output)
    return save_figure(draw_trainings(trainings), output)


def _draw(axes: Axes, panel: Panel, trainings: Sequence[Curves]) -> None:
    """Draw a panel: runs differ by colour, their series by dashes; a single run's by colour."""
    lowest, highest = math.inf, -math.inf
    for place, training in enumerate(trainings):
        for number, name in enumerate(panel.names):
            series = training.series.get(name)
            if series is None:
                continue
            several = len(trainings) > 1
            colour = COLOURS[(place if several else number) % len(COLOURS)]
            axes.plot(
                series.steps,
                series.values,
                color=colour,
                linestyle=DASHES[number % len(DASHES)] if several else "-",
                linewidth=1.3,
                marker="." if len(series.steps) <= MARKED else None,
                label=plain_text(_label(panel, name, training, several=several)),
            )
            if panel.best:
                best = series.best
                axes.plot(series.steps[best], series.values[best], "*", color=colour, markersize=10)
            target = training.targets.get(name) if panel.targets else None
            if target is not None:
                axes.axhline(target, color=colour, linestyle=":", linewidth=0.9)
            lowest, highest = min(lowest, *series.values), max(highest, *series.values)
    if panel.log and lowest > 0 and highest / lowest >= DECADES:
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(panel.axis)
    tidied(axes)


def _label(panel: Panel, name: str, training: Curves, *, several: bool) -> str:
    label = name.removeprefix(panel.prefix).replace("_", " ")
    if not several:
        return label
    return training.name if len(panel.names) == 1 else f"{training.name}: {label}"
