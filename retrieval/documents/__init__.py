"""Documents, their store on disk, and conditions on their metadata.

May import: `encoders.foundation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document as Document
    from sluice.retrieval.documents.store import DocumentStore as DocumentStore
    from sluice.retrieval.documents.where import Where as Where
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
