"""The built-in encoder types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENCODERS: Final[Mapping[str, str]] = {
    "bm25": "sluice.encoders.lexical.bm25:BM25Encoder",
    "concepts": "sluice.encoders.splade.concepts.encoder:ConceptEncoder.from_pretrained",
    "dense": "sluice.encoders.dense.encoder:DenseEncoder.from_pretrained",
    "experts": "sluice.encoders.dense.experts.encoder:ExpertEncoder.from_pretrained",
    "gaussian": "sluice.encoders.dense.gaussian.encoder:GaussianEncoder.from_pretrained",
    "hypencoder": "sluice.encoders.dense.hypencoder.encoder:Hypencoder.from_pretrained",
    "precomputed": "sluice.encoders.dense.precomputed:PrecomputedEncoder.from_pretrained",
    "pseudo_queries": (
        "sluice.encoders.dense.pseudo_queries.encoder:PseudoQueryEncoder.from_pretrained"
    ),
    "splade": "sluice.encoders.splade.encoder:SpladeEncoder.from_pretrained",
    "static": "sluice.encoders.dense.static.encoder:StaticEncoder.from_pretrained",
    "three_heads": (
        "sluice.encoders.late_interaction.three_heads.encoder:HeadEncoder.from_pretrained"
    ),
    "tokens": "sluice.encoders.late_interaction.encoder:TokenEncoder.from_pretrained",
    "towers": "sluice.encoders.towers:TowerEncoder.from_pretrained",
    "vocabulary": "sluice.encoders.lexical.vocabulary:VocabularyEncoder.from_pretrained",
}

# Encoders of what a program gave: saved folders name them, YAML does not.
# The three heads are saved as ``three_heads``, with the head's name.
GIVEN: Final[Mapping[str, str]] = {
    "dense_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:DenseHead.from_pretrained"
    ),
    "function": "sluice.encoders.dense.function:FunctionEncoder.from_pretrained",
    "sparse_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:SparseHead.from_pretrained"
    ),
    "token_head": (
        "sluice.encoders.late_interaction.three_heads.encoder:TokenHead.from_pretrained"
    ),
    "sentence_transformer": (
        "sluice.encoders.dense.sentence_transformer:SentenceTransformerEncoder.from_pretrained"
    ),
}

RERANKERS: Final[Mapping[str, str]] = {
    "cross_encoder": "sluice.encoders.rerankers.cross_encoder:CrossEncoder.from_pretrained",
}

TUNINGS: Final[Mapping[str, str]] = {
    "adapter": "sluice.encoders.tuning.bottleneck:Bottlenecks",
    "bitfit": "sluice.encoders.tuning.tune:Biases",
    "experts": "sluice.encoders.dense.experts.tuning:ExpertsAlone",
    "gated_prefix": "sluice.encoders.tuning.prefix:GatedPrefix",
    "ia3": "sluice.encoders.tuning.low_rank:LearnedScales",
    "iaa": "sluice.encoders.tuning.aside:InsideAndAside",
    "ln_tuning": "sluice.encoders.tuning.tune:Norms",
    "lora": "sluice.encoders.tuning.low_rank:LowRank",
    "prefix": "sluice.encoders.tuning.prefix:Prefix",
}
