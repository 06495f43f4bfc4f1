"""Measures: their one spelling, and the others that are understood.

Canonical names are those of ir_measures (MacAvaney, Macdonald and Ounis, 2022) where it has one;
trec_eval's names, and those of BEIR's output, mean the same measures. ``measure_values`` computes
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number


class Kind(NamedTuple):
    """What a measure may be given.

    ``cutoff`` says whether it has one; ``no_level`` why it takes no relevance level, empty where it
    does. ``option`` is the name of its further number, ``default`` that number's value unless
    given, and ``low`` to ``high`` (both included) its range. ``at`` is true where the number stands
    behind the @, as the recall of ``IPrec@0.1`` does.
    """

    cutoff: Literal["needed", "optional", "none"]
    no_level: str = ""
    option: str = ""
    default: float | None = None
    low: float = 0.0
    high: float = 0.0
    at: bool = False


_GRADES = "it uses the grades themselves"
_JUDGED = "any grade counts as judged"
KINDS: Mapping[str, Kind] = {
    "nDCG": Kind("optional", _GRADES),
    "nDCG_exp": Kind("optional", _GRADES),
    "P": Kind("needed"),
    "R": Kind("needed"),
    "R_cap": Kind("needed"),
    "Success": Kind("needed"),
    "AP": Kind("optional"),
    "GMAP": Kind("none"),
    "RR": Kind("optional"),
    "Rprec": Kind("none"),
    "Bpref": Kind("none"),
    "infAP": Kind("none"),
    "IPrec": Kind("none", option="recall", low=0.0, high=1.0, at=True),
    "SetP": Kind("none"),
    "SetRelP": Kind("none"),
    "SetR": Kind("none"),
    "SetF": Kind("none", option="beta", default=1.0, low=0.0, high=1e6),
    "SetAP": Kind("none"),
    "NumRet": Kind("none", "it counts every document"),
    "NumRel": Kind("none"),
    "NumRelRet": Kind("none"),
    "ERR": Kind("optional", _GRADES, option="max", low=1.0, high=30.0),
    "RBP": Kind("optional", option="p", default=0.8, low=0.001, high=0.999),
    "RBP_residual": Kind("optional", _JUDGED, option="p", default=0.8, low=0.001, high=0.999),
    "Judged": Kind("needed", _JUDGED),
    "Hole": Kind("needed", _JUDGED),
}
SPELLINGS = {
    "ndcg": "nDCG", "ndcg_cut": "nDCG", "ndcg_exp": "nDCG_exp", "ndcg_burges": "nDCG_exp",
    "r": "R", "recall": "R",
    "r_cap": "R_cap", "recall_cap": "R_cap", "capped_recall": "R_cap", "relative_p": "R_cap",
    "p": "P", "precision": "P", "prec": "P",
    "ap": "AP", "map": "AP", "map_cut": "AP",
    "gmap": "GMAP", "gm_map": "GMAP",
    "rr": "RR", "mrr": "RR", "recip_rank": "RR", "reciprocal_rank": "RR",
    "success": "Success", "hit": "Success", "hits": "Success", "hit_rate": "Success",
    "rprec": "Rprec", "r_prec": "Rprec", "r_precision": "Rprec",
    "bpref": "Bpref", "infap": "infAP",
    "iprec": "IPrec", "iprec_at_recall": "IPrec",
    "setp": "SetP", "set_p": "SetP", "setrelp": "SetRelP", "set_relative_p": "SetRelP",
    "setr": "SetR", "set_recall": "SetR", "setf": "SetF", "set_f": "SetF",
    "setap": "SetAP", "set_map": "SetAP",
    "numret": "NumRet", "num_ret": "NumRet",
    "numrel": "NumRel", "num_rel": "NumRel",
    "numrelret": "NumRelRet", "num_rel_ret": "NumRelRet",
    "err": "ERR", "rbp": "RBP", "rbp_residual": "RBP_residual",
    "judged": "Judged", "hole": "Hole",
}  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure; ``str`` gives its canonical text, such as ``nDCG@10`` or ``AP(rel=2)@100``.

    ``cutoff`` is the number of documents looked at, None for all; a grade of ``level`` or more is
    relevant (nDCG and ERR use the grades themselves, a negative one as 0). ``option`` is the number
    that some measures have besides: p of RBP, beta of SetF, the recall of IPrec, and the largest
    grade of ERR (None: the largest of the qrels).
    """

    name: str
    cutoff: int | None = None
    level: int = 1
    option: float | None = None

    def __str__(self) -> str:
        kind = KINDS[self.name]
        given = [f"rel={self.level}"] if self.level != 1 else []
        at = str(self.cutoff) if self.cutoff else ""
        option = kind.default if self.option is None else self.option
        if kind.at:
            at = f"{option:.12g}"
        elif option != kind.default or kind.option == "p":
            given.insert(0, f"{kind.option}={option:.12g}")
        return self.name + (f"({','.join(given)})" if given else "") + (f"@{at}" if at else "")


