"""What a search returns: a document, its score, the passage or the tokens it was found by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.familiar import named_item, unknown
from sluice.retrieval.documents.document import NOTHING, Metadata

SHOWN = 60  # characters of a text in a ``repr``


class Passage(NamedTuple):
    """A part of a document: characters ``start`` to ``end`` (excluded) of ``hit.text``.

    ``number`` counts the document's passages from 1. A document that is one passage has number 1.
    """

    number: int
    start: int
    end: int
    text: str

    def __repr__(self) -> str:
        return f"Passage({self.number}, {self.start}:{self.end}, {short(self.text)!r})"


class TokenMatch(NamedTuple):
    """One token of a query, and the document's token that is most similar to it.

    ``similarity`` is what the pair adds to the score: the score is the sum over the query's tokens.
    ``query_place`` and ``document_place`` count from 0. Tokens of an encoder that does not name
    them are called ``[0]``, ``[1]`` ... ``in_query`` is False for a token that is not of the
    query's text, such as a mask that it is filled up with. ``spans`` are the characters
    [start, end) of the document's full text that the token stands at, where the encoder tells.
    """

    query_token: str
    document_token: str
    similarity: float
    query_place: int
    document_place: int
    in_query: bool = True
    spans: tuple[tuple[int, int], ...] = ()


class PartScore(NamedTuple):
    """A part of a document that was scored by itself: how likely it alone is relevant, 0 to 1."""

    field: str
    text: str
    probability: float


class Hit(NamedTuple):
    """One document found: its id, its score (higher is better), its text, title and metadata.

    ``text`` is the document's own, without its title; of a stage whose store has plain texts only
    it is what the store has. ``passage`` is the passage that gave the document its place, None
    where documents are searched whole: ``hit.text[passage.start : passage.end] == passage.text``.
    """

    doc_id: str
    score: float
    text: str
    title: str = ""
    metadata: Metadata = NOTHING
    passage: Passage | None = None

    @property
    def full_text(self) -> str:
        """What is encoded and reranked: the title, a space and the text, stripped."""
        return f"{self.title} {self.text}".strip()

    @property
    def docid(self) -> str:
        """The document's id, as Pyserini calls it."""
        return self.doc_id

    @property
    def docno(self) -> str:
        """The document's id, as PyTerrier calls it."""
        return self.doc_id

    @property
    def id(self) -> str:
        """The document's id, as it calls it itself."""
        return self.doc_id

    def to_dict(self) -> dict[str, Any]:
        """Return the hit for JSON: ``as_dict``."""
        return self.as_dict()

    def as_dict(self) -> dict[str, Any]:
        """Return the hit for JSON."""
        passage = None if self.passage is None else self.passage._asdict()
        return {**self._asdict(), "metadata": dict(self.metadata), "passage": passage}

    def __repr__(self) -> str:
        parts = [f"doc_id={self.doc_id!r}", f"score={self.score:.6g}"]
        parts += [f"title={short(self.title)!r}"] if self.title else []
        if self.passage is None:
            parts.append(f"text={short(self.text)!r}")
        else:
            parts.append(f"passage={self.passage!r}")
        return f"Hit({', '.join(parts)})"

    def __hash__(self) -> int:
        return hash(self[:4])  # a mapping has no hash; equal hits still share theirs

    def __reduce__(self) -> tuple[Any, ...]:
        return Hit, (*self[:4], dict(self.metadata), self.passage)  # a proxy cannot be pickled


if not TYPE_CHECKING:  # a checker would take any name
    Hit.__getattr__ = unknown
    Hit.__getitem__ = named_item


def short(text: str, length: int = SHOWN) -> str:
    """Return the start of a text on one line, ``length`` characters at most."""
    start = " ".join(text[: 2 * length].split())  # a text may have a million characters
    return start if len(start) <= length else start[: length - 3] + "..."
