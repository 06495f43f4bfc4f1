"""The built-in encoder types by the names that YAML files and saved folders use.

A new type is a line here: what the house must know of it before it is imported stands in its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import Core
from sluice.encoders.traits import EncoderTraits

_SIMILAR, _FEATURES, _RANKS = "sentence-similarity", "feature-extraction", "text-ranking"
_DENSE, _LATE = "sluice.encoders.dense", "sluice.encoders.late_interaction"

TYPES: Final[Mapping[str, EncoderTraits]] = {
    "bm25": EncoderTraits(
        "sluice.encoders.lexical.bm25:BM25Encoder", form="sparse", model="", teaches=True,
        core=True, fitted=True,
    ),
    "concepts": EncoderTraits(
        "sluice.encoders.splade.concepts.encoder:ConceptEncoder.from_pretrained",
        "concept encoder", _FEATURES, "sparse", learns_as="splade", teaches=True, sparsity=True,
        opens_alone=True, on_dense=True,
    ),
    "csr": EncoderTraits(
        "sluice.encoders.splade.csr.encoder:CsrEncoder.from_pretrained",
        "CSR encoder", _FEATURES, "sparse", learns_as="splade", teaches=True, sparsity=True,
        opens_alone=True,
    ),
    "dense": EncoderTraits(
        f"{_DENSE}.encoder:DenseEncoder.from_pretrained", "dense encoder", _SIMILAR, teaches=True,
        core=True, projection=True, graph="last_hidden_state", layered=True,
    ),
    "dsi": EncoderTraits(
        "sluice.encoders.generative.dsi:DsiEncoder.from_pretrained",
        "DSI encoder", "text-generation", "identifiers", writes="identifiers",
    ),
    "experts": EncoderTraits(
        f"{_DENSE}.experts.encoder:ExpertEncoder.from_pretrained",
        "dense encoder with experts", _SIMILAR, learns_as="dense", teaches=True, opens_alone=True,
        on_dense=True, tunings=("experts", "bitfit", "ln_tuning"),
        why="adds parts to layers that exist several times",
    ),
    "gaussian": EncoderTraits(
        f"{_DENSE}.gaussian.encoder:GaussianEncoder.from_pretrained",
        "Gaussian encoder", _FEATURES, one_way=True, teaches=True, projection=True,
        graph="last_hidden_state", varies=True,
    ),
    "http": EncoderTraits(f"{_DENSE}.remote.encoder:HttpEncoder", model="", stays=True),
    "hypencoder": EncoderTraits(
        f"{_DENSE}.hypencoder.encoder:Hypencoder.from_pretrained", "Hypencoder", form="q_net"
    ),
    "precomputed": EncoderTraits(
        f"{_DENSE}.precomputed:PrecomputedEncoder.from_pretrained", model=""
    ),
    "pseudo_queries": EncoderTraits(
        f"{_DENSE}.pseudo_queries.encoder:PseudoQueryEncoder.from_pretrained",
        "pseudo-query encoder", form="pseudo_queries", projection=True,
    ),
    "seal": EncoderTraits(
        "sluice.encoders.generative.encoder:SealEncoder.from_pretrained",
        "SEAL encoder", "text-generation", "ngrams", writes="spans",
    ),
    "splade": EncoderTraits(
        "sluice.encoders.splade.encoder:SpladeEncoder.from_pretrained",
        "SPLADE encoder", _FEATURES, "sparse", teaches=True, core=True, sparsity=True,
        graph="head_states", starts=True,
    ),
    "static": EncoderTraits(
        f"{_DENSE}.static.encoder:StaticEncoder.from_pretrained",
        "static encoder", _SIMILAR, learns_as="dense", teaches=True,
    ),
    "three_heads": EncoderTraits(
        f"{_LATE}.three_heads.encoder:HeadEncoder.from_pretrained",
        "encoder with three heads", form="parts",
        heads={"dense": "dense", "sparse": "splade", "tokens": "tokens"},
    ),
    "tokens": EncoderTraits(
        f"{_LATE}.encoder:TokenEncoder.from_pretrained",
        "token encoder", _SIMILAR, "tokens", teaches=True, core=True,
    ),
    "towers": EncoderTraits(
        "sluice.encoders.towers:TowerEncoder.from_pretrained", form="parts", model="folder",
        sides=("dense", "splade", "static"),
    ),
    "vocabulary": EncoderTraits(
        "sluice.encoders.lexical.vocabulary:VocabularyEncoder.from_pretrained",
        form="sparse", model="folder",
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


def _ranker(make: str, called: str, **facts: Any) -> EncoderTraits:
    return EncoderTraits(
        f"sluice.encoders.rerankers.{make}.from_pretrained", called, _RANKS, "scores", **facts
    )


# Rerankers that are a head over the token vectors of an encoder.
_HEADS: Final[Mapping[str, EncoderTraits]] = {
    name: _ranker(
        f"matching.{name}:{own}",
        f"{own} ranker",
        learns_as="cross_encoder",
        opens_alone=True,
        matches=True,
    )
    for name, own in {
        "conv_knrm": "ConvKNRM",
        "drmm": "DRMM",
        "duet": "Duet",
        "knrm": "KNRM",
        "match_pyramid": "MatchPyramid",
        "pacrr": "PACRR",
    }.items()
}
RANKERS: Final[Mapping[str, EncoderTraits]] = {
    "cross_encoder": _ranker(
        "cross_encoder:CrossEncoder", "cross-encoder", teaches=True, core=True, graph="logits",
    ),
    "listwise": EncoderTraits(
        "sluice.encoders.generative.listwise:ListwiseRanker.from_pretrained",
        "listwise ranker", _RANKS, "scores", writes="rankings",
        tunings=("lora", "ia3", "bitfit", "ln_tuning"),
        why="stays beside the weights, and a listwise ranker writes with the weights alone",
    ),
    "pyramid": _ranker("pyramid:PyramidEncoder", "pyramid ranker", learns_as="cross_encoder",
        opens_alone=True,
        tunings=("adapter", "bitfit", "gated_prefix", "ia3", "ln_tuning", "lora", "prefix"),
        why="connects all layers in one pass, and a pyramid ranker runs the lower ones for each "
        "text alone",
    ),
    "rrra": _ranker("rrra:AdaptedScorer", "", teaches=True),  # made by `sluice fit adapter`
    "true_false": EncoderTraits(
        "sluice.encoders.generative.true_false:TrueFalseRanker.from_pretrained",
        "true/false ranker", _RANKS, "scores", learns_as="cross_encoder",
        opens_alone=True, tunings=("ln_tuning",),
        why="is for one stack of blocks, and a true_false ranker is an encoder with a decoder",
    ),
    **_HEADS,
}  # fmt: skip
MATCHING: Final[Mapping[str, str]] = {name: each.make for name, each in _HEADS.items()}
RERANKERS: Final[Mapping[str, str]] = {name: each.place for name, each in RANKERS.items()}
KNOWN: Final[Mapping[str, EncoderTraits]] = {**TYPES, **RANKERS}


def traits_of(thing: Any) -> EncoderTraits | None:
    """Return the traits of a type's name, of a component in YAML, or of an encoder.

    None for a type outside the table: what it takes is its own to say, by its hooks.
    """
    if isinstance(thing, Mapping):
        thing = thing.get("type")
    return KNOWN.get(thing if isinstance(thing, str) else hooks_of(thing).kind)


TUNINGS: Final[Mapping[str, str]] = {
    "adapter": "sluice.encoders.tuning.adapters:Bottlenecks",
    "bitfit": "sluice.encoders.tuning.tune:Biases",
    "experts": "sluice.encoders.dense.experts.encoder:ExpertsAlone",
    "gated_prefix": "sluice.encoders.tuning.prefix:GatedPrefix",
    "ia3": "sluice.encoders.tuning.adapters:LearnedScales",
    "iaa": "sluice.encoders.tuning.adapters:InsideAndAside",
    "ln_tuning": "sluice.encoders.tuning.tune:Norms",
    "lora": Core("sluice.encoders.tuning.adapters:LowRank"),
    "prefix": "sluice.encoders.tuning.prefix:Prefix",
}
