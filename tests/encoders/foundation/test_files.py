"""Files that change in one step: drafts, damage, compression."""

import gzip
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from sluice.encoders.foundation.disk.files import packed_file, replaced_file, write_bytes
from sluice.encoders.foundation.errors import ConfigError

Writer = Callable[[Path], AbstractContextManager[IO[bytes]]]


@pytest.mark.parametrize("writer", [replaced_file, packed_file])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_draft(
    tmp_path: Path, writer: Writer, error: type[BaseException]
) -> None:
    for name in ("x", "x.gz"):
        path = tmp_path / "of" / name
        write_bytes(path, b"old")
        with pytest.raises(error), writer(path) as stream:
            stream.write(b"half of what is n")
            assert path.read_bytes() == b"old"
            raise error
        assert path.read_bytes() == b"old"
    assert sorted(p.name for p in path.parent.iterdir()) == ["x", "x.gz"]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        real(handle)
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        synced.append((kind, os.fstat(handle).st_ino, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replaced_file(path) as stream:
        stream.write(b"new")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert synced == [("file", file, b"old"), ("folder", folder, b"new")]


def test_a_packed_file_is_compressed_where_its_name_says_so(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.jsonl.gz"):
        with packed_file(tmp_path / name) as stream:
            stream.write(b"text")
    assert (tmp_path / "x.jsonl").read_bytes() == b"text"
    packed = (tmp_path / "x.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == b"text"
    with packed_file(tmp_path / "x.jsonl.gz") as stream:
        stream.write(b"text")
    assert (tmp_path / "x.jsonl.gz").read_bytes() == packed  # no time, no name in it
    write_bytes(tmp_path / "y.gz", packed)  # bytes are written as they are
    assert (tmp_path / "y.gz").read_bytes() == packed


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"), replaced_file(tmp_path):
        pass
