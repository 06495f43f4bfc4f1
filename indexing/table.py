"""The built-in index types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.encoders.foundation.build import Core
from sluice.encoders.foundation.errors import ConfigError

# What messages call vectors of a form, before the word "vectors".
CALLED: Final[Mapping[str, str]] = {
    "dense": "dense",
    "sparse": "sparse",
    "tokens": "token",
    "pseudo_queries": "pseudo-query",
    "q_net": "dense",
    "ngrams": "token sequences, no",
    "identifiers": "identifiers, no",
}


@dataclass(frozen=True, slots=True)
class IndexTraits:
    """A built-in type of index, and what must be known of it before it is imported.

    ``holds`` are the forms of documents' vectors that it takes, the usual one first; none where
    that is up to the index inside it. ``suits``: messages name it to those who look for an index
    of their form. ``default`` are the arguments with which it is what an encoder of its first form
    gets when no index is named; None: it is not. ``shardable``: it answers a query from one shard
    as from all, or nearly. ``database`` are the settings that say where its database is, and where
    it is without them. ``columns`` are the forms that its ``column`` decides. ``by_queries``: it
    is chosen by queries, or learns from them; ``learns``: from queries of training. ``factory``: a
    string of FAISS makes it. ``variants`` are its forms, by name, that ``variants:`` tries: the
    same vectors kept in fewer bytes, or searched in another way.
    """

    place: str
    holds: tuple[str, ...] = ()
    suits: bool = False
    default: Mapping[str, Any] | None = None
    shardable: bool = False
    database: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    by_queries: bool = False
    learns: bool = False
    factory: bool = False
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def form(self, form: str, column: Any = None) -> str:
        """Return the form it holds of an encoder's documents, which is another if it cannot."""
        if column in self.columns:
            return self.columns[column]
        return form if form in self.holds or not self.holds else self.holds[0]


_EXHAUSTIVE: Final = {"mode": "exhaustive"}
KNOWN: Final[Mapping[str, IndexTraits]] = {
    "flat": IndexTraits(
        Core("sluice.indexing.flat.index:FlatIndex"), ("dense",), suits=True, default={},
        shardable=True,
        variants={"int8-first": {"first_pass": "int8"}, "binary-first": {"first_pass": "binary"}},
    ),
    "faiss": IndexTraits(
        Core("sluice.indexing.faiss.index:FaissIndex"), ("dense",), suits=True, shardable=True,
        factory=True,
        variants={
            "bfloat16": {"factory": "SQbf16"}, "int8": {"factory": "SQ8"},
            "binary": {"factory": "BFlat"}, "binary-rescored": {"factory": "BFlat", "rescore": 10},
        },
    ),
    "inverted": IndexTraits(
        Core("sluice.indexing.inverted.index:InvertedIndex"), ("sparse",), suits=True, default={},
        shardable=True,
        variants={
            "u8": {"fidelity": "u8"}, "terms-64": {"top_terms": 64}, "terms-32": {"top_terms": 32},
        },
    ),
    "graph": IndexTraits(  # a dense query is a network without hidden layers
        "sluice.indexing.own.graph.index:GraphIndex", ("q_net", "dense"), suits=True,
        default=_EXHAUSTIVE,
    ),
    "query_graph": IndexTraits(
        "sluice.indexing.own.graph.query_graph:QueryGraphIndex", ("dense",), by_queries=True,
        learns=True,
    ),
    "tokens": IndexTraits(
        Core("sluice.indexing.tokens.index:TokenIndex"), ("tokens",), suits=True, default={},
        shardable=True,
        variants={each: {"store": each} for each in ("float32", "int8", "residual4", "residual2")},
    ),
    "fm": IndexTraits("sluice.indexing.own.fm.index:FmIndex", ("ngrams",), suits=True, default={}),
    "trie": IndexTraits(
        "sluice.indexing.own.fm.trie:TrieIndex", ("identifiers",), suits=True, default={}
    ),
    "funnel": IndexTraits(
        "sluice.indexing.wrappers.funnel:FunnelIndex", ("dense",), shardable=True
    ),
    "augmented": IndexTraits(
        "sluice.indexing.own.augmented:AugmentedIndex", ("dense",), shardable=True
    ),
    "auto": IndexTraits(  # what it chooses is one of the others
        "sluice.indexing.auto.index:AutoIndex", ("dense",), suits=True, by_queries=True
    ),
    "pseudo_queries": IndexTraits(
        "sluice.indexing.own.pseudo_queries:PseudoQueryIndex", ("pseudo_queries",),
        suits=True, default=_EXHAUSTIVE,
    ),
    "pgvector": IndexTraits(
        "sluice.indexing.databases.pgvector.index:PgvectorIndex", ("dense", "sparse"),
        database={"dsn": "postgresql://"},
        columns={"vector": "dense", "halfvec": "dense", "sparsevec": "sparse"},
    ),
    "passages": IndexTraits("sluice.indexing.wrappers.passages:PassageIndex", shardable=True),
    "qdrant": IndexTraits(
        "sluice.indexing.databases.qdrant.index:QdrantIndex", ("dense", "sparse"),
        database={"path": "", "url": ""},
    ),
}  # fmt: skip
INDEXES: Final[Mapping[str, str]] = {name: each.place for name, each in KNOWN.items()}
# The usual one of dense vectors, and the one that a string of FAISS makes.
DEFAULT: Final = next(name for name, each in KNOWN.items() if each.default == {})
BY_FACTORY: Final = next(name for name, each in KNOWN.items() if each.factory)
SHARDABLE: Final = tuple(name for name, each in KNOWN.items() if each.shardable)

# Those that lie in a database, the settings that say where it is, and where it is without them.
DATABASES: Final[Mapping[str, Mapping[str, str]]] = {
    name: each.database for name, each in KNOWN.items() if each.database
}


def default_spec(form: str) -> dict[str, Any] | None:
    """Return the component of the index that vectors of a form get when none is named."""
    for name, each in KNOWN.items():
        if each.default is not None and each.holds[0] == form:
            return {"type": name, **each.default}
    return None


def check_fits(form: str, kind: str, spec: Mapping[str, Any], where: str) -> None:
    """Raise ``ConfigError`` unless a built-in index can hold the vectors of a type of encoder.

    ``form`` is that of its documents' vectors, ``kind`` its name.
    """
    name, index = str(spec.get("type")), KNOWN.get(str(spec.get("type")))
    if index is None or not index.holds or form not in CALLED:
        return
    held = index.form(form, spec.get("column"))
    if held == form:
        return
    suited = ", ".join(each for each, own in KNOWN.items() if own.suits and own.holds[0] == form)
    if form == "q_net":
        raise ConfigError(
            f"{where}.type: {name} compares vectors, and a query of a {kind} encoder is a network; "
            f"it takes {suited}"
        )
    article = "an" if kind[0] in "aeiou" else "a"
    raise ConfigError(
        f"{where}.type: {name} holds {CALLED[held]} vectors; {article} {kind} encoder takes "
        f"{suited}"
    )


AUGMENTATIONS: Final[Mapping[str, str]] = {
    "document_bias": "sluice.indexing.own.augmentations:DocumentBias",
    "mips_to_l2": "sluice.indexing.own.augmentations:MipsToL2",
}
