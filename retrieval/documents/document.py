"""The document: what a corpus streams, an encoder reads and a retriever returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sluice.familiar import named_item, unknown

Value: TypeAlias = str | int | float | bool | Sequence[str] | None
Metadata: TypeAlias = Mapping[str, Value]
NOTHING: Metadata = MappingProxyType({})


class Document(NamedTuple):
    """One entry of a corpus; an empty title or an empty text is valid: ``Document("1", text="x")``.

    ``metadata`` is what ``where`` filters by: key to text, number, boolean or list of texts. None
    is the same as no key.
    """

    id: str
    title: str = ""
    text: str = ""
    metadata: Metadata = NOTHING

    @property
    def full_text(self) -> str:
        """What is encoded and reranked: the title, a space and the text, stripped."""
        return f"{self.title} {self.text}".strip()

    def own_characters(self, start: int, end: int) -> tuple[int, int]:
        """Return the characters of ``text`` that are those of ``full_text`` from start to end.

        What lies in the title, or in white space that is stripped, is left out.
        """
        joined = f"{self.title} {self.text}"
        before = len(self.title) + 1 - (len(joined) - len(joined.lstrip()))
        most = len(self.text)
        return min(max(0, start - before), most), min(max(0, end - before), most)

    def __hash__(self) -> int:
        return hash(self[:3])  # a mapping has no hash; equal documents still share theirs

    def __reduce__(self) -> tuple[Any, ...]:
        return Document, (*self[:3], dict(self.metadata))  # a mapping proxy cannot be pickled


if not TYPE_CHECKING:  # a checker would take any name
    Document.__getattr__ = unknown
    Document.__getitem__ = named_item


def of_texts(texts: Iterable[str], ids: Any = None, metadatas: Any = None) -> list[Document]:
    """Return documents of texts with their ids, 0 to n - 1 without, and their metadata."""
    texts = list(texts)
    names = range(len(texts)) if ids is None else ids
    facts = [NOTHING] * len(texts) if metadatas is None else metadatas
    rows = zip(names, texts, facts, strict=True)
    return [Document(str(name), "", text, each) for name, text, each in rows]


def document_input(encoder: Any, document: Document) -> str | dict[str, str]:
    """Return what an encoder reads of a document: its full text, or its fields by name.

    An encoder whose ``fields`` is set reads fields: title, text and every text in the metadata.
    One that ``reads_ids`` reads id, title and text.
    """
    from sluice.encoders.encoder import hooks_of  # not needed to read documents, and slow to load

    hooks = hooks_of(encoder)
    if hooks.reads_ids:
        return {"id": document.id, "title": document.title, "text": document.text}
    if not hooks.fields:
        return document.full_text
    texts = {name: text for name, text in document.metadata.items() if isinstance(text, str)}
    return {**texts, "title": document.title, "text": document.text}
