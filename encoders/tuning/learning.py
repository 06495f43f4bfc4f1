"""How built-in types of encoder are trained: what a loss gets of them, and what may be tuned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice.encoders.table import KNOWN, TUNINGS, EncoderTraits

SINGLE: Final = ("dense", "one_way", "sparse")  # one vector a text
APART: Final = ("dense", "one_way", "q_net", "pseudo_queries", "sparse", "tokens")
SCORED: Final = (*APART, "scores")  # what has scores of queries and documents
WRITTEN: Final = ("ngrams", "identifiers", "rankings")  # what models write, without scores
_OWN: Final = EncoderTraits("")  # of a type outside the table, which says nothing


def learning_of(kind: str) -> EncoderTraits:
    """Return the traits by which a type is trained; for one of one's own, what says nothing."""
    return KNOWN.get(kind, _OWN)


def refused_tuning(kind: str, tuning: str) -> str:
    """Return why a type of encoder does not take a built-in type of tuning; empty if it does."""
    known, none = KNOWN.get(kind), learning_of(kind).untuned
    if known is None or tuning not in TUNINGS:
        return ""
    if none:
        return f"{tuning}: {none}; leave it out"
    if not known.tunings or tuning in known.tunings:
        return ""
    return f"{tuning}: {known.why}; take {' or '.join(known.tunings)}, or leave it out"


def types_that_make(forms: Iterable[str]) -> list[str]:
    """Return the types that make one of some forms; not those that learn as another of them."""
    wanted = set(forms)
    made = [name for name, each in KNOWN.items() if wanted & set(each.learns)]
    return [name for name in made if KNOWN[name].learns_as not in made]
