"""Does at the start what would make the first requests slow: what is loaded or compiled at use."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.serving.content.content import Content, is_sparse

TEXTS = ("gold in the river", "a river of stone", "stone and gold")


def change_documents(content: Content) -> None:
    """Add, replace and delete documents of an index of its own, if one here is inverted."""
    if not any(is_sparse(encoder) for encoder in content.encoders.values()):
        return
    first, second, third = (Document(str(number), "", text) for number, text in enumerate(TEXTS))
    with tempfile.TemporaryDirectory(prefix="sluice-warm-") as place:
        retriever = Retriever.build(BM25Encoder(), [first], path=Path(place) / "bm25")
        retriever.add([second, third])
        retriever.update([Document(first.id, "", TEXTS[1])])
        retriever.delete([second.id])
