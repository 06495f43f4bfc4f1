"""Reads the names of measures in any spelling, the user's own included, and computes them.

The built-in ones are in ``measure_table``; a user's own is ``my_package.module:name``.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.evaluation.judgements import Ints, Judgements, Values
from sluice.retrieval.evaluation.measure_table import MEASURES, Entry, Setting, largest_grade
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Run


class Hubness(NamedTuple):
    """``skewness`` of the k-occurrences, and what makes it.

    ``largest`` is the number of queries that have the commonest document among their first k,
    ``never`` the share of documents that no query has, and ``hubs`` the commonest documents with
    their numbers.
    """

    skewness: float
    largest: int
    never: float
    hubs: tuple[tuple[str, int], ...]


def hubness(run: Run, k: int = 10, *, documents: int | None = None) -> Hubness:
    """Return how uneven the k-occurrences N_k of documents are: their skewness and their hubs.

    N_k(d) is the number of queries with d among their first ``k`` hits; its skewness E[(N - m)^3] /
    s^3 is 0 for an even spread and grows with hubs (Radovanovic, Nanopoulos and Ivanovic, 2010).
    ``documents`` is the size of the corpus; unless given, those the run has at any depth are all.
    """
    k = whole_number(k, "k", 1)
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for ranking in run.values():
        counts.update(ranking.doc_ids[:k])
        if documents is None:
            seen.update(ranking.doc_ids)
    total = len(seen) if documents is None else whole_number(documents, "documents", 0)
    if total < len(counts):
        raise ConfigError(f"documents: {total:,}, but the run's first hits are {len(counts):,}")
    if not total:
        return Hubness(0.0, 0, 0.0, ())
    occurrences = np.zeros(total)
    occurrences[: len(counts)] = list(counts.values())
    centred = occurrences - occurrences.mean()
    variance = float(np.mean(centred**2))
    skewness = float(np.mean(centred**3)) / variance**1.5 if variance > 0 else 0.0
    hubs = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10])
    largest = hubs[0][1] if hubs else 0
    return Hubness(skewness, largest, 1.0 - len(counts) / total, hubs)


SPELLINGS = {
    spelling: name
    for name, entry in MEASURES.items()
    for spelling in (name.lower(), *entry.spellings)
}
EXAMPLES = (
    "nDCG@10, R@100, R_cap@100, P@5, AP, AP@100, RR@10, Success@5, Rprec, Bpref, infAP, IPrec@0.1, "
    "SetF, GMAP, ERR@20, RBP(p=0.8), NumRelRet, Judged@10, Hole@10"
)
_FORM = re.compile(
    r"(?P<name>[a-z]+(?:_[a-z]+)*)"
    r"(?P<before>\([^()]*\))?"
    r"(?:[@._](?P<at>\d+(?:\.\d+)?))?"
    r"(?P<after>\([^()]*\))?",
    re.IGNORECASE,
)
_OWN_FORM = re.compile(
    r"(?P<name>[^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*(?:\.\w+)*)"
    r"(?P<before>\([^()]*\))?"
    r"(?:@(?P<at>\d+))?"
    r"(?P<after>\([^()]*\))?"
)
OWN_SIGNATURE = "(judgements, cutoff, level) -> values [queries]"


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure; ``str`` gives its canonical text, such as ``nDCG@10`` or ``AP(rel=2)@100``.

    ``cutoff`` is the number of documents looked at, None for all; a grade of ``level`` or more is
    relevant (nDCG and ERR use the grades themselves, a negative one as 0). ``option`` is the number
    that some measures have besides: p of RBP, beta of SetF, the recall of IPrec, and the largest
    grade of ERR (None: the largest of the qrels). The name of a user's own measure is where it is
    imported from, ``my_package.module:name``.
    """

    name: str
    cutoff: int | None = None
    level: int = 1
    option: float | None = None

    def __str__(self) -> str:
        kind = entry_of(self.name)
        options = [f"rel={self.level}"] if self.level != 1 else []
        at = str(self.cutoff) if self.cutoff else ""
        option = kind.default if self.option is None else self.option
        if kind.at:
            at = f"{option:.12g}"
        elif option != kind.default or kind.option == "p":
            options.insert(0, f"{kind.option}={option:.12g}")
        return self.name + (f"({','.join(options)})" if options else "") + (f"@{at}" if at else "")


