"""Compares a candidate with a baseline within budgets, and says what a person needs to know."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.measures import Measure, entry_of, parse_measure
from sluice.retrieval.evaluation.non_inferiority import Decision, Verdict, decide
from sluice.retrieval.studies.gate.lost import LostQuery, lost_queries
from sluice.retrieval.studies.gate.opening import given_judgements, is_run, run_again, system_of
from sluice.retrieval.studies.gate.system import COSTS, LATENCIES, System
from sluice.retrieval.studies.report.failures import judges_few

WORST_FIRST: Final[tuple[Verdict, ...]] = ("worse", "cannot tell", "not worse")
PARTS: Final = {"queries": "queries", "judged": "judgements", "corpus": "documents"}
EXAMPLE: Final = "as nDCG@10=.01, R@100=2%, p95_ms=20% or bytes=10%"


class Budget(NamedTuple):
    """What may be lost of a measure or cost: an ``amount``, or a share of the baseline's figure."""

    name: str
    amount: float
    share: bool

    def of(self, figure: float) -> float:  # noqa: D102
        return self.amount * abs(figure) if self.share else self.amount


@dataclass(frozen=True, slots=True)
class Checked:
    """One budget: figures, verdict, a measure's decision, how a cost was compared."""

    name: str
    baseline: float
    candidate: float
    budget: float
    verdict: Verdict
    decision: Decision | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on all budgets, notes to read before the figures, and what it rests on.

    ``lost`` are the queries that lost most by the first measure.
    """

    verdict: Verdict
    baseline: str
    candidate: str
    queries: int
    checked: tuple[Checked, ...]
    notes: tuple[str, ...]
    lost: tuple[LostQuery, ...]
    testing: SignificanceTest


def gate(
    baseline: Any,
    candidate: Any = None,
    *,
    budgets: Mapping[str, float | str] | Sequence[str],
    qrels: Any = None,
    system: str | None = None,
    testing: SignificanceTest | None = None,
    overrides: Sequence[str] = (),
    allow: Collection[str] = (),
) -> Gate:
    """Decide whether ``candidate`` is worse than ``baseline`` by more than ``budgets`` allow.

    Either is an output folder of ``sluice run``, a run (or its file) with ``qrels``, a ``.json``
    that ``sluice gate record`` wrote, or an experiment's YAML file, which is run. Without a
    candidate the experiment of the baseline's folder is run again. ``overrides``, texts
    ``key.path=value``, change settings of what is run. ``budgets`` are losses by measure or cost:
    ``{"nDCG@10": 0.01, "p95_ms": "20%"}``, or texts ``NAME=LOSS``. ``qrels`` are judgements, or
    their file or dataset; a run without takes those of the other side.
    Raises ``ConfigError`` and ``DataError`` for what cannot be compared.
    """
    pairs = budgets.items() if isinstance(budgets, Mapping) else ()
    parsed = [_budget(text) for text in [*(f"{n}={v}" for n, v in pairs)] or list(budgets)]
    if len({each.name for each in parsed}) != max(1, len(parsed)):
        wrong = "one is given twice" if parsed else "none is given"
        raise ConfigError(f"--budget: {wrong}; give what may be lost, {EXAMPLE}")
    if isinstance(baseline, str | Path) and str(baseline) == str(candidate):
        raise ConfigError(f"{baseline}: is baseline and candidate; give two")
    if candidate is None and not (isinstance(baseline, str | Path) and Path(baseline).is_dir()):
        raise ConfigError(f"{baseline}: has no experiment to run again; give a candidate")
    measures = [measure_of(each.name) for each in parsed if each.name not in COSTS]
    truth = given_judgements(qrels)
    before = None if truth is None and is_run(baseline) else system_of(
        baseline, truth, system, allow=allow)  # fmt: skip
    if before is not None and before.run is None:  # recorded: faults are found before any work
        before, system = before.scored(measures), system or before.facts.system or None
    own = before.qrels if truth is None and before is not None else truth
    if candidate is None:
        after = run_again(Path(baseline), system, overrides, allow)
    else:
        after = system_of(candidate, own, system, overrides, allow, beside=baseline)
    before = before or system_of(baseline, after.qrels, system, allow=allow)
    after = after.scored(measures, truth)
    others = before.qrels is not None and after.qrels is not None and before.qrels != after.qrels
    before = before.scored(measures, truth if truth is not None or not others else after.qrels)
    queries = _same_queries(before, after) if measures else []
    testing = testing or SignificanceTest()
    checked = _measured(before, after, queries, parsed, testing)
    checked |= {each.name: _cost(before, after, each) for each in parsed if each.name in COSTS}
    return Gate(
        min((each.verdict for each in checked.values()), key=WORST_FIRST.index),
        before.where, after.where, len(queries), tuple(checked[each.name] for each in parsed),
        tuple(_notes(before, after, rescored=others and truth is None)),
        tuple(lost_queries(before, after, queries)), testing,
    )  # fmt: skip


def _budget(text: str) -> Budget:
    match = re.fullmatch(r"(.+)=\s*(\d*\.?\d+(?:e-?\d+)?)\s*(%?)\s*", text)  # a measure may have =
    if match is None:
        raise ConfigError(f"--budget {text}: expected NAME=LOSS, {EXAMPLE}")
    name, amount, share = match[1].strip(), float(match[2]), bool(match[3])
    amount /= 100 if share else 1
    if name not in COSTS and not 0 < amount < 1:
        raise ConfigError(
            f"--budget {text}: no number of queries proves that nothing is lost, and no measure "
            f"loses 1 or more; give the smallest loss that matters, {EXAMPLE}"
        )
    return Budget(name if name in COSTS else str(measure_of(name)), amount, share)


def measure_of(name: str) -> Measure:
    """Return a measure by which a gate can decide; ``ConfigError`` for totals and faults."""
    try:
        measure = parse_measure(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; costs are {', '.join(COSTS)}") from None
    entry = entry_of(measure.name)
    if entry.over != "mean" or entry.fault:
        raise ConfigError(
            f"{name}: a gate needs a mean over queries, the larger the better, such as nDCG@10"
        )
    return measure


def _same_queries(before: System, after: System) -> list[str]:
    """Return the queries of both; ``DataError`` unless these and their judgements are the same."""
    one, two = (list(next(iter(each.values.values()))) for each in (before, after))
    where = f"{after.where} and {before.where}"
    if only := set(one) ^ set(two):
        raise DataError(
            f"{where}: not the same queries: {len(set(one) & set(two)):,} are in both, "
            f"{len(only):,} in one of them (such as {min(only)!r}); record the baseline again with "
            "the queries of now"
        )
    if len(one) < 2:
        raise DataError(f"{where}: a single query says nothing of others; expected two or more")
    if _same("qrels", before, after) is False:
        raise DataError(
            f"{where}: the judgements have changed since the values were recorded, which therefore "
            "answer another question; record the baseline again from its run"
        )
    return one


def _same(part: str, before: System, after: System) -> bool | None:
    """Whether both have a part in common; None where one does not know."""
    hashes = [each.facts.fingerprints.get(part) for each in (before, after)]
    return None if None in hashes else hashes[0] == hashes[1]


def _measured(
    before: System, after: System, queries: Sequence[str], budgets: Sequence[Budget],
    testing: SignificanceTest,
) -> dict[str, Checked]:  # fmt: skip
    one, two = (
        {name: np.array([by_query[q] for q in queries]) for name, by_query in side.values.items()}
        for side in (before, after)
    )
    means = {name: float(values.mean()) for name, values in one.items()}
    amounts = {each.name: each.of(means[each.name]) for each in budgets if each.name in means}
    if zeros := [name for name, amount in amounts.items() if amount <= 0]:
        raise ConfigError(f"--budget {zeros[0]}: a share of 0, the mean of {before.where}")
    decisions = decide(one, two, amounts, testing, same=_same("run", before, after) is True)
    return {
        name: Checked(name, means[name], float(two[name].mean()), amounts[name], each.verdict, each)
        for name, each in decisions.items()
    }


def _cost(before: System, after: System, budget: Budget) -> Checked:
    """Compare a cost; one of another machine by the task timed beside it."""
    name, old, new = budget.name, before.facts, after.facts
    for each in (before, after):
        if name not in each.facts.costs:
            raise ConfigError(
                f"--budget {name}: {each.where} has no such cost; an output folder has, and a "
                "baseline recorded from one"
            )
    one, two, speed, note = old.costs[name], new.costs[name], 1.0, ""
    low, high = new.bounds.get(name, [None, None]) if name in LATENCIES else [two, two]
    if name in LATENCIES and old.machine != new.machine:
        note = "measured on another machine, without the fixed task; evaluate both again"
        if old.reference and new.reference:
            speed = new.reference / old.reference
            note = f"on another machine, whose fixed task takes {speed:.2f} times as long"
        else:
            low = high = None
    limit = (one + budget.of(one)) * speed
    verdict: Verdict = "cannot tell"
    if high is not None and high <= limit:
        verdict = "not worse"
    elif low is not None and low > limit:
        verdict = "worse"
    elif low is not None:
        note += f"; between {low:.2f} and {'more' if high is None else f'{high:.2f}'} ms"
    return Checked(name, one * speed, two, limit - one * speed, verdict, None, note.strip("; "))


def _notes(before: System, after: System, *, rescored: bool) -> Iterator[str]:
    """Yield what a person should know before the figures."""
    old, new = before.facts, after.facts
    if rescored:
        yield f"the judgements have changed; both are scored by those of {after.where}"
    for part, words in PARTS.items():
        if _same(part, before, after) is False:
            yield f"the {words} have changed since the baseline: not the systems alone are compared"
    if empty := sum(not ids for ids in after.first.values()):
        yield f"{empty:,} queries have no hit in {after.where} and score 0"
    if _same("run", before, after):
        yield "the first documents of every query are the same"
    if any(new.trained.values()):
        yield (
            f"training texts hold {sum(new.trained.values()):,} tested queries, those of the "
            f"baseline {sum(old.trained.values()):,}"
        )
    judged = [f", {m} {v:.4f} to {new.judged_only.get(m, 0):.4f}"
              for m, v in old.judged_only.items() if m in new.judged_only]  # fmt: skip
    if judged and not judges_few(after.qrels or {}):
        yield (
            f"unjudged of the first 10 documents: {old.unjudged or 0:.1%} to "
            f"{new.unjudged or 0:.1%}; over judged documents alone{''.join(judged)}"
        )
    dates = {each.where: each.facts.written for each in (before, after)}
    yield from (f"{where}: evaluated {written}" for where, written in dates.items() if written)
