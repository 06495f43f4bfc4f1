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
    trained, as ``untrained`` explains. ``tunings`` are the types of tuning it takes (None: all but
    that of experts), and ``why`` others are refused. ``experts``: it has some. ``fixed``: its
    vectors are another's. ``pairs_only``: it makes no vector of a text alone. ``no_head``: none
    learns faster. ``any_text``: what it scores may be a document without a query.
    """

    makes: tuple[Form, ...] = ()
    untrained: str = ""
    tunings: tuple[str, ...] | None = None
    why: str = ""
    experts: bool = False
    fixed: bool = False
    pairs_only: bool = False
    no_head: bool = False
    any_text: bool = False

    def refuses(self, tuning: str) -> str:
        """Return why it does not take a built-in type of tuning; empty if it does."""
        if self.tunings is None or tuning not in TUNINGS or tuning in self.tunings:
            return ""
        remedy = f"take {' or '.join(self.tunings)}, or " if self.tunings else ""
        return f"{tuning}: {self.why}; {remedy}leave it out"


_RANKER: Final = Learning(
    ("scores",), tunings=(), fixed=True, pairs_only=True,
    why="is for transformers; the vectors that it reads stay as they are, unless it has "
    "train_vectors: true",
)  # fmt: skip
LEARNING: Final[Mapping[str, Learning]] = {
    "bm25": Learning(untrained="bm25 counts words; it is fitted, not trained"),
    "concepts": Learning(("sparse",)),
    "csr": Learning(("sparse", "codes")),
    "dense": Learning(("dense",)),
    "dsi": Learning(("identifiers",)),
    "experts": Learning(
        ("dense",), tunings=("experts", "bitfit", "ln_tuning"), experts=True,
        why="adds parts to layers that exist several times",
    ),
    "gaussian": Learning(("one_way",)),
    "hypencoder": Learning(("q_net",)),
    "pseudo_queries": Learning(("pseudo_queries",)),
    "seal": Learning(("ngrams",)),
    "splade": Learning(("sparse", "words")),
    "static": Learning(("dense",), tunings=(), why="a static encoder has no network to tune"),
    "three_heads": Learning(("heads",)),
    "tokens": Learning(("tokens",)),
    "cross_encoder": Learning(("scores",), any_text=True),
    "listwise": Learning(
        ("rankings",), tunings=("lora", "ia3", "bitfit", "ln_tuning"),
        why="stays beside the weights, and a listwise ranker writes with the weights alone",
    ),
    "pyramid": Learning(
        ("scores",), tunings=tuple(name for name in TUNINGS if name not in ("experts", "iaa")),
        why="connects all layers in one pass, and a pyramid ranker runs the lower ones for each "
        "text alone",
    ),
    "rrra": Learning(
        untrained="an rrra adapter is fitted, by `sluice fit adapter`, or trained beside a dense "
        "encoder by loss: {type: rrra}",
    ),
    "true_false": Learning(
        ("scores",), tunings=("ln_tuning",), pairs_only=True, no_head=True, any_text=True,
        why="is for one stack of blocks, and a true_false ranker is an encoder with a decoder",
    ),
    **dict.fromkeys(
        ("conv_knrm", "drmm", "duet", "knrm", "match_pyramid", "pacrr"), _RANKER
    ),
}  # fmt: skip


def learning_of(kind: str) -> Learning:
    """Return how a type is trained; for one of one's own, what says nothing."""
    return LEARNING.get(kind, Learning())


def types_that_make(forms: Iterable[str]) -> list[str]:
    """Return the types that make one of some forms; not those that learn as another of them."""
    wanted = set(forms)
    made = [name for name, each in LEARNING.items() if wanted & set(each.makes)]
    return [name for name in made if KNOWN[name].learns_as not in made]
