"""Writes and reads one segment of a document store: ids to look up, texts in small blocks."""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.retrieval.documents.columns import (
    Column,
    ColumnFiles,
    ColumnWriter,
    metadata_between,
    open_columns,
)
from sluice.retrieval.documents.document import NOTHING, Document, Metadata

BLOCK_DOCUMENTS = 32
BLOCK_BYTES = 32 * 1024  # a block ends when either bound is reached
CACHED_BLOCKS = 64
LARGEST_DOCUMENT = 1 << 30  # bytes of title and text
LARGEST_RATIO = 1 << 15  # of zstd: 128 KiB of one byte are stored in four
WHOLLY_CHECKED = 1 << 16  # documents up to which opening looks at every offset and row
MOST_EQUAL = 16  # ids of one 64-bit hash: two are rare already
Compress = Callable[[bytes], bytes]


class SegmentFiles(NamedTuple):
    """The files of segment ``number`` (from 1); the last two only where a document has metadata."""

    ids: Path  # the ids' UTF-8 bytes, one after the other
    id_offsets: Path  # int64 [n + 1]
    id_hashes: Path  # uint64 [n], ascending
    id_rows: Path  # int64 [n]: the row of each hash
    texts: Path  # compressed blocks, one after the other
    blocks: Path  # int64 [blocks + 1, 3]: first row, first byte, size when decompressed
    columns: Path  # metadata, see document_columns
    column_table: Path

    @classmethod
    def of(cls, folder: Path, number: int) -> SegmentFiles:
        """Return the paths inside a generation's folder."""
        names = ("ids.bin", "id-offsets.npy", "id-hashes.npy", "id-rows.npy", "texts.bin")
        later = ("blocks.npy", "columns.bin", "columns.json")
        return cls(*(folder / f"{number:06d}-{name}" for name in (*names, *later)))


def id_hash(document_id: str) -> int:
    """Return 64 bits of an id, the same in every process."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def write_segment(
    folder: Path,
    number: int,
    documents: Iterable[Document],
    names: Iterable[str] | None = None,
) -> int:
    """Write the documents as one segment; return how many there are (for none, no file is left).

    Memory: sixteen bytes a document, one block, and the columns of metadata. Raises ``DataError``
    for an empty id, a title or text that is not a string or holds half a surrogate pair, metadata
    that no column can hold, and for an id that occurs twice. ``names`` of metadata are those of the
    folder's other segments, beside which only so many are new; None bounds nothing.
    """
    files = SegmentFiles.of(folder, number)
    offsets, hashes, columns = array("q", [0]), array("Q"), ColumnWriter(names)
    with files.ids.open("wb") as ids, files.texts.open("wb") as texts:
        blocks = _BlockWriter(texts)
        for document in documents:
            name, title, text = _encoded(document, len(hashes))
            if document.metadata is not NOTHING:
                columns.add(len(hashes), document)
            ids.write(name)
            offsets.append(offsets[-1] + len(name))
            hashes.append(id_hash(document.id))
            blocks.add(title, text)
        blocks.finish()
    count = len(hashes)
    if count == 0:
        files.ids.unlink()
        files.texts.unlink()
        return 0
    order = np.argsort(np.frombuffer(hashes, np.uint64), kind="stable")
    np.save(files.id_offsets, np.frombuffer(offsets, np.int64))
    np.save(files.id_hashes, np.frombuffer(hashes, np.uint64)[order])
    np.save(files.id_rows, order.astype(np.int64))
    np.save(files.blocks, np.array(blocks.table, dtype=np.int64))
    columns.write(ColumnFiles(files.columns, files.column_table), count)
    Segment(folder, number, count).refuse_repetitions()
    return count


def _encoded(document: Document, row: int) -> tuple[bytes, bytes, bytes]:
    if not all(isinstance(part, str) for part in document[:3]) or not document[0]:
        raise DataError(
            f"document {row}: {document!r:.200}; expected Document(id, title, text), "
            "three strings, with an id that is not empty"
        )
    try:
        name, title, text = (part.encode("utf-8") for part in document[:3])
    except UnicodeEncodeError as error:
        raise DataError(
            f"document {document[0]!r}: character {error.start} is half a surrogate pair, which "
            "UTF-8 cannot encode; remove it"
        ) from None
    if len(title) + len(text) > LARGEST_DOCUMENT:
        raise DataError(
            f"document {document[0]!r}: {len(title) + len(text):,} bytes of text, at most "
            f"{LARGEST_DOCUMENT:,} are stored; cut it into several documents"
        )
    return name, title, text


class _BlockWriter:
    """Collects titles and texts and writes a block whenever enough are together."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._compress = _compressor()
        self._parts: list[bytes] = []
        self._size = 0
        self._row = 0
        self._offset = 0
        self.table: list[tuple[int, int, int]] = []

    def add(self, title: bytes, text: bytes) -> None:
        """Add a document."""
        self._parts += (title, text)
        self._size += len(title) + len(text)
        if len(self._parts) == 2 * BLOCK_DOCUMENTS or self._size >= BLOCK_BYTES:
            self._write()

    def finish(self) -> None:
        """Write what is left, and the end of the table."""
        if self._parts:
            self._write()
        self.table.append((self._row, self._offset, 0))

    def _write(self) -> None:
        lengths = np.fromiter(map(len, self._parts), np.dtype("<u4"), len(self._parts))
        raw = lengths.tobytes() + b"".join(self._parts)
        packed = self._compress(raw)
        self._stream.write(packed)
        self.table.append((self._row, self._offset, len(raw)))
        self._row += len(self._parts) // 2
        self._offset += len(packed)
        self._parts, self._size = [], 0


