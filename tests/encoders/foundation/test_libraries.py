"""How libraries wait and what they keep is set at import, unless the environment has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.encoders.foundation.processes import (
    KEEPING,
    KEPT_BY_TORCH,
    KEPT_SHAPES,
    PAGES,
    SPINS,
    TORCH,
    WAITING,
)

NAMES = (*WAITING, *KEEPING, *TORCH, *PAGES)
SHOW = f"; import os; print(*(os.environ.get(name) for name in {NAMES}))"
PRODUCTS = """
import ctypes, sys
import sluice, torch
from sluice.encoders.transformer.packed.linear import onednn
from sluice.encoders.transformer.packed.training_layers import product

class Held(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

dtype = torch.bfloat16
call = getattr(ctypes.CDLL(None), "mallinfo2", None)
if onednn("cpu", dtype) is None or call is None:
    print("skip")
    sys.exit()
call.restype = Held
weight = torch.ones(64, 64, dtype=dtype)
held = []
for rows in range(1, 601):
    product(torch.ones(rows, 64, dtype=dtype), weight, None)
    if rows in (400, 600):
        held.append(call().h)
print(held[1] - held[0])
"""


def environment(**settings: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in NAMES} | settings


def seen(code: str, **settings: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code + SHOW], env=environment(**settings), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    values = dict(zip(NAMES, done.stdout.split(), strict=True))
    return {name: value for name, value in values.items() if value != "None"}


@pytest.mark.parametrize("package", ["sluice", "sluice.encoders.foundation.errors"])
def test_importing_sluice_says_how_libraries_wait(package: str) -> None:
    expected = {
        "OMP_WAIT_POLICY": "passive",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(KEPT_SHAPES),
        "LRU_CACHE_CAPACITY": str(KEPT_BY_TORCH),
        "THP_MEM_ALLOC_ENABLE": "1",
    }
    assert seen(f"import {package}") == expected


@pytest.mark.parametrize("names", [WAITING, KEEPING, TORCH, PAGES])
def test_what_the_user_says_stays(names: tuple[str, ...]) -> None:
    other = seen("import sluice").keys() - set(names)
    for name in names:
        found = seen("import sluice", **{name: "1"})
        assert found[name] == "1"
        assert found.keys() == {name} | other


def test_nothing_changes_once_torch_is_loaded() -> None:
    assert seen("import sys; sys.modules['torch'] = sys; import sluice") == {}


AWAKE = """
import os, pathlib
from sluice.encoders.foundation import processes
processes._SYSTEM = pathlib.Path(FOLDER)
os.cpu_count = lambda: 4
processes.stay_awake_if_idle()"""


@pytest.mark.parametrize(
    ("load", "threads", "settings", "awake"),
    [
        ("0.10 0.50 0.40 1/88 2350", "2", {}, True),
        ("9.00 9.00 9.00 3/88 2350", "2", {}, True),  # two others of four cores
        ("0.00 0.00 0.00 4/88 2350", "2", {}, False),
        ("0.00 0.00 0.00 1/88 2350", "1", {}, False),  # nobody waits
        ("damaged", "2", {}, False),
        ("0.10 0.50 0.40 1/88 2350", "2", {"OMP_WAIT_POLICY": "passive"}, False),
        ("0.10 0.50 0.40 1/88 2350", "2", {"KMP_BLOCKTIME": "0"}, False),
    ],
)
def test_threads_stay_awake_where_each_has_a_core(
    tmp_path: Path, load: str, threads: str, settings: dict[str, str], awake: bool
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text(load)
    code = AWAKE.replace("FOLDER", repr(str(tmp_path)))
    found = seen(code, OMP_NUM_THREADS=threads, **settings)
    assert (found.get("GOMP_SPINCOUNT") == SPINS) == awake
    assert found.get("OMP_WAIT_POLICY", "passive") == "passive"


@pytest.mark.thorough
def test_products_of_ever_new_shapes_do_not_hold_ever_more() -> None:
    grown = []
    for settings in ({}, {KEEPING[0]: "1024", TORCH[0]: "1024"}):
        done = subprocess.run(
            [sys.executable, "-c", PRODUCTS], env=environment(**settings), capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        if "skip" in done.stdout:
            pytest.skip("no oneDNN products, or another C library")
        grown.append(int(done.stdout))
    assert grown[1] > 1_000_000  # by 200 shapes, if every one is kept
    assert grown[0] < grown[1] / 5


@pytest.mark.thorough
def test_torch_asks_for_huge_pages() -> None:
    asked = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not asked.exists() or "[madvise]" not in asked.read_text():
        pytest.skip("all tensors lie in huge pages, or none can")
    code = """
import sluice, torch
held = torch.ones(1 << 24)
print(open("/proc/self/smaps_rollup").read().split("AnonHugePages:")[1].split()[0])"""
    found = [
        int(subprocess.run(
            [sys.executable, "-c", code], env=environment(**settings), capture_output=True,
            text=True, check=True,
        ).stdout)
        for settings in ({PAGES[0]: "0"}, {})
    ]  # fmt: skip
    assert found[0] < 1 << 15 < found[1]  # kB; the tensor has 1 << 16


@pytest.mark.thorough
def test_openmp_takes_it_from_the_environment() -> None:
    # OMP_DISPLAY_ENV makes OpenMP print its settings when torch loads it.
    done = subprocess.run(
        [sys.executable, "-c", "import sluice, torch"], env=environment(OMP_DISPLAY_ENV="true"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this torch's OpenMP does not print its settings")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
