"""BM25 as a sparse encoder: analysis, vocabulary, term counts, fields.

May import: `encoders.model_files` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.lexical.bm25 import BM25Encoder as BM25Encoder
    from sluice.encoders.lexical.vocabulary import VocabularyEncoder as VocabularyEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
