"""The built-in encoder types by the names that YAML files and saved folders use.

A new type is a line here: what the house must know of it before it is imported stands in its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from sluice.encoders.foundation.build import Core

Made = Literal[
    "dense", "sparse", "tokens", "pseudo_queries", "q_net", "ngrams", "identifiers", "parts",
    "scores",
]  # fmt: skip
Model = Literal["network", "folder", ""]


class EncoderType(NamedTuple):
    """A built-in type, and what must be known of it before it is imported.

    ``make`` is the class or classmethod that YAML calls. ``called`` is its name in reports, empty
    for what is never trained, ``task`` the hub's name of what it does. ``vectors`` are those of its
    documents, but ``q_net`` is a dense one for queries that are networks, and ``parts`` is as the
    encoders in it make. ``model`` is what its ``model`` names: a network's folder or hub id,
    another folder of ours, or neither. ``learns_as`` is the type whose losses and settings train
    it, where that is another. ``one_way``: two of its queries, or documents, cannot be compared.
    ``teaches``: it may be a training run's teacher. ``core``: lists of types begin with it.
    """

    make: str
    called: str = ""
    task: str = ""
    vectors: Made = "dense"
    model: Model = "network"
    learns_as: str = ""
    one_way: bool = False
    teaches: bool = False
    core: bool = False

    @property
    def place(self) -> str:
        """What makes it, with its mark."""
        return Core(self.make) if self.core else self.make

    @property
    def class_name(self) -> str:
        """The name of its class, which ``sluice.encoders`` has."""
        return self.make.partition(":")[2].partition(".")[0]


_SIMILAR, _FEATURES, _RANKS = "sentence-similarity", "feature-extraction", "text-ranking"
_DENSE, _LATE = "sluice.encoders.dense", "sluice.encoders.late_interaction"

TYPES: Final[Mapping[str, EncoderType]] = {
    "bm25": EncoderType(
        "sluice.encoders.lexical.bm25:BM25Encoder", vectors="sparse", model="", teaches=True,
        core=True,
    ),
    "concepts": EncoderType(
        "sluice.encoders.splade.concepts.encoder:ConceptEncoder.from_pretrained",
        "concept encoder", _FEATURES, "sparse", learns_as="splade", teaches=True,
    ),
    "csr": EncoderType(
        "sluice.encoders.splade.csr.encoder:CsrEncoder.from_pretrained",
        "CSR encoder", _FEATURES, "sparse", learns_as="splade", teaches=True,
    ),
    "dense": EncoderType(
        f"{_DENSE}.encoder:DenseEncoder.from_pretrained", "dense encoder", _SIMILAR, teaches=True,
        core=True,
    ),
    "dsi": EncoderType(
        "sluice.encoders.generative.dsi:DsiEncoder.from_pretrained",
        "DSI encoder", "text-generation", "identifiers",
    ),
    "experts": EncoderType(
        f"{_DENSE}.experts.encoder:ExpertEncoder.from_pretrained",
        "dense encoder with experts", _SIMILAR, learns_as="dense", teaches=True,
    ),
    "gaussian": EncoderType(
        f"{_DENSE}.gaussian.encoder:GaussianEncoder.from_pretrained",
        "Gaussian encoder", _FEATURES, one_way=True, teaches=True,
    ),
    "http": EncoderType(f"{_DENSE}.remote.encoder:HttpEncoder", model=""),
    "hypencoder": EncoderType(
        f"{_DENSE}.hypencoder.encoder:Hypencoder.from_pretrained", "Hypencoder", vectors="q_net"
    ),
    "precomputed": EncoderType(
        f"{_DENSE}.precomputed:PrecomputedEncoder.from_pretrained", model=""
    ),
    "pseudo_queries": EncoderType(
        f"{_DENSE}.pseudo_queries.encoder:PseudoQueryEncoder.from_pretrained",
        "pseudo-query encoder", vectors="pseudo_queries",
    ),
    "seal": EncoderType(
        "sluice.encoders.generative.encoder:SealEncoder.from_pretrained",
        "SEAL encoder", "text-generation", "ngrams",
    ),
    "splade": EncoderType(
        "sluice.encoders.splade.encoder:SpladeEncoder.from_pretrained",
        "SPLADE encoder", _FEATURES, "sparse", teaches=True, core=True,
    ),
    "static": EncoderType(
        f"{_DENSE}.static.encoder:StaticEncoder.from_pretrained",
        "static encoder", _SIMILAR, learns_as="dense", teaches=True,
    ),
    "three_heads": EncoderType(
        f"{_LATE}.three_heads.encoder:HeadEncoder.from_pretrained",
        "encoder with three heads", vectors="parts",
    ),
    "tokens": EncoderType(
        f"{_LATE}.encoder:TokenEncoder.from_pretrained",
        "token encoder", _SIMILAR, "tokens", teaches=True, core=True,
    ),
    "towers": EncoderType(
        "sluice.encoders.towers:TowerEncoder.from_pretrained", vectors="parts", model="folder"
    ),
    "vocabulary": EncoderType(
        "sluice.encoders.lexical.vocabulary:VocabularyEncoder.from_pretrained",
        vectors="sparse", model="folder",
    ),
}  # fmt: skip
ENCODERS: Final[Mapping[str, str]] = {name: each.place for name, each in TYPES.items()}

# Those that YAML makes by their constructor, and what opens their folders.
OPENED: Final[Mapping[str, str]] = {
    "bm25": "sluice.encoders.lexical.bm25:BM25Encoder.from_pretrained",
    "http": "sluice.encoders.dense.remote.encoder:HttpEncoder.from_pretrained",
}

# Encoders of what a program gave: saved folders name them, YAML does not.
# The three heads are saved as ``three_heads``, with the head's name.
GIVEN: Final[Mapping[str, str]] = {
    "dense_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:DenseHead.from_pretrained"
    ),
    "function": "sluice.encoders.dense.given.function:FunctionEncoder.from_pretrained",
    "sparse_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:SparseHead.from_pretrained"
    ),
    "token_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:TokenHead.from_pretrained"
    ),
    "sentence_transformer": (
        "sluice.encoders.dense.given.sentence_transformer:SentenceTransformerEncoder.from_pretrained"
    ),
}


def _ranker(make: str, called: str, **facts: Any) -> EncoderType:
    return EncoderType(
        f"sluice.encoders.rerankers.{make}.from_pretrained", called, _RANKS, "scores", **facts
    )


# Rerankers that are a head over the token vectors of an encoder.
_HEADS: Final[Mapping[str, EncoderType]] = {
    name: _ranker(f"matching.{name}:{own}", f"{own} ranker", learns_as="cross_encoder")
    for name, own in {
        "conv_knrm": "ConvKNRM",
        "drmm": "DRMM",
        "duet": "Duet",
        "knrm": "KNRM",
        "match_pyramid": "MatchPyramid",
        "pacrr": "PACRR",
    }.items()
}
RANKERS: Final[Mapping[str, EncoderType]] = {
    "cross_encoder": _ranker(
        "cross_encoder:CrossEncoder", "cross-encoder", teaches=True, core=True
    ),
    "listwise": EncoderType(
        "sluice.encoders.generative.listwise:ListwiseRanker.from_pretrained",
        "listwise ranker", _RANKS, "scores",
    ),
    "pyramid": _ranker("pyramid:PyramidEncoder", "pyramid ranker", learns_as="cross_encoder"),
    "rrra": _ranker("rrra:AdaptedScorer", "", teaches=True),  # made by `sluice fit adapter`
    "true_false": EncoderType(
        "sluice.encoders.generative.true_false:TrueFalseRanker.from_pretrained",
        "true/false ranker", _RANKS, "scores", learns_as="cross_encoder",
    ),
    **_HEADS,
}  # fmt: skip
MATCHING: Final[Mapping[str, str]] = {name: each.make for name, each in _HEADS.items()}
RERANKERS: Final[Mapping[str, str]] = {name: each.place for name, each in RANKERS.items()}
KNOWN: Final[Mapping[str, EncoderType]] = {**TYPES, **RANKERS}

TUNINGS: Final[Mapping[str, str]] = {
    "adapter": "sluice.encoders.tuning.bottleneck:Bottlenecks",
    "bitfit": "sluice.encoders.tuning.tune:Biases",
    "experts": "sluice.encoders.dense.experts.tuning:ExpertsAlone",
    "gated_prefix": "sluice.encoders.tuning.prefix:GatedPrefix",
    "ia3": "sluice.encoders.tuning.low_rank:LearnedScales",
    "iaa": "sluice.encoders.tuning.aside:InsideAndAside",
    "ln_tuning": "sluice.encoders.tuning.tune:Norms",
    "lora": Core("sluice.encoders.tuning.low_rank:LowRank"),
    "prefix": "sluice.encoders.tuning.prefix:Prefix",
}
