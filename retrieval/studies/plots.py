"""Draws a figure from a folder, one line each: training, trade-offs, cascades, differences, depths.

Needs matplotlib: ``pip install 'sluice-ir[plots]'``. Each returns a ``matplotlib`` figure, and
draws into a part of the caller's figure where ``ax`` is given; ``save_figure`` writes it. Values
that are at hand are drawn by the functions of ``sluice.retrieval.evaluation.plots``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.config.sections import ExperimentConfig, RetrieverSection, checked
from sluice.retrieval.evaluation.comparison import baseline_of
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.plots import (
    Point,
    draw_depths,
    draw_differences,
    draw_tradeoff,
)
from sluice.retrieval.evaluation.table import Table, add_costs
from sluice.retrieval.experiments.output.results import RESULTS, read_results
from sluice.retrieval.experiments.tuning.experiment import FOLDER as TUNE, draw_cascades
from sluice.retrieval.experiments.tuning.tuner import Trial
from sluice.retrieval.studies.report.evaluated import EvaluatedSet, open_sets, recall_curves
from sluice.training.journal import draw_trainings, read_trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS = {
    "p50 ms": "median latency, ms a query", "p95 ms": "p95 latency, ms a query",
    "p99 ms": "p99 latency, ms a query", "index MB": "index size, MB",
    "bytes/doc": "index size, bytes a document", "peak MB": "peak memory, MB",
}  # fmt: skip
_NUMBERS = ("value", "p50_ms", "p95_ms", "price", "pairs")  # of a trial


def plot_training(*folders: str | Path, panel: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw loss, dev measures, learning rate and what else training runs logged, over steps.

    ``folders`` are those of training runs, finished or not, or of experiments; their curves are
    overlaid. ``panel`` chooses one part by its title, as "Loss". Raises ``DataError`` for a folder
    without a training run and ``ConfigError`` for a panel that there is not.
    """
    return draw_trainings(read_trainings(folders), panel=panel, ax=ax)


def plot_tradeoff(
    folder: str | Path,
    measure: str | None = None,
    cost: str = "p50 ms",
    *,
    ax: Axes | None = None,
    allow: Collection[str] = (),
) -> Figure:
    """Draw the systems of an evaluation by cost and measure.

    Retrievers with the same encoder and index that differ in their ``search`` parameters only, as
    ``nprobe``, are one line, each point labelled with them. ``cost`` is a column of the table of
    results: p50 ms, p95 ms, p99 ms, index MB, bytes/doc or peak MB. Nothing but ``results.json`` is
    read. Raises ``ConfigError`` for a measure or cost that was not recorded.
    """
    results = _results(Path(folder), allow)
    systems = {str(each["name"]): each for each in results["systems"]}
    known = list(next(iter(systems.values()))["measures"])
    chosen = _known(known[0] if measure is None else str(parse_measure(measure)), known, "measure")
    table = Table(rows={name: {} for name in systems})
    add_costs(table, systems)
    costs = [column for column in table.columns if column in UNITS]
    if not costs:
        raise DataError(f"{folder}: no cost was recorded; set evaluate.latency_queries: 100")
    _known(cost, costs, "cost")
    config = _config(results)
    groups: dict[str, list[tuple[str, str, Point]]] = {}
    for name, system in systems.items():
        value, spent = system["measures"].get(chosen), table.rows[name][cost]
        if value is not None and isinstance(spent, int | float):
            key, settings = _setting(config, name)
            groups.setdefault(key, []).append((name, settings, Point(spent, float(value))))
    return draw_tradeoff(
        dict(_line(group) for group in groups.values()),
        cost=UNITS[cost], quality=f"{chosen}, {results['dataset']}", ax=ax,
    )  # fmt: skip


def plot_cascades(
    folder: str | Path, *, ax: Axes | None = None, allow: Collection[str] = ()
) -> Figure:
    """Draw what ``sluice tune`` tried: measure against cost, by depth, the front and the choice.

    ``folder`` is the output of ``sluice tune``, or ``tune/`` in it. Raises ``DataError`` where it
    holds no tuning, or one in another form.
    """
    place = Path(folder)
    refuse_links(place, allow)
    place = place / TUNE if (place / TUNE / "front.json").is_file() else place
    front = place / "front.json"
    if not front.is_file():
        raise DataError(f"{folder}: no front.json here; expected the output folder of sluice tune")
    facts: Any = read_json(front)
    try:
        with (place / "trials.csv").open(encoding="utf-8", newline="") as lines:
            trials = [_trial(row) for row in csv.DictReader(lines)]
        return draw_cascades(
            trials, measure=str(facts["measure"]), cost=str(facts["cost"]),
            front=[_trial(each) for each in facts["front"]], chosen=_trial(facts["chosen"]), ax=ax,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{place}: front.json and trials.csv are not as sluice tune writes them "
            f"({type(error).__name__}: {error}); tune again"
        ) from None


