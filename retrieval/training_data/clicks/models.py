"""What a click log says: models of clicks fitted by EM, and their report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import is_number, plural
from sluice.retrieval.evaluation.table import Table, Value
from sluice.retrieval.training_data.clicks.log import (
    SETTLED,
    STEPS,
    Counts,
    Looks,
    looks_of,
    read_log,
    sessions_of,
)

log = logging.getLogger("sluice")

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Model = Literal["counts", "pbm", "cascade", "dbn"]
MODELS: Final = ("counts", "pbm", "cascade", "dbn")


class Cells(NamedTuple):
    """Impressions and clicks of each (pair, position): five arrays of one length.

    ``pairs`` and ``places`` number pairs and positions; ``positions`` ``[K]`` are the latter's own
    numbers, ascending.
    """

    pairs: Whole
    places: Whole
    impressions: Floats
    clicks: Floats
    positions: Whole

    def by_place(self, values: Floats) -> Floats:
        """Return the sums of ``values`` by position, ``[K]``."""
        return np.bincount(self.places, values, len(self.positions)).astype(np.float64)

    def by_pair(self, values: Floats) -> Floats:
        """Return the sums of ``values`` by pair, ``[P]``."""
        return np.bincount(self.pairs, values, int(self.pairs.max()) + 1).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a click model makes of a log.

    By position, ``[K]``: ``impressions``, ``clicks``, and ``examination``, the chance that a user
    looks there. By pair of query and document, ``[P]``: how often it was ``shown`` and ``clicked``,
    its clicks that count (``credited``), how often it was looked at (``examined``), and its clicks
    if every impression had been (``weights``).
    """

    model: Model
    counts: Counts
    positions: Whole
    impressions: Floats
    clicks: Floats
    examination: Floats
    shown: Floats
    clicked: Floats
    credited: Floats
    examined: Floats
    weights: Floats
    steps: int = 0

    def relevance(self, smoothing: float = 0.0) -> Floats:
        """Return by pair the chance that a user who looks at the document finds it relevant.

        ``(credited + smoothing p) / (examined + smoothing)``, at most 1, p being the mean of all;
        0 for what nobody looked at.
        """
        mean = float(self.credited.sum() / self.examined.sum()) if self.examined.any() else 0.0
        least = np.finfo(np.float64).tiny
        values = (self.credited + smoothing * mean) / np.maximum(self.examined + smoothing, least)
        return np.minimum(np.where(self.examined > 0, values, 0.0), 1.0)

    def as_dict(self) -> dict[str, object]:
        """Return the figures by position as JSON values; ``propensities`` reads them again."""
        return {
            "model": self.model,
            "positions": self.positions.tolist(),
            "impressions": self.impressions.astype(int).tolist(),
            "clicks": self.clicks.astype(int).tolist(),
            "examination": self.examination.tolist(),
            "queries": len(self.counts.queries),
            "pairs": len(self.counts.pairs),
            "rows": self.counts.rows,
        }


def estimate(
    paths: Sequence[Path],
    model: Annotated[
        Model, "counts, pbm (position bias), cascade, or dbn (continues after a click)."
    ] = "pbm",
    *,
    propensities: Sequence[float] | Mapping[int, float] | None = None,
    clip: float = 0.0,
) -> Estimate:
    """Read logs and explain their clicks.

    ``counts``: every impression was looked at. ``pbm``: position k is looked at with a probability
    of its own, and clicked if the document is relevant too; by expectation maximisation, or given
    as ``propensities`` from position 1 on, or by position (Richardson, Dominowska and Ragno 2007;
    Wang et al. 2018, WSDM, eq. 4 to 6). ``cascade``: a user looks from the top down until the first
    click (Craswell et al. 2008, WSDM). ``dbn``: and continues after a click that did not satisfy,
    so that relevant is what attracts a click and then satisfies (Chapelle and Zhang 2009, WWW, the
    dynamic Bayesian network with perseverance 1). Examination of ``pbm`` below ``clip`` counts as
    ``clip``.

    Raises ``DataError`` for a log without clicks, and for positions that no documents connect.
    """
    if model not in MODELS:
        raise ConfigError(f"model: {model!r}, expected {', '.join(MODELS)}")
    counts = Counts()
    if model in ("cascade", "dbn"):
        looks = looks_of(sessions_of(read_log(paths)), counts, first=model == "cascade")
        return _of_pages(model, counts, _cells(counts, paths), looks)
    for row in read_log(paths):
        counts.add(row)
    cells = _cells(counts, paths)
    steps = 0
    examination = np.ones(len(cells.positions))
    if model == "pbm":
        if propensities is not None:
            examination = _at_positions(cells.positions, propensities)
        else:
            _check_connected(cells, paths)
            examination, _, steps = position_bias(cells)
    looked = np.maximum(examination, clip)[cells.places]
    clicks = cells.by_pair(cells.clicks)
    return Estimate(
        model, counts, cells.positions,
        impressions=cells.by_place(cells.impressions), clicks=cells.by_place(cells.clicks),
        examination=examination,
        shown=cells.by_pair(cells.impressions), clicked=clicks, credited=clicks,
        examined=cells.by_pair(cells.impressions * looked),
        weights=cells.by_pair(_shares(cells.clicks, looked)), steps=steps,
    )  # fmt: skip


