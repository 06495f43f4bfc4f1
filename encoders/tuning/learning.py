"""How built-in types of encoder are trained: what a loss gets of them, and what may be tuned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sluice.encoders.table import KNOWN, TUNINGS

# What training makes of a text, or of a query and a document. A vector each: ``dense``, ``sparse``
# (of ``words``, or of ``codes`` with the dense vectors below), ``one_way`` where two of one side
# have no score. ``tokens``: a vector for each; ``q_net``: a network for a query; and so on.
Form = Literal[
    "dense", "one_way", "sparse", "words", "codes", "tokens", "pseudo_queries", "q_net", "heads",
    "scores", "rankings", "ngrams", "identifiers",
]  # fmt: skip
SINGLE: Final = ("dense", "one_way", "sparse")  # one vector a text
APART: Final = ("dense", "one_way", "q_net", "pseudo_queries", "sparse", "tokens")
SCORED: Final = (*APART, "scores")  # what has scores of queries and documents
WRITTEN: Final = ("ngrams", "identifiers", "rankings")  # what models write, without scores


@dataclass(frozen=True, slots=True)
class Learning:
    """How a type of encoder is trained.

    ``makes`` are the forms a loss gets; none of a type that makes what others make, or that is not
    trained, as ``untrained`` explains. ``untuned`` is why it takes no tuning at all; which of them
    others take stands with their traits. ``experts``: it has some. ``fixed``: its
    vectors are another's. ``pairs_only``: it makes no vector of a text alone. ``no_head``: none
    learns faster. ``any_text``: what it scores may be a document without a query.
    """

    makes: tuple[Form, ...] = ()
    untrained: str = ""
    untuned: str = ""
    experts: bool = False
    fixed: bool = False
    pairs_only: bool = False
    no_head: bool = False
    any_text: bool = False


_RANKER: Final = Learning(
    ("scores",), fixed=True, pairs_only=True,
    untuned="is for transformers; the vectors that it reads stay as they are, unless it has "
    "train_vectors: true",
)  # fmt: skip
LEARNING: Final[Mapping[str, Learning]] = {
    "bm25": Learning(untrained="bm25 counts words; it is fitted, not trained"),
    "concepts": Learning(("sparse",)),
    "csr": Learning(("sparse", "codes")),
    "dense": Learning(("dense",)),
    "dsi": Learning(("identifiers",)),
    "experts": Learning(("dense",), experts=True),
    "gaussian": Learning(("one_way",)),
    "hypencoder": Learning(("q_net",)),
    "pseudo_queries": Learning(("pseudo_queries",)),
    "seal": Learning(("ngrams",)),
    "splade": Learning(("sparse", "words")),
    "static": Learning(("dense",), untuned="a static encoder has no network to tune"),
    "three_heads": Learning(("heads",)),
    "tokens": Learning(("tokens",)),
    "cross_encoder": Learning(("scores",), any_text=True),
    "listwise": Learning(("rankings",)),
    "pyramid": Learning(("scores",)),
    "rrra": Learning(
        untrained="an rrra adapter is fitted, by `sluice fit adapter`, or trained beside a dense "
        "encoder by loss: {type: rrra}",
    ),
    "true_false": Learning(("scores",), pairs_only=True, no_head=True, any_text=True),
    **{name: _RANKER for name, each in KNOWN.items() if each.matches},
}  # fmt: skip


def learning_of(kind: str) -> Learning:
    """Return how a type is trained; for one of one's own, what says nothing."""
    return LEARNING.get(kind, Learning())


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
    made = [name for name, each in LEARNING.items() if wanted & set(each.makes)]
    return [name for name in made if KNOWN[name].learns_as not in made]
