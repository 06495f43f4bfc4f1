"""What macOS and Windows lack: simulated, since the tests run on Linux."""

import ast
import ctypes
import fcntl
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from places import ROOT

from sluice.encoders.foundation import processes
from sluice.encoders.foundation.disk import files as drafts, files as locks, generations
from sluice.encoders.foundation.disk.files import sync, write_text
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files import router
from sluice.encoders.vectors import pool, pool as sending

POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
MODULES = [
    file
    for package in ("encoders", "indexing", "training", "retrieval")
    for file in sorted((ROOT / package).rglob("*.py"))
]


@pytest.mark.thorough
def test_no_module_needs_a_posix_module_to_be_imported() -> None:
    needed = {
        (file.relative_to(ROOT).as_posix(), alias.name)
        for file in MODULES
        for node in ast.parse(file.read_bytes()).body  # not those under if, try or a function
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in POSIX_ONLY
    }
    assert needed == set()


class Kernel:
    """kernel32 with what the Windows locks call, over this system's."""

    def LockFileEx(self, handle: int, flags: int, *rest: Any) -> int:
        how = fcntl.LOCK_EX if flags & 2 else fcntl.LOCK_SH
        try:
            fcntl.flock(handle, how | (fcntl.LOCK_NB if flags & 1 else 0))
        except OSError:
            return 0
        return 1

    def UnlockFileEx(self, handle: int, *rest: Any) -> int:
        fcntl.flock(handle, fcntl.LOCK_UN)
        return 1


@pytest.fixture(params=["posix", "windows"])
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "posix":
        return locks.lock
    windows: Any = ModuleType("msvcrt")
    windows.get_osfhandle = lambda number: number
    monkeypatch.setitem(sys.modules, "msvcrt", windows)
    monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: Kernel(), raising=False)
    find = importlib.util.find_spec
    spec: Any = importlib.util.spec_from_file_location("windows_locks", str(locks.__file__))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "fcntl" else find(name)
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert hasattr(module, "EXCLUSIVE")
    return module.lock


def test_locks(lock: Any, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second, path.open("w") as third:
        assert lock(first)
        assert not lock(second, wait=False)
        assert not lock(second, shared=True, wait=False)
        assert lock(first, shared=True)  # instead of the exclusive one
        assert lock(second, shared=True, wait=False)
        assert not lock(third, wait=False)
    with path.open("w") as again:  # closing unlocked it
        assert lock(again, wait=False)


def test_another_process_is_looked_for_without_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.is_alive(os.getpid())
    assert not processes.is_alive(2**30)
    monkeypatch.setattr(processes, "os", SimpleNamespace(name="nt"))  # without kill
    assert processes.is_alive(os.getpid())
    assert not processes.is_alive(2**30)


def test_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= processes.cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processes.cores() == (os.cpu_count() or 1)
    assert 10**6 < processes.peak_memory_bytes() < 10**13
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(
        psutil, "Process", lambda: SimpleNamespace(
            memory_info=lambda: SimpleNamespace(peak_wset=1_234_567)
        ),
    )  # fmt: skip
    assert processes.peak_memory_bytes() == 1_234_567


def test_folders_that_cannot_be_flushed_and_files_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "POSIX", False)
    abandoned, written = (
        tmp_path / f".a.txt.{number}-01234567.tmp" for number in (2**30, os.getpid())
    )
    abandoned.touch()
    written.touch()
    opened: list[int] = []
    real = os.open

    def noted(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(flags)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", noted)
    write_text(tmp_path / "a.txt", "text")
    sync(tmp_path)
    assert [flags for flags in opened if not flags & os.O_CREAT] == [os.O_RDWR]  # the draft
    assert written.exists()
    assert not abandoned.exists()
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".lock":
            raise PermissionError(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for text in ("one", "two"):
        with replaced_folder(tmp_path / "model") as folder:
            (folder / generations.MODEL_FILES[0]).write_text(text)
    assert (tmp_path / "model" / generations.MODEL_FILES[0]).read_text() == "two"


def test_links_that_need_rights_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")

    def refuse(path: Path, target: Path) -> None:
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    router._link(tmp_path / "copy", tmp_path / "folder")
    router._link(tmp_path / "file", tmp_path / "folder" / "file")
    assert (tmp_path / "copy" / "file").read_text() == (tmp_path / "file").read_text() == "x"


def test_encoding_processes_are_refused_where_pipes_cannot_be_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = SimpleNamespace(fingerprint="f", save_pretrained=lambda path: None)
    workers = pool.EncodingPool(encoder, 2)
    monkeypatch.setattr(sending, "type_name", lambda *_: "dense")
    monkeypatch.setattr(pool.os, "name", "nt")
    with pytest.raises(ConfigError, match="use workers: 1"):
        workers._start(ROOT, None)
