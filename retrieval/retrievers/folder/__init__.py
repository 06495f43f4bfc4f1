"""A retriever's folder on disk: its state, its parts, its encoder, and whether all are intact.

May import: `retrieval.pipelines`, `retrieval.documents` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.folder.head import (
        DOCUMENTS as DOCUMENTS,
        ENCODING as ENCODING,
        GENERATION as GENERATION,
        HEAD as HEAD,
        INDEX as INDEX,
        REPLICAS as REPLICAS,
        SHARDS as SHARDS,
        Changes as Changes,
        Head as Head,
        checked_head as checked_head,
        noted_in as noted_in,
        pinned_shards as pinned_shards,
        read_head as read_head,
        write_head as write_head,
    )
    from sluice.retrieval.retrievers.folder.parts import (
        check_encoder as check_encoder,
        copy_part as copy_part,
        copy_retriever as copy_retriever,
        discard_leftovers as discard_leftovers,
        discard_unfinished as discard_unfinished,
        head_of as head_of,
        open_placed_encoder as open_placed_encoder,
        parts_of as parts_of,
        place_encoder as place_encoder,
        refuse_foreign as refuse_foreign,
        restore as restore,
        roll_back as roll_back,
        usual_name as usual_name,
        verify_model as verify_model,
        verify_retriever as verify_retriever,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
