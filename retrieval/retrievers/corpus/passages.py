"""Cuts long documents into overlapping passages, and names those by which a document was found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.text import section_starts
from sluice.retrieval.pipelines.hit import Passage
from sluice.retrieval.pipelines.tracing import Span, passage_notes
from sluice.retrieval.retrievers.corpus.late_chunks import (
    LateEncoder,
    Pieces,
    Spans,
    TokenPieces,
    grouped,
    late_parts,
    windows,
    word_pieces,
)

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.documents.store import DocumentStore


VECTORS = "query vectors"


def keep_vectors(vectors: Any) -> None:
    """Keep in the running stage's span the vectors it searches with, for ``PassageFinder``."""
    if (keep := passage_notes()) is not None:
        keep[VECTORS] = vectors


@dataclass(frozen=True, slots=True)
class PassageFinder:
    """Finds the passage that gives a document its score; ``params`` are those of searches."""

    passages: Passages
    encoder: Any
    index: Index
    store: DocumentStore
    params: Mapping[str, Any]

    def find(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage that gives each document its score for the query.

        Of ``aggregate="first"`` that is the first one; of ``"mean"`` none decides, and all are
        None, as are documents that the retriever lacks or does not find. The query's vector is the
        one that the search kept in ``span``; without one the query is encoded.
        """
        found: list[Passage | None] = [None] * len(doc_ids)
        if self.passages.aggregate == "mean" or not doc_ids or not query.strip():
            return found
        rows = self.store.rows(doc_ids)
        here = np.flatnonzero(rows >= 0)
        numbers = self._winning(query, rows[here], (span.passage_notes or {}).get(VECTORS))
        here, numbers = here[numbers >= 0], numbers[numbers >= 0]
        documents = self.store.documents(rows[here])
        spans = self.passages.characters(self.encoder, documents)
        for place, number, document, each in zip(
            here.tolist(), numbers.tolist(), documents, spans, strict=True
        ):
            start, end = each[number]
            found[place] = Passage(number + 1, start, end, document.text[start:end])
        return found

    def _winning(self, query: str, rows: NDArray[np.int64], vectors: Any) -> NDArray[np.int64]:
        """Return the number of each row's best passage from 0, -1 where it has none."""
        from sluice.indexing.wrappers.passages import PassageIndex
        from sluice.indexing.wrappers.sharded import ShardedIndex

        index = self.index
        if self.passages.aggregate == "first" or not isinstance(index, PassageIndex | ShardedIndex):
            return np.zeros(len(rows), dtype=np.int64)
        if vectors is None or vectors.shape[0] != 1:
            vectors = self.encoder.encode_queries([query])
        return index.winning_passages(vectors, rows, params=self.params)


log = logging.getLogger("sluice")

_WARNED: set[tuple[str, int, int]] = set()  # titles that a warning was logged for

BLOCK = 256  # documents cut at a time: the tokens of many texts are large in memory
MEAN_OF_TOKENS = (
    "passages.aggregate: 'mean' makes one vector of a document's, and this encoder gives each "
    "token one; use 'max'"
)


@dataclass(frozen=True)
@checked()
class Passages:
    """How documents are cut into passages, and how the passages' scores become the document's.

    A passage is a part of the text of at most ``length`` tokens of the encoder, or white-space
    words where it has no fast tokenizer (BM25); neighbours share ``overlap`` of them. Passages
    begin and end with whole words, and the last one ends with the text and is as long as the
    others (it shares more), so that none is a mere tail. A document that fits is one passage and is
    encoded exactly as without passages.

    ``aggregate``: ``"max"`` scores a document by its best passage, ``"first"`` encodes only the
    first (MaxP and FirstP; Dai and Callan, 2019, arXiv 1905.09217), ``"mean"`` encodes all and
    keeps one vector, their mean. For inner products the score of the mean is the mean of the
    scores. Vectors of an encoder that normalises are normalised again, so that a document is not
    scored lower because its passages differ; sparse weights are averaged as they are.

    With ``repeat_title`` the title is put before every passage and is not counted; if it is too
    long for the encoder beside ``length`` tokens it is cut. Without, it is the beginning of the
    text. ``most`` reads only that many passages of a document, the first ones.

    With ``headings`` no passage goes beyond a heading of Markdown (``sluice.retrieval.documents.
    headings``): each section is cut on its own, so that a short one is a passage by itself.

    With ``late`` a dense encoder with mean pooling reads the document first, as much of it as it
    can at a time, and a passage's vector is the mean of the states of its own tokens, which saw
    those around (late chunking; Günther et al., 2024, arXiv 2409.04701). The tokens that are
    averaged are those of the passage without ``late``, special ones and a repeated title included.
    Of documents longer than the encoder reads, windows of whole passages are read, each after some
    of those before it.
    """

    length: Annotated[int, Ge(1), "Tokens of a passage, at most."] = 200
    overlap: Annotated[int, Ge(0), "Tokens that neighbours share."] = 50
    aggregate: Annotated[
        Literal["max", "first", "mean"],
        "What a document scores as: max, its best passage; first, the first one, which alone is "
        "encoded; mean, the mean of its passages' vectors.",
    ] = "max"
    repeat_title: bool = True
    most: Annotated[int | None, Ge(1)] = None
    headings: Annotated[
        bool, "Whether passages end at headings of Markdown: each section is cut on its own."
    ] = False
    late: Annotated[
        bool,
        "Encodes passages by token states that saw the document around them (late chunking).",
    ] = False

    def __post_init__(self) -> None:
        if self.overlap >= self.length:
            raise ConfigError(
                f"overlap: {self.overlap} of passages of {self.length}; expected less than length"
            )
        for name in ("repeat_title", "headings", "late"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: {getattr(self, name)!r}; expected true or false")

    def settings(self) -> dict[str, Any]:
        """Return the arguments that recreate these passages."""
        settings = asdict(self)
        if not self.late:  # as before there was any
            del settings["late"]
        return settings

    @classmethod
    def noted(cls, settings: Mapping[str, Any], where: str) -> Self:
        """Return the passages with the ``settings`` of a saved folder."""
        try:
            return cls(**settings)
        except (ConfigError, TypeError) as error:
            raise IndexFormatError(f"{where}: passages: {error}; rebuild the retriever") from None

    def check(self, encoder: Any) -> None:
        """Raise ``ConfigError`` unless passages of this length fit into what the encoder reads.

        And unless they can be aggregated: several vectors a text have no mean.
        """
        if hooks_of(encoder).decode_queries is not None:
            raise ConfigError(
                f"passages: a {hooks_of(encoder).kind} encoder reads documents whole, however "
                "long; leave passages out"
            )
        _Cutter(self, self.reader(encoder))
        if self.aggregate == "mean" and hooks_of(encoder).similarity in (
            "max_sim",
            "attention",
        ):
            raise ConfigError(MEAN_OF_TOKENS)

    def reader(self, encoder: Any) -> Any:
        """Return what encodes the passages that ``split`` cuts for it: with ``late`` another.

        ``ConfigError`` with ``late`` for an encoder that has no means of token states.
        """
        return LateEncoder(encoder) if self.late else encoder

    def parts(self, encoder: Any, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield all passages of all documents, one after the other."""
        return chain.from_iterable(self.split(encoder, documents))

    def split(self, encoder: Any, documents: Iterable[Document]) -> Iterator[list[Document]]:
        """Yield each document's passages, at least one, as documents with a part of the text.

        For the ``reader`` of late chunking they are what it reads of each.
        ``ConfigError`` if passages of this length do not fit into what the encoder reads.
        """
        cutter = _Cutter(self, encoder)
        for block in _blocks(documents):
            yield from cutter.cut(block)

    def characters(self, encoder: Any, documents: Iterable[Document]) -> Iterator[Spans]:
        """Yield where each document's passages, at least one, begin and end in its ``text``."""
        cutter = _Cutter(self, encoder)
        for block in _blocks(documents):
            yield from cutter.characters(block)


def _blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    stream = iter(documents)
    while block := list(islice(stream, BLOCK)):
        yield block


class _Cutter:
    """Cuts documents for one encoder into documents that are a passage each."""

    def __init__(self, passages: Passages, encoder: Any) -> None:
        self._passages = passages
        self._late = isinstance(encoder, LateEncoder)
        self._fields = bool(hooks_of(encoder).fields) and not self._late
        self._most = 1 if passages.aggregate == "first" else passages.most
        self._pieces: Callable[[Sequence[str]], list[Pieces]] = word_pieces
        self._capacity: int | None = None  # tokens of title and text that the encoder reads
        self._warned = False
        tokenizer = hooks_of(encoder).tokenizer
        if getattr(tokenizer, "is_fast", False):
            tokens = TokenPieces(tokenizer)
            self._pieces = tokens
            self._capacity = _capacity(encoder, tokens)
            self._check_length(self._capacity)
        elif tokenizer is not None:
            log.warning(
                "passages: %s has no fast tokenizer, so their length of %d counts words; the "
                "encoder may cut them",
                type(encoder).__name__, passages.length,
            )  # fmt: skip

    def _check_length(self, capacity: int | None) -> None:
        length = self._passages.length
        if capacity is None or length < capacity:
            return
        if length > capacity:
            raise ConfigError(
                f"passages.length: {length} tokens; beside prompt and special tokens the encoder "
                f"reads {capacity} of a document: take a smaller length, or a larger "
                "document_length if the model allows it"
            )
        if self._passages.repeat_title:
            raise ConfigError(
                f"passages.length: {length} tokens are all the encoder reads of a document, and "
                "leave no room for titles: take a smaller length, or repeat_title: false"
            )

    def cut(self, documents: Sequence[Document]) -> Iterator[list[Document]]:
        """Yield each document's passages."""
        texts = self._texts(documents)
        pieces = self._pieces(texts)
        titles = self._pieces(["" if self._joined else document.title for document in documents])
        for document, text, *counted in zip(documents, texts, pieces, titles, strict=True):
            parts = self._cut_late if self._late else self._cut
            yield parts(document, text, *counted)

    def characters(self, documents: Sequence[Document]) -> Iterator[Spans]:
        """Yield where each document's passages begin and end in its text."""
        texts = self._texts(documents)
        pieces = self._pieces(texts)
        for document, text, counted in zip(documents, texts, pieces, strict=True):
            spans = self._spans(text, counted, self._most)
            if spans is None:
                yield [(0, len(document.text))]
            elif self._joined:
                yield [document.own_characters(*span) for span in spans]
            else:
                yield spans

    @property
    def _joined(self) -> bool:
        """Whether the title is the beginning of the text."""
        return not self._passages.repeat_title and not self._fields

    def _texts(self, documents: Sequence[Document]) -> list[str]:
        return [each.full_text if self._joined else each.text for each in documents]

    def _spans(self, text: str, pieces: Pieces, most: int | None) -> Spans | None:
        """Return the characters of the first passages; None for a text that is one passage."""
        length, overlap = self._passages.length, self._passages.overlap
        cut: Spans = []
        for start, stop in self._sections(text, pieces):
            parts = windows(pieces.begins[start:stop], length, overlap)
            cut += [(start + first, start + last) for first, last in parts]
        if len(cut) == 1:
            return None
        return [pieces.characters(*each) for each in cut[:most]]

    def _sections(self, text: str, pieces: Pieces) -> Spans:
        """Return the pieces that passages stay within: each section's, or all."""
        if not self._passages.headings or "\n" not in text:
            return [(0, len(pieces))]
        borders = np.searchsorted(pieces.starts, section_starts(text))
        borders = np.unique(np.append(borders, [0, len(pieces)]))
        return list(pairwise(borders.tolist())) or [(0, 0)]

    def _cut(self, document: Document, text: str, pieces: Pieces, title: Pieces) -> list[Document]:
        spans = self._spans(text, pieces, self._most)
        if spans is None:
            whole = self._titled(document, title, len(pieces)) if len(pieces) else document
            return [whole]
        parts = [document._replace(text=text[start:end]) for start, end in spans]
        if self._passages.repeat_title:
            heading = self._titled(document, title, self._passages.length).title
            return [part._replace(title=heading) for part in parts]
        kept = 1 if self._fields else 0
        return parts[:kept] + [part._replace(title="") for part in parts[kept:]]

    def _cut_late(
        self, document: Document, text: str, pieces: Pieces, title: Pieces
    ) -> list[Document]:
        spans = self._spans(text, pieces, None)  # those that are left out are context
        if spans is None:
            [whole] = self._cut(document, text, pieces, title)
            return [Document(document.id, "", whole.full_text)]
        heading, room = "", self._capacity
        if not self._joined:
            heading = self._titled(document, title, self._passages.length).title.strip()
        if room is not None:
            room -= min(len(title), room - self._passages.length)
        borders = np.array(spans)
        starts = np.searchsorted(pieces.starts, borders[:, 0]).tolist()
        ends = np.searchsorted(pieces.starts, borders[:, 1]).tolist()
        windows = grouped(starts, ends, room)
        return late_parts(document, heading, text, spans, windows, self._most)

    def _titled(self, document: Document, title: Pieces, used: int) -> Document:
        """Return the document with as much of its title as goes before ``used`` tokens of text."""
        if self._capacity is None or len(title) <= (room := self._capacity - used):
            return document
        first = (document.id, len(title), room)
        if not self._warned and first not in _WARNED:  # a corpus is read several times
            _WARNED.add(first)
            log.warning(
                "passages: the title of %r has %d tokens, and the encoder has room for %d; it is "
                "cut, and others like it are",
                document.id, len(title), room,
            )  # fmt: skip
        self._warned = True
        last = windows(title.begins, room, 0)[0][1] if room else 0
        return document._replace(title=title.cut(document.title, 0, last) if last else "")


def _capacity(encoder: Any, tokens: TokenPieces) -> int | None:
    hooks = hooks_of(encoder)
    if not isinstance(hooks.lengths, Mapping) or "document" not in hooks.lengths:
        return None
    return int(hooks.lengths["document"]) - tokens.overhead(hooks.prompts.get("document", ""))
