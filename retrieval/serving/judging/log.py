"""A log of judgements that is added to: each entry is on the disk before it is acknowledged."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TypeVar

from sluice.encoders.foundation.disk.files import lock, sync, writable
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.retrieval.serving.judging.entries import Entry, header_line, is_entry, line_of
from sluice.retrieval.serving.judging.state import Judgements, take_lines

log = logging.getLogger("sluice.serve")

Answer = TypeVar("Answer")


class JudgementLog:
    """A file of JSON lines that several threads and processes add to, one at a time.

    A kill at any instant loses no acknowledged entry; a line that was cut off by it is removed by
    the next writer. The file is read anew as far as others have added to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = Judgements()
        self._lines, self._end = 0, 0  # what of the file is in the state
        self._mutex = threading.Lock()
        self._opened = False
        try:
            with writable(path).open("ab"):
                self._file_id = _id_of(path.stat())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; give another --judgements FILE") from None
        with self._newest():
            sync(path.parent)
        self._opened = True

    def read(self, of: Callable[[Judgements], Answer]) -> Answer:
        """Return what a function takes from the newest state, which nothing changes meanwhile."""
        with self._newest() as (state, _):
            return of(state)

    def add(self, made: Callable[[Judgements], Sequence[Entry]]) -> None:
        """Add the entries that a function makes of the newest state; they are on disk then.

        ``SluiceError`` where they could not be written: none of them is then in the file.
        """
        with self._newest() as (state, file):
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entries = [replace(entry, time=now) for entry in made(state)]
            self._append(file, b"".join(map(line_of, entries)), len(entries))
            for entry in entries:
                state.apply(entry)

    @contextmanager
    def _newest(self) -> Iterator[tuple[Judgements, IO[bytes]]]:
        """Yield the state and the file, which is locked against others and read to its end."""
        with self._mutex:
            try:
                file = self.path.open("r+b", buffering=0)
            except OSError as error:
                raise self._lost(error.strerror or "") from None
            with file:  # closing it ends the lock
                lock(file)
                try:
                    self._catch_up(file)
                except DataError as error:
                    if not self._opened:
                        raise
                    # By now no client is at fault, nor needs the file's place on this machine.
                    text = str(error).replace(str(self.path), self.path.name)
                    raise SluiceError(text) from error
                yield self._state, file

    def _catch_up(self, file: IO[bytes]) -> None:
        stat = os.fstat(file.fileno())
        size = stat.st_size
        if _id_of(stat) != self._file_id or size < self._end:
            raise self._lost("another file is in its place")
        if size == 0:
            self._append(file, header_line(), 1)
            return
        file.seek(self._end)
        data = file.read(size - self._end)
        lines, rest = take_lines(self._state, self.path, data, self._lines + 1)
        self._lines += lines
        self._end += len(data) - len(rest)
        if not rest:
            return
        if is_entry(rest):  # written by hand: only its end is missing
            file.seek(size)
            self._end = size
            self._append(file, b"\n", 1)
            take_lines(self._state, self.path, rest + b"\n", self._lines)
            return
        log.warning("%s: a line that a kill had cut off was removed", self.path)
        file.truncate(self._end)

    def _append(self, file: IO[bytes], data: bytes, lines: int) -> None:
        if not data:
            return
        try:
            file.seek(self._end)
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(self._end)
            raise SluiceError(
                f"{self.path.name}: {error.strerror}; nothing was added to it: free space, and try "
                "again"
            ) from error
        self._end += len(data)
        self._lines += lines

    def _lost(self, why: str) -> SluiceError:
        return SluiceError(
            f"{self.path.name}: {why}; judgements are added to the file that was there: put it "
            "back, or start sluice serve again"
        )


def _id_of(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
