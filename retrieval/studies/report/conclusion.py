"""Says the result of an evaluation in one sentence: what is best, by how much, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluice.retrieval.studies.report.evaluated import EvaluatedSet


def conclusion(evaluated: EvaluatedSet) -> str:
    """Return the sentence: by the first measure the best system, and which is the fastest."""
    systems = {str(each["name"]): each for each in evaluated.systems}
    measure = next(iter(next(iter(systems.values()))["measures"]))
    values = {name: float(each["measures"][measure]) for name, each in systems.items()}
    best = max(values, key=values.__getitem__)
    tied = [name for name, value in values.items() if value == values[best]]
    value = f"{measure} {short(values[best])}"
    if len(systems) == 1:
        return f"{best} has {value}{_time(systems[best])}."
    if len(tied) > 1:
        verb = f"{', '.join(tied[:-1])} and {tied[-1]} are best: {value}"
    elif best == evaluated.baseline:
        verb = f"{best}, the baseline, is best: {value}{_time(systems[best])}"
    else:
        against = _against(evaluated.results.get("comparisons") or [], best, measure)
        verb = f"{best} is best: {value}{against}{_time(systems[best])}"
    cheapest = _cheapest(systems)
    if cheapest == best:
        return f"{verb}; it is the fastest too."
    if cheapest is None:
        return f"{verb}."
    return f"{verb}; {cheapest} is the fastest{_time(systems[cheapest])}."


def short(value: float, sign: str = "") -> str:
    """Return a number as tables of results have it: .511, or 1.250."""
    text = format(value, f"{sign}.3f").replace("-", "−")
    return text.replace("0.", ".", 1) if abs(float(f"{value:.3f}")) < 1 else text


def _against(comparisons: Sequence[Mapping[str, Any]], system: str, measure: str) -> str:
    for each in comparisons:
        if (each["system"], each["measure"]) != (system, measure):
            continue
        low, high = each.get("low"), each.get("high")
        interval = (
            "" if low is None or high is None else f" [{short(low, '+')}, {short(high, '+')}]"
        )
        doubt = "" if each["significant"] else ", which may be chance"
        return f", {short(each['difference'], '+')}{interval} over {each['baseline']}{doubt}"
    return ""


def _time(system: Mapping[str, Any]) -> str:
    median = (system.get("latency_ms") or {}).get("p50")
    return "" if median is None else f", {_milliseconds(median)} a query"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _cheapest(systems: Mapping[str, Mapping[str, Any]]) -> str | None:
    times = {
        name: median
        for name, each in systems.items()
        if (median := (each.get("latency_ms") or {}).get("p50")) is not None
    }
    return min(times, key=times.__getitem__) if len(times) > 1 else None