def measure_names(texts: Iterable[str]) -> list[str]:
    """Return the names in texts such as ``nDCG@10, AP``; a comma within brackets separates none."""
    names = (name.strip() for text in texts for name in re.split(r",(?![^(]*\))", text))
    return [name for name in names if name]


def own_measure(text: object) -> str | None:
    """Return the ``package.module:name`` of the user's own measure in a text; None without one."""
    own = _OWN_FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    return None if own is None else own["name"]


def parse_measure(text: str | Measure) -> Measure:
    """Return the measure a text names: ``nDCG@10``, ``ndcg_cut_10``, ``map``, ``P(rel=2)@5``, ...

    Raises ``ConfigError`` for an unknown name, a cut-off that is missing, 0 or one too many, and a
    relevance level or another number that the measure does not have or that is out of its range,
    and for a measure of the user's own, ``my_package.module:name@10``, that cannot be imported.
    """
    if isinstance(text, Measure):
        return text
    own = _OWN_FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if own is not None:
        return _checked(text, own["name"], _options(text, own["before"], own["after"]), own["at"])
    match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    name = SPELLINGS.get(match["name"].lower()) if match else None
    if match is None or name is None:
        near = _near(str(text).strip())
        raise ConfigError(f"unknown measure {text!r}; known: {EXAMPLES}{near}")
    options = _options(text, match["before"], match["after"])
    if name == "nDCG" and {"dcg", "gain"} & set(options):
        gain = (options.pop("dcg", "") or options.pop("gain")).strip("'\"").lower()
        if gain not in ("linear", "log2", "exp", "exp-log2"):
            raise ConfigError(f"measure {text!r}: dcg is 'exp-log2', or left out for linear gains")
        name = "nDCG" if gain in ("linear", "log2") else "nDCG_exp"
    if name == "NumRet" and "rel" in options:  # ir_measures writes it so
        name = "NumRelRet"
    return _checked(text, name, options, match["at"])


def _near(text: str) -> str:
    """Return ``; did you mean 'nDCG@10'?`` for a misspelt name, its cut-off kept."""
    spelled = re.split(r"[@.(]|_?\d", text)[0]
    near = difflib.get_close_matches(spelled.lower(), SPELLINGS, n=1, cutoff=0.6)
    if not near:
        return ""
    rest = text[len(spelled) :].lstrip("_").split(",")[0]  # of a list, the first
    meant = SPELLINGS[near[0]] + (f"@{rest}" if rest[:1].isdigit() else rest)
    return f"; did you mean {meant if _FORM.fullmatch(meant) else SPELLINGS[near[0]]!r}?"


def _options(text: str, *groups: str | None) -> dict[str, str]:
    """Return the numbers in brackets, ``rel=2,p=0.5``, by name."""
    options: dict[str, str] = {}
    for part in (part for group in groups if group for part in group[1:-1].split(",")):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"measure {text!r}: {part!r} in brackets; expected such as rel=2")
        if key.lower() in options:
            what = "the relevance level" if key == "rel" else key
            raise ConfigError(f"measure {text!r}: {what} is given twice")
        options[key.lower()] = value
    return options


def _checked(text: str, name: str, options: dict[str, str], at: str | None) -> Measure:
    kind = entry_of(name)
    level = _level(text, name, options.pop("rel", "1"))
    if kind.option and at is not None and (kind.at or kind.cutoff == "none"):
        if kind.option in options:
            raise ConfigError(f"measure {text!r}: {kind.option} is given twice")
        options[kind.option], at = at, None  # iprec_at_recall_0.10, set_F_0.5
    option = kind.default
    if kind.option in options:
        option = _number(text, kind, options.pop(kind.option))
    elif kind.at:
        raise ConfigError(f"measure {text!r} needs a {kind.option}, as in {name}@0.1")
    if options:
        takes = [*([] if kind.no_level else ["rel"]), *([kind.option] if kind.option else [])]
        raise ConfigError(
            f"measure {text!r}: {name} has no {next(iter(options))!r}; "
            f"it takes {' and '.join(takes) or 'nothing in brackets'}"
        )
    if at is not None and kind.cutoff == "none":
        raise ConfigError(f"measure {text!r}: {name} looks at all documents; leave out the cut-off")
    if (at is None and kind.cutoff == "needed") or (at is not None and not int(float(at))):
        raise ConfigError(f"measure {text!r} needs a cut-off of 1 or more, as in {name}@10")
    if at is not None and "." in at:
        raise ConfigError(f"measure {text!r}: the cut-off {at} is not a whole number")
    return Measure(name, int(at) if at is not None else None, level, option)