def _compressor() -> Compress:
    import pyarrow

    codec = pyarrow.Codec("zstd", 1)
    return lambda raw: bytes(codec.compress(raw, asbytes=True))


class Segment:
    """A memory-mapped segment; its rows count from 0. No text is read before it is needed.

    Opening checks what can be checked quickly, and reading the rest: ``IndexFormatError`` for a
    file that is damaged, and for arrays that do not belong together.
    """

    def __init__(self, folder: Path, number: int, documents: int) -> None:
        self.files = files = SegmentFiles.of(folder, number)
        self._ids = _mapped(files.ids)
        self._id_offsets: NDArray[np.int64] = open_array(
            files.id_offsets, np.int64, (documents + 1,)
        )
        self.id_hashes: NDArray[np.uint64] = open_array(files.id_hashes, np.uint64, (documents,))
        self._id_rows: NDArray[np.int64] = open_array(files.id_rows, np.int64, (documents,))
        self._texts = _mapped(files.texts)
        self._blocks: NDArray[np.int64] = open_array(files.blocks, np.int64, (None, 3))
        self._check()
        # The metadata: key -> its columns, one for each kind of value. Opened now, because the
        # files are deleted once the folder has changed twice.
        self.columns: dict[str, list[Column]] = open_columns(
            ColumnFiles(files.columns, files.column_table), len(self)
        )
        self._block = lru_cache(CACHED_BLOCKS)(self._read_block)

    def _check(self) -> None:
        """Raise ``IndexFormatError`` for offsets and rows that lead outside of the files."""
        rows, starts, sizes = self._blocks.T
        ends = (int(self._id_offsets[0]), int(self._id_offsets[-1]))
        if ends != (0, len(self._ids)):
            raise _damaged(self.files.id_offsets, "it does not fit the ids")
        counts, packed = np.diff(rows), np.diff(starts)
        if (
            len(self._blocks) < 2
            or (int(rows[0]), int(rows[-1])) != (0, len(self))
            or (int(starts[0]), int(starts[-1])) != (0, len(self._texts))
            or min(counts.min(), packed.min()) < 1
            or (sizes[:-1] < 8 * counts).any()
            or (sizes[:-1] // LARGEST_RATIO > packed).any()
            or sizes.max() > LARGEST_DOCUMENT + (1 << 20)
        ):
            raise _damaged(self.files.blocks, "it does not fit the documents and texts")
        if len(self) > WHOLLY_CHECKED:
            return
        if np.diff(self._id_offsets).min() < 1:
            raise _damaged(self.files.id_offsets, "its offsets do not ascend")
        if (self.id_hashes[1:] < self.id_hashes[:-1]).any():
            raise _damaged(self.files.id_hashes, "its hashes do not ascend")
        if (np.sort(self._id_rows) != np.arange(len(self))).any():
            raise _damaged(self.files.id_rows, "its rows are not those of the documents")

    def __len__(self) -> int:
        return len(self.id_hashes)

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of rows."""
        starts, ends = self._id_offsets[rows].tolist(), self._id_offsets[rows + 1].tolist()
        ids = self._ids
        try:
            names = [str(ids[a:b], "utf-8") for a, b in zip(starts, ends, strict=True)]
        except UnicodeDecodeError as error:
            raise _damaged(self.files.ids, f"an id is not UTF-8, {error.reason}") from None
        if not all(names):
            raise _damaged(self.files.id_offsets, "its offsets do not ascend")
        return names

    def rows_at(self, places: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the rows of places in ``id_hashes``."""
        rows: NDArray[np.int64] = self._id_rows[places]
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise _damaged(self.files.id_rows, "its rows are not those of the documents")
        return rows

    def find(self, names: Sequence[str], hashes: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
        """Yield (position in ``names``, row) for each name that is here; deleted rows too."""
        starts = np.searchsorted(self.id_hashes, hashes)
        counts = np.searchsorted(self.id_hashes, hashes, side="right") - starts
        if len(counts) and not 0 <= counts.min() <= counts.max() <= MOST_EQUAL:
            raise _damaged(self.files.id_hashes, "its hashes do not ascend, or repeat")
        positions = np.repeat(np.arange(len(hashes)), counts)
        # The places of each run of equal hashes, one after another.
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.rows_at(starts[positions] + within)
        found = zip(positions.tolist(), rows.tolist(), self.ids(rows), strict=True)
        yield from ((place, row) for place, row, name in found if name == names[place])

    def refuse_repetitions(self) -> None:
        """Raise ``DataError`` if an id occurs twice."""
        equal = np.flatnonzero(self.id_hashes[1:] == self.id_hashes[:-1])
        for at in equal.tolist():
            first, second = self.rows_at(np.array([at, at + 1])).tolist()
            name, again = self.ids(np.array([first, second]))
            if name == again:
                raise DataError(
                    f"documents {first} and {second} (counted from 0) have the same id {name!r}; "
                    "ids are unique: remove or rename one"
                )

    def documents_at(self, rows: NDArray[np.int64]) -> Iterator[Document]:
        """Yield the documents of rows; a block is decompressed unless it is in the cache."""
        blocks = np.searchsorted(self._blocks[:, 0], rows, side="right") - 1
        for row, name, block in zip(rows.tolist(), self.ids(rows), blocks.tolist(), strict=True):
            raw, bounds, first = self._block(block)
            at = 2 * (row - first)
            metadata = metadata_between(self.columns, row, row + 1)[0] if self.columns else NOTHING
            title, text = self._decoded(raw, bounds[at : at + 3])
            yield Document(name, title, text, metadata)

    def documents(self) -> Iterator[Document]:
        """Yield every document in row order."""
        for block in range(len(self._blocks) - 1):
            raw, bounds, first = self._read_block(block)
            stop = int(self._blocks[block + 1, 0])
            names = self.ids(np.arange(first, stop))
            parts = self._decoded(raw, bounds)
            metadata: Iterable[Metadata] = repeat(NOTHING)
            if self.columns:
                metadata = metadata_between(self.columns, first, stop)
            yield from map(Document, names, parts[::2], parts[1::2], metadata)

    def _decoded(self, raw: bytes, bounds: Sequence[int]) -> list[str]:
        try:
            return [str(raw[a:b], "utf-8") for a, b in pairwise(bounds)]
        except UnicodeDecodeError as error:
            raise _damaged(self.files.texts, f"a text is not UTF-8, {error.reason}") from None

    def _read_block(self, number: int) -> tuple[bytes, list[int], int]:
        """Return a block's bytes, the bounds of its titles and texts in them, and its first row."""
        import pyarrow

        (first, start, size), (following, end, _) = self._blocks[number : number + 2].tolist()
        try:
            packed = self._texts[start:end]
            raw = pyarrow.decompress(packed, size, codec="zstd", asbytes=True)
            lengths = np.frombuffer(raw, np.dtype("<u4"), 2 * (following - first)).tolist()
            if 4 * len(lengths) + sum(lengths) != size:
                raise ValueError("its texts have other lengths than it says")
        except (OSError, ValueError) as error:
            raise _damaged(
                self.files.texts,
                f"block {number} at byte {start:,} cannot be decompressed ({error})",
            ) from None
        return raw, list(accumulate(lengths, initial=4 * len(lengths))), first


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise _damaged(path, f"it cannot be read ({error})") from None


def _damaged(path: Path, fault: str) -> IndexFormatError:
    return IndexFormatError(f"{path}: {fault}; the file is damaged: rebuild the folder")
