"""Reads what people have as documents: folders of files, tables, frames, lists, the hub, pipes.

May import: `encoders.foundation`, `retrieval.documents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.documents.readers.documents import Documents as Documents
    from sluice.retrieval.documents.readers.source import as_documents as as_documents
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
