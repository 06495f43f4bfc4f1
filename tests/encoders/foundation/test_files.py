"""Files and folders that change in one step: drafts, generations, damage, writers."""

import gzip
import json
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.files import (
    MANIFEST,
    new_generation,
    open_generation,
    packed_file,
    pin_generation,
    replaced_file,
    replaced_folder,
    settle,
    verify,
    write_bytes,
    writer_lock,
)


def written(path: Path, text: str) -> None:
    with new_generation(path, "test", 1, {"note": text}) as folder:
        (folder / "data.txt").write_text(text)


def current(path: Path) -> str:
    _, folder = open_generation(path, "test", 1)
    return (folder / "data.txt").read_text()


def test_a_write_is_seen_whole_and_the_one_before_is_kept(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        written(tmp_path, text)
        assert current(tmp_path) == text
    assert sorted(p.name for p in tmp_path.glob("g*")) == ["g000002", "g000003"]
    manifest, folder = open_generation(tmp_path, "test", 1, generation="g000002")
    assert (manifest["note"], (folder / "data.txt").read_text()) == ("two", "two")
    pin_generation(tmp_path, "g000002")
    assert current(tmp_path) == "two"
    written(tmp_path, "four")
    assert sorted(p.name for p in tmp_path.glob("g*")) == ["g000002", "g000004"]
    assert verify(tmp_path) == 1


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    written(tmp_path, "one")
    with pytest.raises(ZeroDivisionError), new_generation(tmp_path, "test", 1, {}) as folder:
        (folder / "data.txt").write_text("half")
        raise ZeroDivisionError
    assert current(tmp_path) == "one"
    assert [p.name for p in tmp_path.glob("g*")] == ["g000001"]


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with writer_lock(tmp_path), pytest.raises(IndexFormatError, match="another process"):
        written(tmp_path, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "upgrade"),
        ({"version": None}, "upgrade"),
        ({"format": "other"}, "format is 'other'"),
        ({"generation": "../g000001"}, "not as Sluice writes it"),
        ({"generation": 3}, "not as Sluice writes it"),
        ({"files": {"../../x": {"bytes": 1, "sha256": ""}}}, "not as Sluice writes it"),
        ({"files": {"data.txt": {"bytes": "3", "sha256": ""}}}, "not as Sluice writes it"),
        ({"files": {"gone.txt": {"bytes": 3, "sha256": ""}}}, "missing"),
        ({"files": None}, "not as Sluice writes it"),
    ],
)
def test_a_manifest_that_lies_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    written(tmp_path, "one")
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(IndexFormatError, match=message):
        open_generation(tmp_path, "test", 1)


def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", '"x"'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(IndexFormatError):
            open_generation(tmp_path, "test", 1)
        with pytest.raises(IndexFormatError):
            verify(tmp_path)


def test_a_folder_is_replaced_or_left(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("one", "two"):
        with replaced_folder(target, markers=["a.txt"]) as folder:
            (folder / "a.txt").write_text(text)
    assert (target / "a.txt").read_text() == "two"
    with pytest.raises(ZeroDivisionError), replaced_folder(target, ["a.txt"]) as folder:
        (folder / "a.txt").write_text("half")
        raise ZeroDivisionError
    assert (target / "a.txt").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_replacement_killed_between_its_renames_is_undone(tmp_path: Path) -> None:
    target, previous = tmp_path / "model", tmp_path / ".model.previous"
    target.mkdir()
    (target / "a.txt").write_text("one")
    target.rename(previous)
    settle(target)
    assert (target / "a.txt").read_text() == "one"
    assert not previous.exists()


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
