"""Counts the terms of texts and of their fields, chunk by chunk, in bounded memory.

Texts are first cut into *pieces* at spaces, all at once, and a piece is looked up instead of
analysed: no word contains a space, a control character or most of ASCII's punctuation, and texts
repeat few pieces many times. Only a new piece is split into words and stemmed. Pieces are UTF-8
bytes, because those are the fastest to cut and look up.
"""

from __future__ import annotations

import string
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from sluice.encoders.foundation.disk.files import name_file
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.lexical.analyzer import CACHED_WORDS, LONGEST_WORD, Analyzer, words

BATCH_CHARACTERS = 1 << 15  # cut into pieces together: these stay in the processor's cache
CHUNK_WORDS = 1 << 19  # counted together: about 20 MB of working arrays
# Instead of a column: no term; a term without a column; end of a text; several terms (and below).
LEFT_OUT, UNKNOWN, ENDED, SEVERAL = -1, -2, -3, -4
Integers = np.ndarray[tuple[int], np.dtype[Any]]
Column = Callable[[str], int | None]
END = b"A"  # after each text: lower-cased text has no ASCII capitals
TAGS = [letter.encode() for letter in string.ascii_uppercase[1:]]  # before pieces of a field
MIDDLE = b".':,;"  # may occur inside a word, but never at its end
KEPT = (string.ascii_letters + string.digits + "_").encode() + MIDDLE
TABLE = bytes(byte if byte >= 0x80 or byte in KEPT else 0x20 for byte in range(0x100))


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The distinct terms of each of some documents, one after the other, columns ascending."""

    terms: Integers  # [entries] int32, columns of the vocabulary
    counts: Integers  # [entries] int32, how often the term occurs in its document
    sizes: Integers  # [documents] int64, entries of each document
    lengths: Any  # [documents, fields] int64, terms of each, those without a column included


class _Columns(dict[bytes, int]):
    """Maps a piece to its column or one of the negative codes, analysing it the first time."""

    def __init__(self, analyzer: Analyzer, column: Column, prefixes: Sequence[str]) -> None:
        super().__init__()
        self._analyzer, self._column = analyzer, column
        self._prefixes = dict(zip(TAGS, prefixes, strict=False)) if len(prefixes) > 1 else {}
        self._prefix = prefixes[0]
        self.several: list[list[int]] = []
        self.forget()

    def __missing__(self, piece: bytes) -> int:
        if (shorter := piece.rstrip(MIDDLE)) != piece:  # most often a comma or a full stop
            self[piece] = code = self[shorter]
            return code
        prefix, untagged = self._prefix, piece
        if self._prefixes:
            prefix, untagged = self._prefixes[piece[:1]], piece[1:]
        columns = []
        for term in terms(untagged, self._analyzer):
            if term:
                column = self._column(prefix + term)
                columns.append(UNKNOWN if column is None else column)
        code = columns[0] if columns else LEFT_OUT
        if len(columns) > 1:
            code = SEVERAL - len(self.several)
            self.several.append(columns)
        self[piece] = code
        return code

    def forget(self) -> None:
        """Empty the map; codes given before mean nothing then."""
        self.clear()
        self.several.clear()
        self[END] = ENDED

    def codes(self, cut: Sequence[bytes]) -> Integers:
        """Return the columns and codes of pieces, several terms of one piece side by side."""
        codes = np.fromiter(map(self.__getitem__, cut), np.int32, len(cut))
        if len(places := np.flatnonzero(codes <= SEVERAL)):
            inside = [self.several[SEVERAL - code] for code in codes[places].tolist()]
            times = np.ones(len(codes), np.int64)
            times[places] = [len(columns) for columns in inside]
            codes = np.repeat(codes, times)
            codes[codes <= SEVERAL] = np.concatenate(inside)
        return codes


def counted(
    documents: Iterable[Sequence[str]],
    analyzer: Analyzer,
    column: Column,
    prefixes: Sequence[str] = ("",),
) -> Iterator[TermCounts]:
    """Yield the counts of ``documents`` in chunks of about half a million words.

    A document is a text for each of ``prefixes``; a prefix precedes the terms of its text.
    ``column`` gives a term's column, or None to leave it out of all but the length.
    """
    columns = _Columns(analyzer, column, prefixes)
    texts, characters = list[str](), 0
    chunk, words = list[Integers](), 0
    for document in documents:
        texts += document
        characters += sum(map(len, document), 1)
        if characters >= BATCH_CHARACTERS:
            if len(columns) > CACHED_WORDS:
                columns.forget()
            chunk.append(columns.codes(pieces(texts, len(prefixes), analyzer)))
            words += len(chunk[-1])
            texts, characters = [], 0
            if words >= CHUNK_WORDS:
                yield _chunk(chunk, len(prefixes))
                chunk, words = [], 0
    if texts:
        chunk.append(columns.codes(pieces(texts, len(prefixes), analyzer)))
    if chunk:
        yield _chunk(chunk, len(prefixes))


def coded(texts: Iterable[str], analyzer: Analyzer, column: Column) -> Iterator[Integers]:
    """Yield the terms of ``texts`` in their order, some texts at a time, as int32.

    A term is its column, or ``UNKNOWN`` if ``column`` has none; ``ENDED`` follows each text. Terms
    that the analyser leaves out are absent.
    """
    columns = _Columns(analyzer, column, ("",))
    some, characters = list[str](), 0
    for text in texts:
        some.append(text)
        characters += len(text) + 1
        if characters >= BATCH_CHARACTERS:
            if len(columns) > CACHED_WORDS:
                columns.forget()
            codes = columns.codes(pieces(some, 1, analyzer))
            yield codes[codes != LEFT_OUT]
            some, characters = [], 0
    if some:
        codes = columns.codes(pieces(some, 1, analyzer))
        yield codes[codes != LEFT_OUT]


def _chunk(parts: list[Integers], fields: int) -> TermCounts:
    codes = np.concatenate(parts) if len(parts) > 1 else parts[0]
    ends = codes == ENDED
    text = np.cumsum(ends)  # an end itself counts to the next text, and is left out below
    texts = int(text[-1])
    terms = (codes != LEFT_OUT) & ~ends
    lengths = np.bincount(text[terms], minlength=texts).reshape(-1, fields)
    # One sort of (document, column) as a single integer brings equal terms together.
    keys = (((text // fields if fields > 1 else text) << 32) | codes)[codes >= 0]
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    distinct = keys[first]
    return TermCounts(
        terms=(distinct & 0xFFFFFFFF).astype(np.int32),
        counts=np.diff(first, append=len(keys)).astype(np.int32),
        sizes=np.bincount(distinct >> 32, minlength=texts // fields),
        lengths=lengths,
    )


def pieces(texts: Sequence[str], fields: int, analyzer: Analyzer) -> list[bytes]:
    """Return the pieces of ``texts``, one text after the other, with ``END`` after each.

    With several ``fields`` the texts belong to them in turn, and field n's pieces begin with
    ``TAGS[n]``.
    """
    if fields == 1:
        return _spaced(texts, analyzer).split()
    by_field = [
        (b" " + _spaced(texts[field::fields], analyzer)).replace(b" ", b" " + tag).split(tag + END)
        for field, tag in zip(range(fields), TAGS, strict=False)
    ]
    in_turn = chain.from_iterable(zip(*(cells[:-1] for cells in by_field), strict=True))
    return b" ".join([part for cell in in_turn for part in (cell, END)]).split()


def terms(piece: bytes, analyzer: Analyzer) -> list[str]:
    """Return the terms of an untagged piece, in order; empty for those left out."""
    core = piece.strip(MIDDLE)
    if core.isalnum() and len(core) <= LONGEST_WORD:  # ASCII's letters and digits: one word
        return [analyzer.term(core.decode())]
    text = piece.decode("utf-8", "surrogatepass")
    return [analyzer.term(word) for word in (words(text) if analyzer.lower else [text])]


def _spaced(texts: Sequence[str], analyzer: Analyzer) -> bytes:
    if analyzer.lower is None:  # not cut at spaces: the words themselves are the pieces
        parts = [" ".join([*analyzer.words(text), "A "]) for text in texts]
        return "".join(parts).encode("utf-8", "surrogatepass")
    lowered = " A ".join([*map(analyzer.lower, texts), ""])
    return lowered.encode("utf-8", "surrogatepass").translate(TABLE)


SPILL = 1 << 24  # pairs of a document and a term that are kept in memory: 134 MB


class CountSpool:
    """Chunks of counts in the order of adding, to be read once.

    The file has no name, lies in ``TMPDIR`` and takes 5 bytes for most pairs of a document and a
    term; it goes when the chunks have been read, or with the object.
    """

    def __init__(self, spill: int | None = None) -> None:
        self._spill = SPILL if spill is None else spill
        self._held: list[TermCounts] = []
        self._pairs = 0
        self._file: IO[bytes] | None = None
        self._forms: list[list[tuple[Any, tuple[int, ...]]]] = []  # of each chunk in the file
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def append(self, counts: TermCounts) -> None:
        """Keep a chunk; an ``OSError`` of a full disk names the folder of the file."""
        self._held.append(counts)
        self._pairs += len(counts.terms)
        if self._pairs > self._spill:
            try:
                if self._file is None:
                    self._file = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                for each in self._held:
                    self._write(self._file, each)
            except OSError as error:
                name_file(error, Path(tempfile.gettempdir()))
                raise
            self._held = []

    def _write(self, file: IO[bytes], counts: TermCounts) -> None:
        small = counts.counts.astype(np.min_scalar_type(counts.counts.max(initial=0)))
        arrays = (counts.terms, small, counts.sizes, counts.lengths)
        for array in arrays:
            np.ascontiguousarray(array).tofile(file)
        self._forms.append([(array.dtype, array.shape) for array in arrays])

    def drained(self) -> Iterator[TermCounts]:
        """Yield the chunks, each of them once; ``DataError`` if the file was cut short."""
        with self._open:
            if self._file is not None:
                self._file.seek(0)
                for form in self._forms:
                    terms, counts, sizes, lengths = (
                        _read(self._file, *each).reshape(each[1]) for each in form
                    )
                    yield TermCounts(terms, counts.astype(np.int32), sizes, lengths)
            self._held.reverse()
            while self._held:
                yield self._held.pop()


def _read(file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = bytearray(file.read(size))
    if len(data) < size:
        raise DataError("the temporary file of BM25's counts was truncated; is the disk full?")
    return np.frombuffer(data, dtype)


SEPARATOR = ":"
Lengths = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # [documents, fields], terms of each


class Fields:
    """Names and weights, in order; without a mapping, the one unnamed field of plain texts."""

    def __init__(self, weights: Mapping[str, float] | None) -> None:
        self.weights = {"": 1.0} if weights is None else _check_weights(weights)
        self.named = weights is not None
        self.prefixes = [f"{name}{SEPARATOR}" if self.named else "" for name in self.weights]

    def numbers(self, vocabulary: Collection[str], known: Any) -> np.ndarray[tuple[int], Any]:
        """Return the number of each column's field; ``known`` has those of the first columns."""
        if not self.named:
            return np.zeros(len(vocabulary), np.int8)
        number = {name: place for place, name in enumerate(self.weights)}
        new = []
        for term in islice(vocabulary, len(known), None):
            if (field := number.get(term.partition(SEPARATOR)[0])) is None:
                raise IndexFormatError(
                    f"bm25.fields: the term {term!r} belongs to none of {', '.join(number)}; "
                    "rebuild"
                )
            new.append(field)
        return np.concatenate([known, np.array(new, np.int8)])

    def holders(self, lengths: Lengths) -> np.ndarray[tuple[int], Any]:
        """Return N of each field: the number of documents with the field."""
        if not self.named:  # empty ones too
            return np.array([len(lengths)])
        return np.asarray(np.count_nonzero(lengths, axis=0))

    def repeated(self, texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Yield each text once for every field."""
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        times = len(self.weights)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"texts[{place}]: {type(text).__name__}; expected str")
            yield (text,) * times

    def parted(self, documents: Iterable[Any], *, complete: bool = False) -> Iterator[Any]:
        """Yield the tuple of each document's fields, empty for those it lacks.

        Raises ``DataError`` unless a document is a mapping of names to texts; with ``complete``
        also ``ConfigError``, after the last document, if no document has some field.
        """
        if not self.named:
            yield from self.repeated(documents)
            return
        absent, place, document = set(self.weights), -1, dict[str, str]()
        for place, document in enumerate(documents):
            if not isinstance(document, Mapping):
                raise DataError(
                    f"documents[{place}]: {type(document).__name__}; this BM25 reads fields: "
                    f"expected a mapping with {', '.join(self.weights)}"
                )
            texts = tuple([document.get(name, "") for name in self.weights])
            for name, text in zip(self.weights, texts, strict=True):
                if not isinstance(text, str):
                    raise DataError(
                        f"documents[{place}][{name!r}]: {type(text).__name__}; expected str"
                    )
            if absent:
                absent.difference_update(document)
            yield texts
        if complete and absent and place >= 0:
            name = min(absent)
            raise ConfigError(
                f"bm25.fields.{name}: none of {place + 1:,} documents has it; they have "
                f"{', '.join(map(str, document))}{suggest(name, map(str, document))}"
            )


def _check_weights(weights: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(weights, Mapping) or not 1 <= len(weights) <= len(TAGS):
        raise ConfigError(
            f"bm25.fields: {weights!r}; expected a mapping of 1 to {len(TAGS)} names to weights, "
            "such as {title: 1.0, text: 1.0}, or null to score title and text as one"
        )
    for name, weight in weights.items():
        if not isinstance(name, str) or not name or SEPARATOR in name or not name.isprintable():
            raise ConfigError(
                f"bm25.fields: the name {name!r}; expected one line of text without '{SEPARATOR}'"
            )
        if not is_number(weight) or weight <= 0:
            raise ConfigError(
                f"bm25.fields.{name}: {weight!r}; expected a number above 0: leave out a field "
                "that should not count"
            )
    return {name: float(weight) for name, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Totals:
    """BM25's counts over a collection."""

    frequencies: np.ndarray[tuple[int], np.dtype[np.int64]]  # [vocabulary] documents with the term
    documents: int
    holders: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] N of each field
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]]  # [fields] terms of all documents together

    def plus(self, counts: TermCounts, width: int, fields: Fields, sign: int = 1) -> Totals:
        """Return the totals with ``counts`` added or subtracted, for ``width`` terms."""
        frequencies = sign * np.bincount(counts.terms, minlength=width)
        frequencies[: len(self.frequencies)] += self.frequencies
        return Totals(
            frequencies,
            self.documents + sign * len(counts.lengths),
            self.holders + sign * fields.holders(counts.lengths),
            self.lengths + sign * counts.lengths.sum(axis=0),
        )

    @classmethod
    def none(cls, fields: Fields) -> Totals:
        """Return the totals of no documents."""
        none = np.zeros(len(fields.weights), np.int64)
        return cls(np.zeros(0, np.int64), 0, none, none)

    def averages(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return avgdl of each field, 0 if no document has it."""
        return self.lengths / np.maximum(self.holders, 1)
