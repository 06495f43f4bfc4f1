"""Decodes files of unknown encoding: UTF-8 and UTF-16 by their marks, else UTF-8, else Latin-1."""

from __future__ import annotations

import codecs
import functools
from pathlib import Path

from sluice.encoders.foundation.input.bounded import open_bytes

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
FALLBACK = "cp1252"  # Latin-1 as Windows has it
BLOCK = 1 << 20
BINARY = 8192  # bytes looked at for a zero, which no text has


def encoding_of(path: Path) -> str:
    """Return the encoding of a whole file, gzipped or not, found by decoding it once."""
    stat = path.stat()
    return _encoding_of(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(64)
def _encoding_of(path: Path, size: int, changed: int) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_bytes(path) as stream:
        block = stream.read(BLOCK)
        for mark, name in MARKS.items():
            if block.startswith(mark):
                return name
        try:
            while block:
                decoder.decode(block)
                block = stream.read(BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return FALLBACK
    return "utf-8"


def decoded(data: bytes) -> tuple[str, str] | None:
    """Return the text of bytes and its encoding; None for binary data.

    Bytes that are not UTF-8 are read as Windows-1252, where a byte without a meaning becomes the
    replacement character.
    """
    for mark, name in MARKS.items():
        if data.startswith(mark):
            return data.decode(name, "replace"), name
    if b"\0" in data[:BINARY]:
        return None
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return data.decode(FALLBACK, "replace"), FALLBACK
