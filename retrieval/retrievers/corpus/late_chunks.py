"""Late chunking: passages are encoded by states that saw the document, window by window.

(Günther et al. 2024, Late Chunking, arXiv 2409.04701; for longer documents its section 3.2.)
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Dense, EncoderBase, hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.execution.executor import LOCAL, Executor

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.corpus.encoding import Encoding


LONGEST_WORD = 16  # tokens of a word that is never cut; what is longer is hardly a word
WORD = re.compile(r"\S+")

Places = NDArray[np.int64]
Spans = list[tuple[int, int]]


class Pieces(NamedTuple):
    """The tokens or words of a text, in order: their characters, and where words begin."""

    starts: Places  # [pieces] first character
    ends: Places  # [pieces] one after the last character
    begins: NDArray[np.bool_]  # [pieces] a passage may begin here

    def __len__(self) -> int:
        return len(self.starts)

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return where pieces ``first`` to ``last``, the latter excluded, begin and end."""
        return int(self.starts[first]), int(self.ends[first:last].max())

    def cut(self, text: str, first: int, last: int) -> str:
        """Return the characters of pieces ``first`` to ``last``, the latter excluded."""
        start, end = self.characters(first, last)
        return text[start:end]


def word_pieces(texts: Sequence[str]) -> list[Pieces]:
    """Return the white-space words of texts."""
    found = []
    for text in texts:
        spans = np.array([word.span() for word in WORD.finditer(text)], dtype=np.int64)
        spans = spans.reshape(-1, 2)
        found.append(Pieces(spans[:, 0], spans[:, 1], np.ones(len(spans), dtype=np.bool_)))
    return found


class TokenPieces:
    """Cuts texts into a fast tokenizer's tokens, without special ones.

    It works on a copy: a tokenizer that others use keeps the length of their last call.
    """

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import Tokenizer

        self._copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._copy.no_truncation()
        self._copy.no_padding()

    def __call__(self, texts: Sequence[str]) -> list[Pieces]:
        """Return the tokens of texts."""
        encoded = self._copy.encode_batch(list(texts), add_special_tokens=False)
        return [_pieces(each.offsets, each.word_ids) for each in encoded]

    def overhead(self, prompt: str) -> int:
        """Return how many tokens every text has besides its own: the prompt's and special ones."""
        return len(self._copy.encode(prompt).ids)


def _pieces(offsets: Sequence[tuple[int, int]], words: Sequence[int | None]) -> Pieces:
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0], places[:, 1]
    numbers = np.array([-1 if word is None else word for word in words], dtype=np.int64)
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = (numbers[1:] != numbers[:-1]) | (numbers[1:] < 0)
    runs = np.diff(np.append(np.flatnonzero(begins), len(begins)))
    begins |= np.repeat(runs > LONGEST_WORD, runs)
    begins[1:] &= starts[1:] >= ends[:-1]  # several tokens of one character stay together
    return Pieces(starts, ends, begins)


def windows(begins: NDArray[np.bool_], length: int, overlap: int) -> Spans:
    """Return spans of at most ``length`` pieces that cover all, each from a word's beginning.

    Neighbours share ``overlap`` pieces, fewer where a word would be cut. The last window ends with
    the text and is as long as the others, so it may share more: no passage is a mere tail. A word
    that leaves a window nothing new is cut.
    """
    total = len(begins)
    if total <= length:
        return [(0, total)]
    borders = np.append(np.flatnonzero(begins), total).tolist()
    spans: Spans = []
    start = stop = 0
    while total - start > length:
        whole = borders[bisect_right(borders, start + length) - 1]
        stop = whole if whole > stop else start + length
        spans.append((start, stop))
        start = min(_next(borders, max(stop - overlap, start + 1)), stop)
    return [*spans, (min(_next(borders, total - length), start), total)]


def _next(borders: list[int], place: int) -> int:
    """Return the first border at ``place`` or after it."""
    return borders[bisect_left(borders, place)]


PARTS = "parts"  # the field that says which characters of the text are the passage
CONTEXT = 4  # the share of a window that is read for context alone is one of so many


class Window(NamedTuple):
    """Passages that are read together: those from ``first`` on, which ``own`` and later belong to.

    Those before ``own`` are context, which an earlier window encodes. All numbers are passages';
    ``stop`` is one after the last.
    """

    first: int
    own: int
    stop: int


