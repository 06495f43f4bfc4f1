"""The table of ``bench_sparse.py``: what was measured, beside what it should be."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from bench_sparse_timing import SEISMIC_OVERLAP

Figures = dict[str, Any]


class Target(NamedTuple):
    """What a ratio should be: at most, or (``least``) at least."""

    must: float
    stretch: float
    size: int | None = None  # documents the target was set for; None is any
    least: bool = False


Targets = tuple[Target, ...]

# By collection size; a collection of another size is held against the nearest.
TOP_10: Targets = (Target(0.4, 0.25, 200_000), Target(0.5, 0.3, 1_000_000))
TOP_1000: Targets = (Target(0.1, 0.03, 200_000), Target(0.25, 0.15, 1_000_000))
EXACT_TO_U8 = (Target(1.3, 1.1),)
SCIPY = (Target(0.015, 0.008, 1_000_000),)
SEISMIC = (Target(0.6, 0.4, 200_000),)
PLANNER_MEAN, PLANNER_P99 = (Target(1.15, 1.05),), (Target(1.3, 1.05),)
TWO_THREADS = (Target(1.7, 1.95, least=True),)
FILE = {
    "exact": (Target(0.95, 0.6, 1_000_000),),
    "u8": (Target(0.65, 0.4, 1_000_000),),
}
MEMORY = BUILD = (Target(0.2, 0.1, 1_000_000),)
TEXT_INDEXING = (Target(1.0, 0.5),)
FIRST_QUERY = (Target(50.0, 10.0),)  # milliseconds, not a ratio


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; ``ratio`` is None where a peer is missing, and ``note`` says why."""

    name: str
    ours: str
    theirs: str
    ratio: float | None
    must: float | None = None
    stretch: float | None = None
    verdict: str = ""
    note: str = ""


def row(
    name: str, ours: str, theirs: str, ratio: float | None, targets: Targets = (), size: int = 0,
    note: str = "",
) -> Row:  # fmt: skip
    """Return a row held against the target for the size, or against the nearest size's."""
    if not targets:
        return Row(name, ours, theirs, ratio, note=note)
    target = min(
        targets, key=lambda t: 0.0 if t.size is None else abs(np.log(t.size / max(size, 1)))
    )
    if target.size not in (None, size):
        note = "; ".join(filter(None, [f"target is for {target.size:,}", note]))
    verdict = "not measured"
    if ratio is not None:
        sign = -1 if target.least else 1
        reached = [sign * ratio <= sign * bar for bar in (target.stretch, target.must)]
        verdict = "stretch met" if reached[0] else "met" if reached[1] else "NOT MET"
    return Row(name, ours, theirs, ratio, target.must, target.stretch, verdict, note)


def missing(name: str, why: str, targets: Targets = (), size: int = 0) -> Row:
    """Return a row that could not be measured."""
    return row(name, "-", "-", None, targets, size, why)


