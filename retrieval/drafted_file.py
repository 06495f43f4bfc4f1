"""A file written as a stream that takes its place in one step, when it is whole."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from encoders.files import draft_of, sync


@contextmanager
def drafted(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream of bytes that replaces ``path`` when the block ends without an exception.

    A name that ends in ``.gz`` is compressed; equal contents make equal files. ``ConfigError`` if
    ``path`` is a folder.
    """
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield file
        sync(draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