def plot_differences(
    folder: str | Path,
    system: str | None = None,
    baseline: str | None = None,
    measure: str | None = None,
    *,
    ax: Axes | None = None,
    allow: Collection[str] = (),
) -> Figure:
    """Draw a bar for each query: what a system of an evaluation gains or loses.

    The baseline is that of the evaluation unless named, the system the best of the others by the
    measure, which is the first. Values are computed from the runs and the dataset's judgements.
    Raises ``ConfigError`` for an unknown system or measure, or where there is one system only.
    """
    evaluated = _evaluated(Path(folder), allow)
    measures = list(evaluated.systems[0]["measures"])
    chosen = _known(
        measures[0] if measure is None else str(parse_measure(measure)), measures, "measure"
    )
    scores = evaluated.scores([chosen])
    base = baseline_of(scores, evaluated.baseline if baseline is None else baseline)
    others = [name for name in scores if name != base]
    if not others:
        raise ConfigError(f"{folder}: {base} is the only system; expected two to compare")
    best = max(others, key=lambda name: scores[name].mean[chosen])
    one = _known(best if system is None else system, list(scores), "system")
    if one == base:
        raise ConfigError(f"system: {one!r} is the baseline; name another of {', '.join(others)}")
    return draw_differences(scores[one], scores[base], chosen, names=(one, base), ax=ax)


def plot_depths(
    folder: str | Path, *, ax: Axes | None = None, allow: Collection[str] = ()
) -> Figure:
    """Draw each system's mean recall by the depth of its list, up to the runs' depth.

    It shows what a reranker could still find. Values are computed from the runs and the dataset's
    judgements.
    """
    curves = recall_curves(_evaluated(Path(folder), allow))
    return draw_depths(curves["systems"], curves["depths"], ax=ax)


def _results(folder: Path, allow: Collection[str]) -> dict[str, Any]:
    refuse_links(folder, allow)
    results = read_results(folder, allow)
    if results.get("datasets") is not None:
        names = [str(name) for name in results["datasets"]]
        raise ConfigError(
            f"{folder}: holds {len(names)} datasets; give the folder of one, as "
            f"{folder / 'datasets' / names[0]}"
        )
    return results


def _evaluated(folder: Path, allow: Collection[str]) -> EvaluatedSet:
    _results(folder, allow)
    return open_sets(folder, allow)[0]


def _known(name: str, names: Collection[str], what: str) -> str:
    if name not in names:
        raise ConfigError(
            f"{what}: {name!r} is not in {RESULTS}; there are {', '.join(names)}"
            f"{suggest(name, names)}"
        )
    return name


def _config(results: Mapping[str, Any]) -> ExperimentConfig | None:
    """Return what was evaluated, None where that is not recorded or another version wrote it."""
    config = (results.get("origin") or {}).get("config")
    try:
        return checked(config, ExperimentConfig) if isinstance(config, Mapping) else None
    except ConfigError:
        return None


def _setting(config: ExperimentConfig | None, system: str) -> tuple[str, str]:
    """Return the key of a system's line, and its search parameters as a label."""
    retriever: RetrieverSection | None = None
    if config is not None:
        name = config.pipelines.get(system, system) if config.pipelines else system
        retriever = config.retrievers.get(name)
    if retriever is None:
        return f"system {system}", ""
    label = ", ".join(f"{key} {value}" for key, value in retriever.search.items())
    return repr(retriever.as_built), label or "default"


def _line(group: list[tuple[str, str, Point]]) -> tuple[str, list[Point]]:
    """Return the name and the points of a line: labelled where there are several."""
    names = [name for name, _, _ in group]
    if len(group) == 1:
        return names[0], [group[0][2]]
    common = names[0]
    while not all(name.startswith(common) for name in names):
        common = common[:-1]
    return common.rstrip("-_.= ") or " / ".join(names), [
        point._replace(label=label) for _, label, point in group
    ]


def _trial(row: Mapping[str, Any]) -> Trial:
    numbers = {name: float(row[name]) for name in _NUMBERS}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError(f"a number of {row['pipeline']!r:.80} is not finite")
    return Trial(pipeline=str(row["pipeline"]), **numbers)
