"""Writes documents into files of bounded size, which a client can send one at a time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

MOST_BYTES = 1 << 24  # of a file: clusters refuse requests of 100 MB, and advise 5 to 15


class Parts:
    """``documents-00001`` and on: each begins, separates and ends its documents as ``frame`` says.

    A document that is larger than a file may be has one of its own. Without documents there is
    one file, and none in it.
    """

    def __init__(
        self, folder: Path, ending: str, frame: tuple[str, str, str], most: int | None = None
    ) -> None:
        self._folder, self._ending = folder, ending
        self._begin, self._between, self._end = (part.encode() for part in frame)
        self._most = MOST_BYTES if most is None else most
        self._files = 0
        self._size = 0
        self._stream: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def add(self, entry: str) -> None:
        """Write one document's lines."""
        data = entry.encode("utf-8")
        if self._stream is not None and self._size + len(data) > self._most:
            self._close()
        if self._stream is None:
            self._write(self._next(), self._begin + data)
        else:
            self._write(self._stream, self._between + data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._files:
            self._write(self._next(), self._begin)
        self._close()

    def _next(self) -> IO[bytes]:
        self._files += 1
        path = self._folder / f"documents-{self._files:05}{self._ending}"
        self._stream = self._open.enter_context(path.open("wb"))
        return self._stream

    def _write(self, stream: IO[bytes], data: bytes) -> None:
        stream.write(data)
        self._size += len(data)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.write(self._end)
        self._open.close()
        self._stream, self._size = None, 0
