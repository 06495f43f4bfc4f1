"""The kernels that read and write CIFF's postings: the bytes of a message to arrays and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
MALFORMED, BACKWARDS, NEGATIVE, BEYOND = 1, 2, 3, 4
_SENTENCES = {
    MALFORMED: "is not a Posting message",
    BACKWARDS: "has a docid that is not above the one before; gaps are 1 or more",
    NEGATIVE: "has a negative tf; weights are 0 or more",
    BEYOND: "has a docid or a tf beyond 31 bits",
}


class Outline(NamedTuple):
    """Where a PostingsList's term is, its two frequencies, and its number of postings."""

    term_begin: int
    term_end: int
    documents: int  # df
    occurrences: int  # cf
    postings: int


def outline(message: bytes) -> Outline:
    """Return a PostingsList message without its postings; ``ValueError`` if it is not one."""
    values = _outline(np.frombuffer(message, np.uint8))
    if values[4] < 0:
        raise ValueError("the bytes are not a PostingsList message")
    return Outline(*values)


def decoded(message: bytes, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return docids (gaps added up) and tfs of a message's ``count`` postings, or ``ValueError``.

    The docids ascend.
    """
    docids, weights = np.empty(count, np.int64), np.empty(count, np.float32)
    fault, place = _decode(np.frombuffer(message, np.uint8), docids, weights)
    if fault:
        raise ValueError(f"posting {place} {_SENTENCES[fault]}")
    return docids, weights


def encoded(docids: NDArray[np.int64], weights: NDArray[np.int64]) -> bytes:
    """Return the postings' fields of a PostingsList message; docids ascend, weights are above 0."""
    out = np.empty(14 * len(docids), np.uint8)
    return out[: _encode(docids, weights, out)].tobytes()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _read(data: Bytes, place: int, end: int) -> tuple[int, int]:
    """Return a varint and the place after it, -1 if there is none."""
    value = np.uint64(0)
    for step in range(10):
        if place >= end:
            return 0, -1
        byte = data[place]
        place += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * step)
        if byte < 0x80:
            return np.int64(value), place  # type: ignore[return-value]
    return 0, -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _value_end(data: Bytes, place: int, end: int, kind: int) -> tuple[int, int]:
    """Return where a field's value begins and ends, -1 if it is malformed."""
    if kind == 0:
        _, after = _read(data, place, end)
        return place, after
    if kind == 1 or kind == 5:
        after = place + (8 if kind == 1 else 4)
        return place, after if after <= end else -1
    if kind == 2:
        size, place = _read(data, place, end)
        if place < 0 or size < 0 or size > end - place:
            return place, -1
        return place, place + size
    return place, -1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _outline(data: Bytes) -> tuple[int, int, int, int, int]:
    place, end = 0, len(data)
    term_begin = term_end = documents = occurrences = postings = 0
    while place < end:
        key, place = _read(data, place, end)
        if place < 0:
            return 0, 0, 0, 0, -1
        begin, after = _value_end(data, place, end, key & 7)
        if after < 0:
            return 0, 0, 0, 0, -1
        if key == 10:  # field 1, bytes
            term_begin, term_end = begin, after
        elif key == 16:  # field 2, varint
            documents, _ = _read(data, begin, end)
        elif key == 24:
            occurrences, _ = _read(data, begin, end)
        elif key == 34:  # field 4, a message
            postings += 1
        place = after
    return term_begin, term_end, documents, occurrences, postings


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _posting(data: Bytes, place: int, end: int) -> tuple[int, int, bool]:
    """Return gap and tf of one Posting message, and whether it is one."""
    gap = weight = 0
    while place < end:
        key, place = _read(data, place, end)
        if place < 0:
            return 0, 0, False
        begin, after = _value_end(data, place, end, key & 7)
        if after < 0:
            return 0, 0, False
        if key == 8:
            gap, _ = _read(data, begin, end)
        elif key == 16:
            weight, _ = _read(data, begin, end)
        place = after
    return gap, weight, True


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _decode(
    data: Bytes, docids: NDArray[np.int64], weights: NDArray[np.float32]
) -> tuple[int, int]:
    """Fill the arrays; return the kind of fault, or 0, and the posting that has it."""
    place, end, count, docid = 0, len(data), 0, 0
    while place < end:
        key, place = _read(data, place, end)
        begin, after = _value_end(data, place, end, key & 7)
        if key == 34:
            gap, weight, sound = _posting(data, begin, after)
            if not sound:
                return 1, count
            if gap < 0 or (gap == 0 and count > 0):
                return 2, count
            if weight < 0:
                return 3, count
            docid += gap
            if gap > 2147483647 or docid > 2147483647 or weight > 2147483647:
                return 4, count
            docids[count] = docid
            weights[count] = weight
            count += 1
        place = after
    return 0, 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _write(out: Bytes, place: int, key: int, value: int) -> int:
    """Write a field's key and varint; return the place after them."""
    out[place] = key
    place += 1
    while value > 0x7F:
        out[place] = (value & 0x7F) | 0x80
        value >>= 7
        place += 1
    out[place] = value
    return place + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _encode(docids: NDArray[np.int64], weights: NDArray[np.int64], out: Bytes) -> int:
    """Write every posting as its gap and weight; return the bytes written."""
    place, before = 0, 0
    for i in range(len(docids)):
        gap = docids[i] - before
        before = docids[i]
        begin = place + 2  # after the key and the length, which is below 128
        after = _write(out, begin, 8, gap) if gap else begin
        after = _write(out, after, 16, weights[i])
        out[place] = 34
        out[place + 1] = after - begin
        place = after
    return place
