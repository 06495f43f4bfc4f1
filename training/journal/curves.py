"""The journals of training runs: written, read as series over steps, and drawn in panels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.figures import csv_text
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import is_number

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
