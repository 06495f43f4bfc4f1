"""Saved indexes: damage of every kind is one clear error, and a kill leaves a whole index."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.disk.generations import verify
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing import FlatIndex, open_index


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Save a small index of each kind once."""
    folder = tmp_path_factory.mktemp("indexes")

    def save(kind: Any) -> Path:
        if not (folder / kind.name).exists():
            index = kind.make()
            index.encoder_fingerprint = "the-right-one"
            index.add(kind.vectors(kind.table(np.random.default_rng(0), 20)))
            index.delete([3])
            index.save(folder / kind.name)
        return folder / kind.name

    return save


@pytest.fixture
def saved(kind: Any, saved_once: Callable[[Any], Path], tmp_path: Path) -> Path:
    """Return a copy of the index that a test may damage."""
    return shutil.copytree(saved_once(kind), tmp_path / "index")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_every_file_is_guarded(saved: Path) -> None:
    assert verify(saved) >= 2
    for file in saved.glob("g*/**/*"):
        if file.name == "manifest.json" or file.is_dir():
            continue
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(IndexFormatError, match="truncated or edited"):
            open_index(saved)
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IndexFormatError, match="checksum differs"):
            open_index(saved)
        file.unlink()
        with pytest.raises(IndexFormatError, match="missing"):
            open_index(saved)
        file.write_bytes(whole)
    open_index(saved)


def test_damaged_files_below_the_checksums(
    kind: Any, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where checksums are not read (large files), a wrong array is still no crash."""
    monkeypatch.setattr("sluice.encoders.foundation.disk.generations.CHECKSUM_LIMIT", 0)
    for file in saved.glob("g*/**/*.npy"):
        whole = file.read_bytes()
        file.write_bytes(b"x" * len(whole))
        with pytest.raises(IndexFormatError, match="cannot be read as an array"):
            open_index(saved)
        file.write_bytes(whole.replace(b"<f4", b"<i4").replace(b"<i8", b"<f8"))
        if file.read_bytes() != whole:
            with pytest.raises(IndexFormatError, match="expected"):
                open_index(saved)
        file.write_bytes(whole)
    if kind.name == "inverted":
        for name in ("first_run", "directory_starts", "block_starts", "list_starts"):
            file = next(saved.glob(f"g*/*-{name}.npy"))
            whole = file.read_bytes()
            array = np.load(file)
            array[len(array) // 2] = array[-1] + 5
            np.save(file, array)
            with pytest.raises(IndexFormatError, match=f"{name} (descends|has damaged ends)"):
                open_index(saved)
            file.write_bytes(whole)
        open_index(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=99), "in format 99"),
        (lambda m: m.update(format="sluice.retriever"), "expected 'sluice.index'"),
        (lambda m: m.update(type="flatt"), "unknown type 'flatt'.*did you mean 'flat'"),
        (lambda m: m.update(type="os:system"), "never runs code that it names"),
        (lambda m: m.update(rows=21), "expected int64 of shape"),
        (lambda m: m.update(rows="many"), "entry 'rows' is 'many', expected int"),
        (lambda m: m.pop("files"), "not as Sluice writes it"),
        (lambda m: m.pop("index"), "entry 'index' is None, expected dict"),
        (lambda m: m["index"].clear(), "expected"),
    ],
)
def test_edited_manifest(saved: Path, change: Any, message: str) -> None:
    edit(saved, change)
    with pytest.raises(IndexFormatError, match=message):
        open_index(saved)


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="no such file"):
        open_index(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(IndexFormatError, match="not readable as JSON"):
        open_index(tmp_path)


def test_another_encoder(saved: Path) -> None:
    open_index(saved, encoder_fingerprint="the-right-one")
    with pytest.raises(IndexFormatError, match="the encoder the-right-one, opened with another"):
        open_index(saved, encoder_fingerprint="another")


def test_an_unbound_index_opens_with_any_encoder(tmp_path: Path) -> None:
    FlatIndex().save(tmp_path / "index")
    assert open_index(tmp_path / "index", encoder_fingerprint="any").encoder_fingerprint == ""


def test_an_older_generation(tmp_path: Path) -> None:
    index = FlatIndex()
    index.add(np.ones((2, 3), dtype=np.float32))
    index.save(tmp_path / "index")
    first = json.loads((tmp_path / "index" / "manifest.json").read_text())["generation"]
    index.add(np.ones((1, 3), dtype=np.float32))
    index.save(tmp_path / "index")
    assert len(open_index(tmp_path / "index")) == 3
    assert len(open_index(tmp_path / "index", generation=first)) == 2


class OwnIndex(FlatIndex):
    """Somebody's own class."""

    type_name = ""


def test_own_classes_open_when_allowed(tmp_path: Path) -> None:
    OwnIndex.__module__ = "own_index_module"
    sys.modules["own_index_module"] = sys.modules[__name__]
    try:
        OwnIndex().save(tmp_path / "index")
        with pytest.raises(IndexFormatError, match=r"pass allow=\['own_index_module:OwnIndex'\]"):
            open_index(tmp_path / "index")
        opened = open_index(tmp_path / "index", allow=["own_index_module:OwnIndex"])
        assert type(opened) is OwnIndex
    finally:
        del sys.modules["own_index_module"]


SAVE_IN_A_LOOP = """
import sys
import numpy as np
from scipy import sparse
from indexing import FlatIndex, InvertedIndex
path, name = sys.argv[1:]
size = 0
index = FlatIndex() if name == "flat" else InvertedIndex()
while True:
    size += 1
    row = np.full((1, 4), size, dtype=np.float32)
    index.add(row if name == "flat" else sparse.csr_array(row))
    index.save(path)
    print(size, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["flat", "inverted"])
def test_a_kill_leaves_a_whole_index(name: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "index", random.Random(5)
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_IN_A_LOOP, str(path), name],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        child.stdout.readline()  # at least one state is saved
        time.sleep(clock.random() * 0.15)
        os.kill(child.pid, signal.SIGKILL)
        told = [1, *(int(line) for line in child.stdout.read().split())]
        child.stdout.close()
        child.wait()
        opened = open_index(path)
        verify(path)
        assert len(opened) in (told[-1], told[-1] + 1)  # the last one told, or the one after
        row = np.full((1, 4), 1, dtype=np.float32)
        from scipy import sparse

        query = row if name == "flat" else sparse.csr_array(row)
        hits = opened.search(query, 2)
        assert (hits.rows[0, 0], hits.scores[0, 0]) == (len(opened) - 1, 4.0 * len(opened))
