"""Late chunking: passages are encoded by states that saw the document around them.

(Günther et al. 2024, Late Chunking, arXiv 2409.04701; for longer documents its section 3.2.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.encoder import Dense, EncoderBase, hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.retrievers.corpus.windows import Spans

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.corpus.encoding import Encoding

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
