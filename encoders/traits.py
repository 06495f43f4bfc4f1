"""What a type of encoder or reranker is, and what it takes: read by all before it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import Core

Form: TypeAlias = Literal[
    "dense", "sparse", "tokens", "pseudo_queries", "q_net", "ngrams", "identifiers", "parts",
    "scores",
]  # fmt: skip
Model: TypeAlias = Literal["network", "folder", ""]
Graph: TypeAlias = Literal["last_hidden_state", "head_states", "logits", ""]

# The form of the documents of an encoder whose ``similarity`` is a score of its own.
SCORED: Final[Mapping[str, Form]] = {
    "max_sim": "tokens",
    "attention": "pseudo_queries",
    "q_net": "q_net",
    "ngrams": "ngrams",
    "identifiers": "identifiers",
}
APART: Final = ("dense", "sparse", "tokens", "parts")  # a document's score needs no other document
WRITTEN: Final = ("ngrams", "identifiers")  # documents are token ids, queries what a model writes


@dataclass(frozen=True, slots=True)
class EncoderTraits:
    """A built-in type, and what must be known of it before it is imported.

    ``make`` is the class or classmethod that YAML calls. ``called`` is its name in reports, empty
    for what is never trained, ``task`` the hub's name of what it does. ``form`` is that of its
    documents' vectors: ``q_net`` is a dense one for queries that are networks, ``parts`` is as the
    encoders in it make, ``scores`` a reranker's. ``model`` is what its ``model`` names: a network's
    folder or hub id, another folder of ours, or neither. ``learns_as`` is the type whose losses
    and settings train it, where that is another. ``one_way``: two of its queries, or documents,
    cannot be compared. ``teaches``: it may be a training run's teacher. ``core``: lists of types
    begin with it.

    ``writes`` is the loss by which it learns to write, of an encoder that writes. ``sparsity``:
    penalties may make its vectors sparse. ``projection``: its ``projection`` is checked. ``graph``
    is the output of its exported graph, empty where it has none. ``tunings`` are those it takes,
    where it does not take all, and ``why`` it takes no others. ``opens_alone``: its folders open
    as no other type. ``on_dense``: it starts from a dense encoder, by settings of its own.
    ``layered``: it means token states, which late passages need. ``stays``: it stays in the
    process that opened it. ``varies``: it knows the variance of its queries. ``fitted``: it counts
    a collection, without a model. ``starts``: ``start`` may give it a head. ``sides``: it has an
    encoder of each side, of one of these types. ``heads`` are the types that make a head's
    vectors, of a model with several. ``matches``: it is a head over token vectors.
    """

    make: str
    called: str = ""
    task: str = ""
    form: Form = "dense"
    model: Model = "network"
    learns_as: str = ""
    one_way: bool = False
    teaches: bool = False
    core: bool = False
    writes: str = ""
    sparsity: bool = False
    projection: bool = False
    graph: Graph = ""
    tunings: tuple[str, ...] = ()
    why: str = ""
    opens_alone: bool = False
    on_dense: bool = False
    layered: bool = False
    stays: bool = False
    varies: bool = False
    fitted: bool = False
    starts: bool = False
    sides: tuple[str, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict)
    matches: bool = False

    @property
    def place(self) -> str:
        """What makes it, with its mark."""
        return Core(self.make) if self.core else self.make

    @property
    def class_name(self) -> str:
        """The name of its class, which ``sluice.encoders`` has."""
        return self.make.partition(":")[2].partition(".")[0]

    @property
    def scores(self) -> bool:
        """Whether it is a reranker, which has no vectors."""
        return self.form == "scores"


def own_form(encoder: Any) -> Form | None:
    """Return the form of the documents of an encoder that compares by a score of its own."""
    return SCORED.get(hooks_of(encoder).similarity)