class Times:
    """Milliseconds ``[rounds, queries]`` of each engine on one set of queries, at one k."""

    def __init__(self, report: Figures) -> None:
        self.overlap: dict[str, float] = report["overlap"]
        self._times = {
            name: np.array(lines, dtype=np.float64)
            for name, lines in report["milliseconds"].items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def text(self, name: str) -> str:
        """Median and 99th percentile over the queries of each query's median."""
        times = self._times[name]
        each = np.median(times[:, ~np.isnan(times[0])], axis=0)
        return f"{np.median(each):.3f} / {np.percentile(each, 99):.3f} ms"

    def ratio(self, ours: str, theirs: str) -> float:
        """Median of the ratios of two answers to one query, given right after each other."""
        return float(np.nanmedian(self._times[ours] / self._times[theirs]))

    def summary(self) -> Figures:
        """Median, mean and 99th percentile of each engine, for the JSON file."""
        return {
            name: {
                "median": float(np.nanmedian(times)), "mean": float(np.nanmean(times)),
                "p99": float(np.nanpercentile(times, 99)), "overlap": self.overlap[name],
            }
            for name, times in self._times.items()
        }  # fmt: skip


def summary(timing: Figures) -> Figures:
    """Return an interleaved run's figures without the single times."""
    kept = {k: timing[k] for k in ("wrong", "checked")}
    return {**kept, **{k: Times(timing[k]).summary() for k in ("10", "1000")}}


def speed_rows(label: str, size: int, timing: Figures, absent: dict[str, str]) -> list[Row]:
    """Rows of the interleaved run over one collection; one of real texts (size 0) has no target."""
    rows = []
    for k, bmp_targets, scipy_targets in (("10", TOP_10, SCIPY), ("1000", TOP_1000, ())):
        times = Times(timing[k])
        what = f"top-{k}, {label}"

        def line(
            ours: str, peer: str, named: str, note: str = "", targets: Targets = (),
            times: Times = times, what: str = what,
        ) -> None:  # fmt: skip
            name, held = f"`{ours}` {what}: {named}", targets if size else ()
            if peer in times:
                texts = (times.text(ours), times.text(peer))
                rows.append(row(name, *texts, times.ratio(ours, peer), held, size, note))
            elif peer in absent:
                rows.append(missing(name, absent[peer], held, size))

        overlap = times.overlap
        line("u8", "bmp", "bmp", f"its overlap with exact {overlap.get('bmp', 0):.3f}", bmp_targets)
        line("exact", "bmp", "bmp")
        note = f"overlap of u8 with exact {overlap['u8']:.4f}"
        line("exact", "u8", "`u8`", note, EXACT_TO_U8)
        line("exact", "scipy", "scipy inverted CSR", "", scipy_targets)
        line("exact", "loop", "naver/splade-style loop")
        note = f"overlap {overlap.get('bm25s', 0):.3f}: its analysis differs"
        line("exact", "bm25s", "bm25s", note)
    return rows


def seismic_row(label: str, size: int, timing: Figures, why: str) -> Row:
    """Our exact top-10 against seismic's fastest setting whose overlap suffices."""
    times = Times(timing["10"])
    name = f"`exact` top-10, {label}: seismic at {SEISMIC_OVERLAP} overlap"
    settings = [name for name in times.overlap if name.startswith("seismic")]
    if not settings:
        return missing(name, why, SEISMIC, size)
    (peer,) = settings
    if round(times.overlap[peer], 6) < SEISMIC_OVERLAP:
        why = f"its best, {peer}, has only {times.overlap[peer]:.4f}"
        return missing(name, why, SEISMIC, size)
    note = f"{peer}, overlap {times.overlap[peer]:.4f}"
    ratio = times.ratio("exact", peer)
    return row(name, times.text("exact"), times.text(peer), ratio, SEISMIC, size, note)


def planner_rows(label: str, size: int, timings: list[Figures]) -> list[Row]:
    """The planner's choice against the faster engine of each query, by each one's least time."""
    reports = [report for timing in timings for report in timing["planner"].values()]
    planned, blocks, terms = (
        np.concatenate([report[name] for report in reports])
        for name in ("exact", "exact, blocks", "exact, terms")
    )
    better = np.minimum(blocks, terms)
    ratios = planned / better
    note = (
        f"of the sums {planned.sum() / better.sum():.3f}; "
        f"blocks are better for {np.mean(blocks < terms):.0%}"
    )
    name = f"planner, {label}, k = 10, 100, 1000: better engine per query"
    rows = []
    for what, of, targets in (
        ("mean", np.mean, PLANNER_MEAN),
        ("p99", lambda values: np.percentile(values, 99), PLANNER_P99),
    ):
        texts = (f"{of(planned):.3f} ms {what}", f"{of(better):.3f} ms {what}")
        rows.append(row(f"{name}, {what}", *texts, float(of(ratios)), targets, size, note))
        note = f"of the 99th percentiles {np.divide(*np.percentile([planned, better], 99, 1)):.3f}"
    return rows


def resource_rows(label: str, size: int, figures: Figures, absent: dict[str, str]) -> list[Row]:
    """Files, memory and build time against bmp's."""
    built, served = figures["build"], figures["serve"]
    rows = []
    for kind in ("exact", "u8"):
        for what, key, unit, measured, targets in (
            ("file", "megabytes", "MB", built, FILE[kind]),
            ("resident memory while searching", "peak_megabytes", "MB", served, MEMORY),
            ("peak memory of the build", "peak_megabytes", "MB", built, MEMORY),
            ("build time", "seconds", "s", built, BUILD),
        ):
            name = f"{what}, `{kind}`, {label}: bmp"
            ours = measured[kind][key]
            if "bmp" not in measured:
                why = absent.get("bmp", "not run")
                rows.append(row(name, f"{ours:,.1f} {unit}", "-", None, targets, size, why))
                continue
            theirs = measured["bmp"][key]
            note = _build_note(built[kind], built["bmp"]) if key == "seconds" else ""
            texts = (f"{ours:,.1f} {unit}", f"{theirs:,.1f} {unit}")
            rows.append(row(name, *texts, ours / theirs, targets, size, note))
    return rows


def _build_note(ours: Figures, theirs: Figures) -> str:
    """Processor time, which a busy machine stretches less, and when theirs was measured."""
    parts = ["theirs from an earlier run"] if theirs.get("earlier") else []
    if "cpu_seconds" in theirs:
        spent = (ours["cpu_seconds"], theirs["cpu_seconds"])
        parts.append(f"processor time {spent[0]:.1f} / {spent[1]:.1f} s: {spent[0] / spent[1]:.3f}")
    return "; ".join(parts)


def threads_row(label: str, size: int, report: Figures) -> Row:
    """Throughput of two threads over that of one: a ratio to exceed."""
    pairs = [one / two for one, two in zip(report["one"], report["two"], strict=True)]
    count = report["queries"]
    rate = {n: 1000 * count / statistics.median(report[n]) for n in ("one", "two")}
    best = min(report["one"]) / min(report["two"])
    texts = (f"{rate['two']:,.0f} queries/s", f"{rate['one']:,.0f} queries/s")
    name = f"two threads, `exact` top-10, {label}: one thread"
    note = f"of the best rounds {best:.2f}"
    return row(name, *texts, statistics.median(pairs), TWO_THREADS, size, note)


def first_query_row(label: str, size: int, runs: list[dict[str, float]]) -> Row:
    """Milliseconds from opening to the first answer, beyond numba's start-up."""
    steps = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    after = statistics.median(run["open"] + run["first"] for run in runs)
    note = (
        f"milliseconds, not a ratio: open {steps['open']:.1f}, answer {steps['first']:.1f}; "
        f"imports of ours before that {steps['imports']:.1f}"
    )
    name = f"first query after opening, `exact`, {label}: numba's start-up"
    texts = (f"+ {after:.1f} ms", f"{steps['numba']:.1f} ms")
    return row(name, *texts, after, FIRST_QUERY, size, note)


def text_indexing_row(report: Figures, dataset: str) -> Row:
    """BM25 from texts to an index that can be searched."""
    name = f"BM25 tokenise + index, {dataset}: bm25s"
    seconds, count = report["seconds"], report["documents"]
    rates = {who: f"{count / statistics.median(s):,.0f} documents/s" for who, s in seconds.items()}
    if "bm25s" not in seconds:
        return row(name, rates["ours"], "-", None, TEXT_INDEXING, 0, "bm25s is not installed")
    pairs = [a / b for a, b in zip(seconds["ours"], seconds["bm25s"], strict=True)]
    ratio = statistics.median(pairs)
    return row(name, rates["ours"], rates["bm25s"], ratio, TEXT_INDEXING, 0)


def exactness_row(wrong: int, checked: int) -> Row:
    """How many of our timed answers differ from brute force, in a row or a score."""
    verdict = "met" if not wrong else "NOT MET"
    ours = f"{wrong:,} wrong of {checked:,} answers"
    return Row("every timed answer: brute force", ours, "-", None, verdict=verdict)


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table."""
    lines = ["| row | ours | theirs | ratio | must | stretch | | note |", "|---" * 8 + "|"]
    for one in rows:
        cells = [
            one.name, one.ours, one.theirs, _number(one.ratio), _number(one.must),
            _number(one.stretch), one.verdict, one.note,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_records(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, for the JSON file."""
    return [asdict(one) for one in rows]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 0.1 else f"{value:.3g}"