def grouped(starts: Sequence[int], ends: Sequence[int], room: int | None) -> list[Window]:
    """Return the windows in which passages are read: as many as fit into ``room`` tokens.

    ``starts`` and ``ends`` are the passages' tokens in the text, each at most ``room`` of them;
    None: all fit. A window begins with the passages before its own, up to a quarter of the room.
    """
    windows, own = list[Window](), 0
    while own < len(starts):
        first = own
        if room is not None:
            while first and starts[own] - starts[first - 1] <= room // CONTEXT:
                first -= 1
            while ends[own] - starts[first] > room:
                first += 1
        stop = own + 1
        while stop < len(starts) and (room is None or ends[stop] - starts[first] <= room):
            stop += 1
        windows.append(Window(first, own, stop))
        own = stop
    return windows


def late_parts(document: Document, title: str, text: str, spans: Spans, windows: Sequence[Window],
               most: int | None) -> list[Document]:  # fmt: skip
    """Return a document's passages, the first ``most``, as what ``LateEncoder`` reads of each.

    ``spans`` are their characters in ``text``. ``title`` is put before each window's text, and is
    part of every passage.
    """
    parts = list[Document]()
    before = f"{title} " if title else ""
    for first, own, stop in windows:
        begin, end = spans[first][0], max(last for _, last in spans[first:stop])
        for start, last in spans[own:stop]:
            shift = len(before) - begin
            places = [(start + shift, last + shift)]
            if title:
                places = [(0, len(title)), *places]
            metadata = {PARTS: json.dumps(places)}
            whole = before + text[begin:end]
            parts.append(Document(document.id, "", whole, metadata))
    return parts[:most]


def check_one_process(
    encoding: Encoding | None, where: str = "", executor: Executor = LOCAL
) -> None:
    """Raise ``ConfigError`` for several processes, which this encoder is not sent to."""
    if executor.remote:
        raise ConfigError(
            f"{where}passages.late: encodes in one process, which uses all threads, and an "
            "executor would share the texts out; use executor: local, or late: false"
        )
    if encoding is not None and (encoding.workers > 1 or encoding.devices):
        raise ConfigError(
            f"{where}encoding.workers: late chunking encodes in one process, which uses all "
            "threads; use workers: 1 and no devices"
        )


class LateEncoder(EncoderBase):
    """Encodes documents that ``Passages`` cut for late chunking; queries are the encoder's own.

    ``ConfigError`` for an encoder whose vectors are not means of token states.
    """

    kind = "late"
    dim: Any
    dtype: Any
    device: Any
    backend: Any
    batch_tokens: Any
    tokenizer: Any
    prompts: Any
    lengths: Any
    similarity: Any
    normalize: Any
    fields: Any

    def __init__(self, encoder: Any) -> None:
        hooks = hooks_of(encoder)
        self._encoder = encoder
        own = hooks_of(hooks.towers.get("document", encoder))
        if own.encode_parts is None:
            raise ConfigError(
                f"passages.late: a {type(encoder).__name__} has no token states whose mean is its "
                "vector; it needs a dense encoder with pooling: mean and a fast tokenizer: leave "
                "late out"
            )
        self._encode_parts = own.encode_parts
        self.fields = {PARTS: 1.0, "text": 1.0}
        self.similarity = hooks.similarity
        self.normalize = hooks.normalize
        self.dim = hooks.dim
        self.dtype = hooks.dtype
        self.device = hooks.device
        self.backend = hooks.backend
        self.batch_tokens = hooks.batch_tokens
        self.tokenizer = hooks.tokenizer
        self.prompts = hooks.prompts
        self.lengths = hooks.lengths

    @property
    def fingerprint(self) -> str:
        """A hash of the encoder, other than its own: these vectors saw more."""
        return fingerprint_of("late chunking", str(self._encoder.fingerprint))

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the encoder's vectors of queries."""
        return self._encoder.encode_queries(texts)

    def encode_documents(self, texts: Sequence[Any]) -> Dense:
        """Return one vector a passage, in order; neighbours of one window share its pass."""
        whole = list[str]()
        parts = list[list[Any]]()
        for each in texts:
            text, places = each["text"], each.get(PARTS)
            if not whole or whole[-1] != text or places is None or parts[-1] == [None]:
                whole.append(text)
                parts.append([])
            parts[-1].append(None if places is None else json.loads(places))
        return self._encode_parts(whole, parts)
