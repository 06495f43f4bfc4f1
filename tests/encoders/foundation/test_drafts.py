"""Drafts: removed after an error, and after a kill by the next writer; never one being written."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.disk import files as drafts
from sluice.encoders.foundation.disk.files import NAME, new_draft, write_text
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.vectors.forms import write_shard

ROOT = Path(drafts.__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from sluice.encoders.foundation.disk.files import new_draft
with new_draft(Path(sys.argv[1]), folder=sys.argv[2] == "folder"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def write_model(path: Path) -> None:
    with replaced_folder(path) as folder:
        (folder / "config.json").write_text("{}")


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    others = {".model.x.tmp", ".other.1.tmp", ".a.txt.12-0123456.tmp", "a.1-01234567.tmp"}
    for name in others:
        (tmp_path / name).mkdir()
    words = [sys.executable, "-c", WRITER, str(tmp_path / "a.txt")]
    writers = [
        subprocess.Popen(
            [*words, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for kind in ("file", "folder")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    shared = {entry.name for entry in tmp_path.iterdir()} - others
    assert len(shared) == 2
    write_model(tmp_path / "model")
    assert {entry.name for entry in tmp_path.iterdir()} == {*others, *shared, "model"}
    for writer in writers:
        with writer:
            writer.kill()
    write_text(tmp_path / "b.txt", "text")
    assert {entry.name for entry in tmp_path.iterdir()} == {*others, "model", "b.txt"}


def test_a_number_that_another_process_has_by_now_protects_no_draft(tmp_path: Path) -> None:
    draft = tmp_path / f".a.txt.{os.getppid()}-01234567.tmp"
    draft.touch()
    write_text(tmp_path / "b.txt", "text")
    assert not draft.exists()


@pytest.mark.parametrize("write", [write_model, lambda path: write_text(path, "text")])
@pytest.mark.parametrize("call", ["fsync", "rename", "replace"])
def test_a_failing_disk_leaves_no_draft_and_its_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a"
    write(path)
    before = path.stat().st_ino
    monkeypatch.setattr(os, call, fail)
    if call == "rename" and path.is_file():
        pytest.skip("files are replaced")
    with pytest.raises(OSError, match=re.escape(f"'{path}'")):
        write(path)
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert path.stat().st_ino == before


def test_a_draft_that_was_taken_for_abandoned_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, names = drafts.lock, []

    def lock(handle: int, **options: bool) -> bool:
        (name,) = [entry.name for entry in tmp_path.iterdir() if NAME.fullmatch(entry.name)]
        names.append(name)
        if len(names) == 1:
            (tmp_path / name).unlink()
        return real(handle, **options)

    monkeypatch.setattr(drafts, "lock", lock)
    with new_draft(tmp_path / "a.txt") as draft:
        assert draft.exists()
        assert draft.name == names[1] != names[0]


def test_a_short_write_of_numpy_names_the_file(tmp_path: Path) -> None:
    full = pytest.raises(OSError, match="is the disk full")
    with full as raised, new_draft(tmp_path / "a.npy"):
        raise OSError("100 requested and 60 written")
    assert raised.value.filename == str(tmp_path / "a.npy")


def test_shards_are_written_by_the_same_protocol(tmp_path: Path) -> None:
    (tmp_path / ".b.vectors.1-01234567.tmp").write_bytes(b"half")
    write_shard(tmp_path / "a.vectors", {}, {"hashes": np.zeros((2, 3), np.float32)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.vectors"]
