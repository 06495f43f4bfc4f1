"""From a stream of documents to a filled index, and what is read back: passages, tokens.

May import: `retrieval.documents`, `retrieval.runs`, `indexing`, `encoders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.corpus.encoding import Encoding as Encoding
    from sluice.retrieval.retrievers.corpus.passages import Passages as Passages
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