def position_bias(cells: Cells) -> tuple[Floats, Floats, int]:
    """Estimate the position-based model by expectation maximisation.

    Returns the examination of the positions ``[K]`` as a share of the highest, the pairs' relevance
    ``[P]`` on that scale (a click is their product), and the steps that were taken.
    """
    shown, clicks = cells.impressions, cells.clicks
    of_place, of_pair = cells.by_place(shown), cells.by_pair(shown)
    rates = cells.by_place(clicks) / of_place
    examination = rates / max(rates.max(), 1e-12)
    relevance = (cells.by_pair(clicks) + 0.5) / (of_pair + 1.0)
    step = 0
    while step < STEPS:
        step += 1
        looked, attractive = examination[cells.places], relevance[cells.pairs]
        silent = (shown - clicks) / np.maximum(1.0 - looked * attractive, 1e-12)
        before = examination
        examination = cells.by_place(clicks + silent * looked * (1.0 - attractive)) / of_place
        relevance = cells.by_pair(clicks + silent * attractive * (1.0 - looked)) / of_pair
        top = examination.max()
        scaled = examination / top
        if np.abs(scaled - before / before.max()).max() < SETTLED:
            break
    else:
        log.warning(
            "click model pbm: not settled after %s steps; the log says little about some positions",
            f"{STEPS:,}",
        )
    return scaled, relevance * top, step


def _of_pages(model: Model, counts: Counts, cells: Cells, looks: Looks) -> Estimate:
    pairs = len(counts.pairs)
    clicks, shown = cells.by_pair(cells.clicks), cells.by_pair(cells.impressions)
    stayed, steps = (np.zeros(len(looks.often)), 0) if model == "cascade" else looks.stayed(clicks)
    decided = looks.often * (1.0 - stayed)
    credited = np.bincount(looks.last, decided, pairs).astype(np.float64)
    further = (looks.often * stayed)[looks.groups]
    examined = looks.seen_by_pair(pairs) + np.bincount(looks.below, further, pairs)
    impressions = cells.by_place(cells.impressions)
    places = np.searchsorted(cells.positions, looks.below_positions)
    depth = np.array([looks.by_position.get(k, 0) for k in cells.positions.tolist()], np.float64)
    depth += np.bincount(places, further, len(depth))
    return Estimate(
        model, counts, cells.positions, impressions=impressions,
        clicks=cells.by_place(cells.clicks), examination=depth / impressions, shown=shown,
        clicked=clicks, credited=credited, examined=examined,
        weights=_shares(shown * credited, examined), steps=steps,
    )  # fmt: skip


def _shares(values: Floats, wholes: Floats) -> Floats:
    """Return ``values / wholes``, 0 where there is nothing to divide."""
    return np.where(values > 0, values / np.where(wholes > 0, wholes, 1.0), 0.0)


