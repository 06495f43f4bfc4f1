"""Text in, vectors out: dense, SPLADE, token, BM25 encoders; and cross-encoders that score pairs.

May import: nothing of the other three packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.encoder import DenseEncoder as DenseEncoder
    from sluice.encoders.dense.error_adapter import PairHead as PairHead
    from sluice.encoders.dense.experts.encoder import ExpertEncoder as ExpertEncoder
    from sluice.encoders.dense.objects.function import FunctionEncoder as FunctionEncoder
    from sluice.encoders.dense.objects.sentence_transformer import (
        SentenceTransformerEncoder as SentenceTransformerEncoder,
    )
    from sluice.encoders.dense.precomputed import PrecomputedEncoder as PrecomputedEncoder
    from sluice.encoders.dense.static.encoder import StaticEncoder as StaticEncoder
    from sluice.encoders.encoder import Encoder as Encoder, EncoderBase as EncoderBase
    from sluice.encoders.foundation.errors import SluiceError as SluiceError
    from sluice.encoders.foundation.progress import show_progress as show_progress
    from sluice.encoders.foundation.tokens import (
        TokenSequences as TokenSequences,
        TokenVectors as TokenVectors,
        max_sim as max_sim,
    )
    from sluice.encoders.generative.dsi import DsiEncoder as DsiEncoder
    from sluice.encoders.generative.encoder import SealEncoder as SealEncoder
    from sluice.encoders.late_interaction.encoder import TokenEncoder as TokenEncoder
    from sluice.encoders.lexical.analyzer import Analyzer as Analyzer, analyzer as analyzer
    from sluice.encoders.lexical.bm25 import BM25Encoder as BM25Encoder
    from sluice.encoders.lexical.vocabulary import VocabularyEncoder as VocabularyEncoder
    from sluice.encoders.objects import as_encoder as as_encoder, as_scorer as as_scorer
    from sluice.encoders.own.csr import CsrEncoder as CsrEncoder
    from sluice.encoders.own.gaussian.encoder import GaussianEncoder as GaussianEncoder
    from sluice.encoders.own.hypencoder.encoder import Hypencoder as Hypencoder
    from sluice.encoders.own.pseudo_queries import PseudoQueryEncoder as PseudoQueryEncoder
    from sluice.encoders.own.three_heads.encoder import ThreeHeadEncoder as ThreeHeadEncoder
    from sluice.encoders.rerankers.cross_encoder import CrossEncoder as CrossEncoder
    from sluice.encoders.splade.concepts.encoder import ConceptEncoder as ConceptEncoder
    from sluice.encoders.splade.encoder import SpladeEncoder as SpladeEncoder
    from sluice.encoders.splade.start import fit_idf as fit_idf, start_splade as start_splade
    from sluice.encoders.towers import TowerEncoder as TowerEncoder
    from sluice.encoders.transformer.text_encoder import (
        TokenStates as TokenStates,
        token_states as token_states,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
