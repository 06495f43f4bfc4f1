"""Arrays are opened in one place, whatever their headers claim."""

import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.disk.arrays import map_array, open_array
from sluice.encoders.foundation.errors import IndexFormatError

ROOT = Path(__file__).resolve().parents[3]
FLOATS = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }"
DAMAGED = {
    "not a literal": '({"a":\n      ',
    "a shape of booleans": FLOATS % "(True, 4)",
    "a negative shape": FLOATS % "(-1, -4)",
    "more than the file has": FLOATS % "(1, 4000000000000)",
    "more than 64 bits": FLOATS % f"({2**62}, {2**62})",
    "no shape": FLOATS % "None",
    "texts of no length": "{'descr': '<U0', 'fortran_order': False, 'shape': (9999999999,), }",
    "objects": "{'descr': 'O', 'fortran_order': False, 'shape': (2,), }",
    "another type": "{'descr': '<q9', 'fortran_order': False, 'shape': (2,), }",
    "deep": "[" * 3000,
    "empty": "",
}


def array_file(path: Path, header: str) -> Path:
    data = header.encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(data)) + data + bytes(64))
    return path


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_header_is_one_error(tmp_path: Path, header: str) -> None:
    path = array_file(tmp_path / "x.npy", header)
    with pytest.raises(ValueError, match=r"\w"):
        map_array(path)
    with pytest.raises(IndexFormatError, match=r"x\.npy: cannot be read as an array \(.*; rebuild"):
        open_array(path, np.float32, (None,))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (0,), (2, 1, 2)])
def test_what_numpy_saves_is_mapped(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    values = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "x.npy", values)
    np.testing.assert_array_equal(map_array(tmp_path / "x.npy"), values)


def test_many_threads_open_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(9))
    with ThreadPoolExecutor(8) as pool:
        sums = set(pool.map(lambda _: int(map_array(tmp_path / "x.npy").sum()), range(300)))
    assert sums == {36}


def test_no_other_place_reads_arrays() -> None:
    # numpy's own readers have no lock around the header, and raise errors of many kinds.
    reader = re.compile(r"\bnp\.(load|fromfile)\(|\bread_(array|magic)\(|open_memmap\(|load_npz\(")
    found = [
        str(file.relative_to(ROOT))
        for package in ("encoders", "indexing", "training", "retrieval")
        for file in (ROOT / package).rglob("*.py")
        if reader.search(file.read_text(encoding="utf-8"))
    ]
    assert found == ["encoders/foundation/disk/arrays.py"]
