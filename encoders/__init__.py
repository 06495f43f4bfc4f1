"""Text in, vectors out: dense, SPLADE and BM25 encoders, and cross-encoders that score pairs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encoders.bm25 import BM25Encoder
    from encoders.cross_encoder import CrossEncoder
    from encoders.dense import DenseEncoder
    from encoders.encoder import Encoder
    from encoders.errors import SluiceError
    from encoders.pair_head import PairHead
    from encoders.precomputed import PrecomputedEncoder
    from encoders.splade import SpladeEncoder
    from encoders.splade_queries import fit_idf
    from encoders.splade_start import start_splade
    from encoders.towers import TowerEncoder
    from encoders.vocabulary import VocabularyEncoder

__all__ = [
    "BM25Encoder",
    "CrossEncoder",
    "DenseEncoder",
    "Encoder",
    "PairHead",
    "PrecomputedEncoder",
    "SluiceError",
    "SpladeEncoder",
    "TowerEncoder",
    "VocabularyEncoder",
    "fit_idf",
    "start_splade",
]

_HOMES = {
    "BM25Encoder": "encoders.bm25",
    "CrossEncoder": "encoders.cross_encoder",
    "DenseEncoder": "encoders.dense",
    "Encoder": "encoders.encoder",
    "PairHead": "encoders.pair_head",
    "PrecomputedEncoder": "encoders.precomputed",
    "SluiceError": "encoders.errors",
    "SpladeEncoder": "encoders.splade",
    "TowerEncoder": "encoders.towers",
    "VocabularyEncoder": "encoders.vocabulary",
    "fit_idf": "encoders.splade_queries",
    "start_splade": "encoders.splade_start",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'encoders' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
