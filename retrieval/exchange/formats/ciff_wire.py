"""Reads and writes protocol buffers as CIFF uses them: varints, fields, messages after a length.

The encoding is https://protobuf.dev/programming-guides/encoding: a field is a key (number and wire
type) and a value; a varint has seven bits a byte, the lowest first; a zero is left out.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Self

from sluice.encoders.foundation.bounded_input import BLOCK, open_bytes
from sluice.encoders.foundation.errors import DataError

LARGEST_MESSAGE = 2**31 - 1  # bytes; the limit of protocol buffers
PIECE = 1 << 26  # bytes read at a time: a damaged length asks for no more memory than this
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Return a whole number as a varint; a negative one as the 64 bits of its complement."""
    value &= 2**64 - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def number_field(number: int, value: int) -> bytes:
    """Return a field that holds a whole number; nothing for zero."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def double_field(number: int, value: float) -> bytes:
    """Return a field that holds a double; nothing for zero."""
    return varint(number << 3 | DOUBLE) + struct.pack("<d", value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field that holds bytes, a text or a message; nothing for none."""
    return varint(number << 3 | BYTES) + delimited(value) if value else b""


def delimited(message: bytes) -> bytes:
    """Return a message after its length."""
    return varint(len(message)) + message


def fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) in order; ``ValueError`` if the bytes are not a message."""
    place = 0
    while place < len(message):
        key, place = _varint_at(message, place)
        kind, value = key & 7, b""
        if kind == VARINT:
            number, place = _varint_at(message, place)
            yield key >> 3, number - 2**64 if number >= 2**63 else number
            continue
        size = 8 if kind == DOUBLE else 4
        if kind == BYTES:
            size, place = _varint_at(message, place)
        elif kind not in (DOUBLE, FLOAT):
            raise ValueError(f"wire type {kind} at byte {place}")
        value = message[place : place + size]
        place += size
        if place > len(message):
            raise ValueError(f"a field of {size:,} bytes goes beyond the message")
        yield key >> 3, value if kind == BYTES else _floating(value)


def _floating(value: bytes) -> float:
    return float(struct.unpack("<d" if len(value) == 8 else "<f", value)[0])


def _varint_at(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number goes beyond the message")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError(f"a number of more than ten bytes ends at byte {place}")


class MessageStream:
    """Reads the messages of a file one after the other, decompressing a ``.gz``.

    ``begin`` is the byte (of what was decompressed) where the last message's length begins.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.begin, self.place = path, 0, 0
        try:
            self._stream = open_bytes(path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, what: str) -> bytes:
        """Return the next message; ``what`` names it in errors."""
        left = self._length(what)
        pieces = []
        while left:
            pieces.append(self._bytes(min(left, PIECE)))
            if not pieces[-1]:
                self.fail(f"the file ends inside {what}; fetch it again")
            left -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def skip(self, what: str) -> None:
        """Skip the next message. A file that ends inside it fails at the next read."""
        size = self._length(what)
        left = 0 if self._stream.seekable() else size
        try:
            if self._stream.seekable():
                self._stream.seek(size, io.SEEK_CUR)
            while left and (block := self._stream.read(min(left, BLOCK))):
                left -= len(block)
        except (OSError, EOFError, zlib.error) as error:
            self.fail(f"cannot be read any further ({error}); fetch the file again")
        self.place += size

    def at_end(self) -> bool:
        """Return whether there is nothing more."""
        self.begin = self.place
        return not self._bytes(1)

    def fail(self, fault: str) -> NoReturn:
        """Raise a ``DataError`` about the message read last."""
        raise DataError(f"{self.path}: byte {self.begin:,}: {fault}") from None

    def _length(self, what: str) -> int:
        self.begin = self.place
        size = 0
        for shift in range(0, 35, 7):
            byte = self._bytes(1)
            if not byte:
                self.fail(f"the file ends before {what}; fetch it again")
            size |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                break
        else:
            size = LARGEST_MESSAGE + 1
        if size > LARGEST_MESSAGE:
            self.fail(f"{what} of more than 2 GiB; is this a CIFF file?")
        return size

    def _bytes(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:
            self.fail(f"cannot be read any further ({error}); fetch the file again")
        self.place += len(data)
        return data