def _level(text: str, name: str, written: str) -> int:
    level = int(written) if re.fullmatch(r"\d{1,9}", written) else 0
    if level < 1:
        raise ConfigError(f"measure {text!r}: a relevance level is 1 or more")
    if level != 1 and entry_of(name).no_level:
        raise ConfigError(
            f"measure {text!r}: {name} takes no relevance level, {entry_of(name).no_level}"
        )
    return level


def _number(text: str, kind: Entry, written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = -1.0
    integer = kind.option != "max" or number == int(number)
    if not (kind.low <= number <= kind.high and integer):
        raise ConfigError(
            f"measure {text!r}: {kind.option}={written}; expected a "
            f"{'whole ' if kind.option == 'max' else ''}number from {kind.low:g} to {kind.high:g}"
        )
    return number


def entry_of(name: str) -> Entry:
    """Return what is known of a measure: the table's entry, or the user's own measure imported."""
    return MEASURES.get(name) or _own_entry(name)


@cache
def _own_entry(name: str) -> Entry:
    try:
        measure = resolve(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"measure {name!r} cannot be imported ({error}); expected package.module:name, a "
            f"function {OWN_SIGNATURE}"
        ) from error
    try:
        inspect.signature(measure).bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"measure {name!r}: expected a function {OWN_SIGNATURE} ({error})"
        ) from None

    def values(judgements: Judgements, setting: Setting) -> Values:
        scores = np.asarray(measure(judgements, setting.cutoff, setting.level), dtype=np.float64)
        queries = len(judgements.retrieved)
        if scores.shape != (queries,) or not np.isfinite(scores).all():
            raise ConfigError(
                f"measure {setting.text!r} returned an array of shape {scores.shape}; expected a "
                f"finite number for each of the {queries:,} queries"
            )
        return scores

    return Entry(values, cutoff="optional")


def compute(measure: Measure, judgements: Judgements) -> Values:
    """Return the measure's value for every query.

    It is 0 where a query has nothing relevant, except for what counts something else (``NumRet``,
    ``Judged``, ``Hole``, ``RBP_residual``).
    """
    entry = entry_of(measure.name)
    option = entry.default if measure.option is None else measure.option
    setting = Setting(measure.cutoff, measure.level, option, str(measure))
    return entry.values(judgements.cut(measure.cutoff), setting)


def over_queries(measure: Measure, values: Values) -> float:
    """Return a measure's one value for many queries, as trec_eval does.

    The mean; the total of what counts documents; the geometric mean of ``GMAP``.
    """
    over = entry_of(measure.name).over
    if over == "total":
        return float(values.sum())
    mean = float(values.mean())
    return float(np.exp(mean)) if over == "geometric" else mean


def settled(measure: Measure, grades: Ints) -> Measure:
    """Return the measure with ERR's largest grade, unless given, taken from all ``grades``.

    For callers of ``compute`` that give it one part of the queries after another.
    """
    if entry_of(measure.name).option != "max" or measure.option is not None:
        return measure
    return replace(measure, option=largest_grade(grades))


def at_level(measures: Sequence[Measure], level: int) -> list[Measure]:
    """Return measures of which a grade of ``level`` or more is relevant, as in ``P(rel=2)@5``.

    A measure that names a level of its own above 1 keeps it; those by grade (nDCG) have none.
    """
    whole_number(level, "level", 1)
    return [
        each if each.level != 1 or entry_of(each.name).no_level else replace(each, level=level)
        for each in measures
    ]


def depth_of(measures: list[Measure]) -> int | None:
    """Return how many documents per query the measures look at, None for all of them."""
    cutoffs = [measure.cutoff for measure in measures]
    return None if None in cutoffs else max((c for c in cutoffs if c is not None), default=0)


def depth_for(measures: Iterable[Measure]) -> int:
    """Return how many documents a query needs: 1,000, or the deepest cut-off of a measure."""
    return max([DEPTH, *(measure.cutoff or 0 for measure in measures)])
