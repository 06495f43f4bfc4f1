"""Text in, vectors out: dense, SPLADE and BM25 encoders, and cross-encoders that score pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoders.lazy import lazy

if TYPE_CHECKING:
    from encoders.bm25 import BM25Encoder as BM25Encoder
    from encoders.cross_encoder import CrossEncoder as CrossEncoder
    from encoders.dense import DenseEncoder as DenseEncoder
    from encoders.encoder import Encoder as Encoder
    from encoders.errors import SluiceError as SluiceError
    from encoders.pair_head import PairHead as PairHead
    from encoders.precomputed import PrecomputedEncoder as PrecomputedEncoder
    from encoders.splade import SpladeEncoder as SpladeEncoder
    from encoders.splade_queries import fit_idf as fit_idf
    from encoders.splade_start import start_splade as start_splade
    from encoders.towers import TowerEncoder as TowerEncoder
    from encoders.vocabulary import VocabularyEncoder as VocabularyEncoder
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "encoders.bm25": ["BM25Encoder"],
            "encoders.cross_encoder": ["CrossEncoder"],
            "encoders.dense": ["DenseEncoder"],
            "encoders.encoder": ["Encoder"],
            "encoders.errors": ["SluiceError"],
            "encoders.pair_head": ["PairHead"],
            "encoders.precomputed": ["PrecomputedEncoder"],
            "encoders.splade": ["SpladeEncoder"],
            "encoders.splade_queries": ["fit_idf"],
            "encoders.splade_start": ["start_splade"],
            "encoders.towers": ["TowerEncoder"],
            "encoders.vocabulary": ["VocabularyEncoder"],
        },
    )
