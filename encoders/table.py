"""The built-in encoder types by the names that YAML files and saved folders use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENCODERS: Final[Mapping[str, str]] = {
    "bm25": "encoders.bm25:BM25Encoder",
    "dense": "encoders.dense:DenseEncoder.from_pretrained",
    "precomputed": "encoders.precomputed:PrecomputedEncoder.from_pretrained",
    "splade": "encoders.splade:SpladeEncoder.from_pretrained",
    "towers": "encoders.towers:TowerEncoder.from_pretrained",
    "vocabulary": "encoders.vocabulary:VocabularyEncoder.from_pretrained",
}

RERANKERS: Final[Mapping[str, str]] = {
    "cross_encoder": "encoders.cross_encoder:CrossEncoder.from_pretrained",
}

TUNINGS: Final[Mapping[str, str]] = {
    "adapter": "encoders.bottleneck:Bottlenecks",
    "bitfit": "encoders.parameter_choice:Biases",
    "ia3": "encoders.low_rank:LearnedScales",
    "ln_tuning": "encoders.parameter_choice:Norms",
    "lora": "encoders.low_rank:LowRank",
    "prefix": "encoders.prefix:Prefix",
}
