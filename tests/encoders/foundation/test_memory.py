"""The peak of a part of the work, and memory that is given back."""

import mmap
import sys
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest

from sluice.encoders.foundation import processes
from sluice.encoders.foundation.processes import (
    free_memory_bytes,
    give_back_memory,
    peak_memory,
    peak_memory_bytes,
)

MB = 10**6
SIZE = 100 * MB
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the peak is that of the process")


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def touch(size: int) -> None:
    """Take ``size`` bytes from the system and give them back: an allocator might keep them."""
    with mmap.mmap(-1, size) as block:
        for start in range(0, size, mmap.PAGESIZE):
            block[start] = 1


@LINUX
def test_the_peak_is_that_of_the_block() -> None:
    before = resident()
    with peak_memory() as large:
        touch(SIZE)
        assert large() > before + 0.9 * SIZE
    with peak_memory() as small:
        assert small() < before + 0.5 * SIZE


@LINUX
def test_a_block_keeps_the_peak_from_before_a_block_inside_it() -> None:
    before = resident()
    with peak_memory() as outer:
        touch(SIZE)
        with peak_memory() as inner:
            assert inner() < before + 0.5 * SIZE
        assert outer() > before + 0.9 * SIZE
        with peak_memory() as second:
            touch(2 * SIZE)
        assert outer() >= second() > before + 1.8 * SIZE


def test_a_block_that_fails_is_closed() -> None:
    with pytest.raises(ValueError, match="inside"), peak_memory():
        raise ValueError("inside")
    assert not processes._OPEN


def test_without_proc_the_peak_is_that_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    with peak_memory() as peak:
        assert peak() == peak_memory_bytes()


class Knot:
    def __init__(self) -> None:
        self.itself = self
        # Each too small for a mapping of its own: they lie in the heap.
        self.parts = [np.ones(64_000, np.int8) for _ in range(SIZE // 64_000)]


def test_memory_is_given_back() -> None:
    knot = Knot()
    last, lost = np.ones(64_000, np.int8), weakref.ref(knot)  # the heap's end stays in use
    full = resident()
    del knot
    give_back_memory()
    assert lost() is None
    if sys.platform == "linux":
        assert resident() < full - 0.8 * SIZE
    assert last.sum() == 64_000


def test_a_system_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = processes._malloc_trim.__wrapped__
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda _: object())  # as musl
    assert plain() is None
    monkeypatch.setattr(processes.sys, "platform", "win32")
    monkeypatch.setattr(processes.ctypes, "CDLL", None)
    assert plain() is None
    monkeypatch.setattr(processes, "_malloc_trim", plain)
    give_back_memory()


def test_free_memory_is_what_the_system_or_the_container_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_SYSTEM", tmp_path)
    assert free_memory_bytes() is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   500 kB\n")
    assert free_memory_bytes() == 500 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 900\nfile 70\nfile_dirty 7\n")
    (group / "memory.max").write_text("max\n")
    assert free_memory_bytes() == 500 * 1024
    (group / "memory.max").write_text("5000\n")
    assert free_memory_bytes() == 4000
    facts = "anon 900\nfile 70\nanon_active 5\ninactive_file 40\nactive_file 20\n"
    (group / "memory.stat").write_text(facts)  # files that were read, such as the weights
    assert free_memory_bytes() == 4060
    (group / "memory.stat").write_text("")
    (group / "memory.max").write_text("900\n")
    assert free_memory_bytes() == 0