def parse_measure(text: str | Measure) -> Measure:
    """Return the measure a text names: ``nDCG@10``, ``ndcg_cut_10``, ``map``, ``P(rel=2)@5``, ...

    Raises ``ConfigError`` for an unknown name, a cut-off that is missing, 0 or one too many, and a
    relevance level or another number that the measure does not have or that is out of its range.
    """
    if isinstance(text, Measure):
        return text
    found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    name = SPELLINGS.get(found["name"].lower()) if found else None
    if found is None or name is None:
        spelled = re.split(r"[@.(]|_?\d", str(text))[0]
        near = suggest(spelled.lower(), SPELLINGS) or suggest(spelled, set(SPELLINGS.values()))
        for key, value in SPELLINGS.items():
            near = near.replace(f"{key!r}", f"{value!r}")
        raise ConfigError(f"unknown measure {text!r}; known: {EXAMPLES}{near}")
    given = _given(text, found["before"], found["after"])
    if name == "nDCG" and {"dcg", "gain"} & set(given):
        gain = (given.pop("dcg", "") or given.pop("gain")).strip("'\"").lower()
        if gain not in ("linear", "log2", "exp", "exp-log2"):
            raise ConfigError(f"measure {text!r}: dcg is 'exp-log2', or left out for linear gains")
        name = "nDCG" if gain in ("linear", "log2") else "nDCG_exp"
    if name == "NumRet" and "rel" in given:  # ir_measures' way to say it
        name = "NumRelRet"
    return _checked(text, name, given, found["at"])


def _given(text: str, *groups: str | None) -> dict[str, str]:
    """Return what stands in brackets, ``rel=2,p=0.5``, by name."""
    given: dict[str, str] = {}
    for part in (part for group in groups if group for part in group[1:-1].split(",")):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"measure {text!r}: {part!r} in brackets; expected such as rel=2")
        if key.lower() in given:
            what = "the relevance level" if key == "rel" else key
            raise ConfigError(f"measure {text!r}: {what} is given twice")
        given[key.lower()] = value
    return given


def _checked(text: str, name: str, given: dict[str, str], at: str | None) -> Measure:
    kind = KINDS[name]
    level = _level(text, name, given.pop("rel", "1"))
    if kind.option and at is not None and (kind.at or kind.cutoff == "none"):
        if kind.option in given:
            raise ConfigError(f"measure {text!r}: {kind.option} is given twice")
        given[kind.option], at = at, None  # iprec_at_recall_0.10, set_F_0.5
    option = kind.default
    if kind.option in given:
        option = _number(text, kind, given.pop(kind.option))
    elif kind.at:
        raise ConfigError(f"measure {text!r} needs a {kind.option}, as in {name}@0.1")
    if given:
        takes = [*([] if kind.no_level else ["rel"]), *([kind.option] if kind.option else [])]
        raise ConfigError(
            f"measure {text!r}: {name} has no {next(iter(given))!r}; "
            f"it takes {' and '.join(takes) or 'nothing in brackets'}"
        )
    if at is not None and kind.cutoff == "none":
        raise ConfigError(f"measure {text!r}: {name} looks at all documents; leave out the cut-off")
    if (at is None and kind.cutoff == "needed") or (at is not None and not int(float(at))):
        raise ConfigError(f"measure {text!r} needs a cut-off of 1 or more, as in {name}@10")
    if at is not None and "." in at:
        raise ConfigError(f"measure {text!r}: the cut-off {at} is no whole number")
    return Measure(name, int(at) if at is not None else None, level, option)


def _level(text: str, name: str, written: str) -> int:
    level = int(written) if re.fullmatch(r"\d{1,9}", written) else 0
    if level < 1:
        raise ConfigError(f"measure {text!r}: a relevance level is 1 or more")
    if level != 1 and KINDS[name].no_level:
        raise ConfigError(
            f"measure {text!r}: {name} takes no relevance level, {KINDS[name].no_level}"
        )
    return level


def _number(text: str, kind: Kind, written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = -1.0
    whole = kind.option != "max" or number == int(number)
    if not (kind.low <= number <= kind.high and whole):
        raise ConfigError(
            f"measure {text!r}: {kind.option}={written}; expected a "
            f"{'whole ' if kind.option == 'max' else ''}number from {kind.low:g} to {kind.high:g}"
        )
    return number


def at_level(measures: Sequence[Measure], level: int) -> list[Measure]:
    """Return measures of which a grade of ``level`` or more is relevant, as in ``P(rel=2)@5``.

    A measure that names a level of its own above 1 keeps it; those by grade (nDCG) have none.
    """
    whole_number(level, "level", 1)
    return [
        each if each.level != 1 or KINDS[each.name].no_level else replace(each, level=level)
        for each in measures
    ]


def depth_of(measures: list[Measure]) -> int | None:
    """Return how many documents per query the measures look at, None for all of them."""
    cutoffs = [measure.cutoff for measure in measures]
    return None if None in cutoffs else max((c for c in cutoffs if c is not None), default=0)