def _cells(counts: Counts, paths: Sequence[Path]) -> Cells:
    keys = np.array(list(counts.cells), np.int64)
    values = np.array(list(counts.cells.values()), np.float64)
    if not values[:, 1].any():
        raise DataError(
            f"{paths[0]}: not one click in {counts.rows:,} rows, so nothing tells documents apart; "
            "is 'clicked' (or 'clicks') the right column?"
        )
    positions, places = np.unique(keys[:, 1], return_inverse=True)
    return Cells(keys[:, 0], places, values[:, 0], values[:, 1], positions)


def _at_positions(positions: Whole, propensities: Sequence[float] | Mapping[int, float]) -> Floats:
    known = check_propensities(propensities, "propensities")
    missing = next((each for each in positions.tolist() if each not in known), None)
    if missing is not None:
        raise DataError(
            f"propensities: {len(known)} for positions {min(known)} to {max(known)}, and the log "
            f"has position {missing}; give one for each position, or leave propensities out and "
            "they are estimated"
        )
    return np.array([known[position] for position in positions.tolist()])


def check_propensities(values: object, where: str) -> dict[int, float]:
    """Return propensities by position; ``ConfigError`` unless they are above 0, at most 1."""
    if isinstance(values, Sequence) and not isinstance(values, str):
        values = dict(enumerate(values, 1))
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{where}: {values!r:.60}, expected a number for each position")
    for place, value in values.items():
        if not is_number(value) or not 0 < value <= 1:
            raise ConfigError(
                f"{where}: {value!r:.40} for position {place}, expected a number above 0, at most 1"
            )
    return {place: float(value) for place, value in values.items()}


def _check_connected(cells: Cells, paths: Sequence[Path]) -> None:
    """Refuse positions whose bias no clicked document, shown at two of them, compares."""
    parents = list(range(len(cells.positions)))

    def root(place: int) -> int:
        while parents[place] != place:
            parents[place] = place = parents[parents[place]]
        return place

    for group in _places_of_clicked(cells):
        for other in group[1:]:
            parents[root(other)] = root(group[0])
    apart = [place for place in range(len(parents)) if root(place) != root(0)]
    if apart:
        first, other = (int(cells.positions[place]) for place in (0, apart[0]))
        raise DataError(
            f"{paths[0]}: positions {first} and {other} show no clicked document of the same query "
            "in common, directly or by way of others, so that the bias of one cannot be told from "
            "the other's; give propensities, leave such rows out, or take another model"
        )


def _places_of_clicked(cells: Cells) -> Iterator[list[int]]:
    clicked = cells.by_pair(cells.clicks) > 0
    order = np.argsort(cells.pairs, kind="stable")
    order = order[clicked[cells.pairs[order]]]
    starts = np.flatnonzero(np.diff(cells.pairs[order], prepend=-1))
    for places in np.split(cells.places[order], starts[1:]):
        yield places.tolist()


SHOWN = 5  # positions in a line


def looked_at(estimated: Estimate) -> Table:
    """Return the figures by position: what was shown, clicked and, by the model, looked at."""
    table = Table({"impressions": ",.0f", "clicks": ",.0f", "clicked": ".4f", "looked at": ".4f"})
    figures = zip(
        estimated.positions.tolist(), estimated.impressions.tolist(), estimated.clicks.tolist(),
        estimated.examination.tolist(), strict=True,
    )  # fmt: skip
    for position, shown, clicks, examination in figures:
        row: dict[str, Value] = {
            "impressions": shown, "clicks": clicks, "clicked": clicks / shown,
            "looked at": examination,
        }  # fmt: skip
        table.rows[f"position {position}"] = row
    return table


def summary(estimated: Estimate) -> str:
    """Return one line about a log: its size, and where its users looked."""
    counts, clicks = estimated.counts, int(estimated.clicks.sum())
    by_position = zip(estimated.positions.tolist(), estimated.examination.tolist(), strict=True)
    shares = [f"{position}: {share:.2f}" for position, share in by_position]
    more = ", ..." if len(shares) > SHOWN else ""
    return (
        f"{plural(counts.rows, 'row')}, {plural(len(counts.queries), 'query')}, "
        f"{plural(len(counts.documents), 'document')}, {plural(clicks, 'click')}; "
        f"{estimated.model}: looked at by position {', '.join(shares[:SHOWN])}{more}"
    )
