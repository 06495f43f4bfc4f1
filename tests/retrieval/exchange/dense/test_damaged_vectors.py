"""Damaged files of vectors are one error that names the file, whatever their headers claim."""

import contextlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from dense_files import IDS, VECTORS

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.exchange.formats.sparse_files import VectorsFolder
from sluice.retrieval.exchange.vector_files import read_dense_vectors, write_dense_vectors

TENSOR = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(48)


def tensors(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(48)


def shaped(shape: str) -> bytes:
    return npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}")


DAMAGED = {
    "x.npy": [
        npy('({"a":\n      '), *map(shaped, ("(True, 4)", "(4, 3000000000000)", "(-4, -3)")),
        shaped("(4, 3, 1)"), shaped("None"), b"", b"\x93NUMPY",
        b"\x93NUMPY\x09\x00\xff" + bytes(99),
    ],
    "x.safetensors": [
        tensors({"vectors": "x"}), tensors({"vectors": 5}), tensors({"vectors": []}), tensors([]),
        tensors({"vectors": TENSOR, "__metadata__": 5}),
        tensors({"vectors": TENSOR | {"dtype": ["F32"]}}),
        tensors({"vectors": TENSOR | {"shape": [2**62, 4]}}),
        tensors({"vectors": TENSOR | {"shape": [4, 3 * 2**40], "data_offsets": [0, 48 * 2**40]}}),
        tensors({"vectors": TENSOR | {"data_offsets": [-48, 0]}}),
        tensors({"vectors": TENSOR | {"data_offsets": [2**80, 2**80 + 48]}}),
        tensors({"vectors": TENSOR, "__metadata__": {"ids": "[" * 9999}}), struct.pack("<Q", 2**63),
    ],
    "x.jsonl": [
        b'{"id": "a", "embedding": {"a": 1}}\n', b'{"id": "a", "embedding": [1, [2]]}\n',
        b'{"id": "a", "embedding": [1e999]}\n', b'{"id": "a", "embedding": "AAA"}\n', b"[1]\n",
        b'{"id": "a", "embedding": [' + b"9" * 400 + b"]}\n", b'{"id": "a", "embedding": [NaN]}\n',
        b'{"custom_id": "a", "response": {"body": {"data": {"0": 1}}}}\n',
    ],
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "data"), [(name, each) for name, several in DAMAGED.items() for each in several]
)
def test_a_damaged_file_is_one_error(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "x.ids.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read(tmp_path / name)


def read(path: Path) -> None:
    vectors = read_dense_vectors(path)
    list(vectors.documents())
    list(vectors.chunks())


def test_ids_that_are_no_characters_are_refused(tmp_path: Path) -> None:
    write_dense_vectors(tmp_path / "x.npy", IDS, [VECTORS], "npy")
    (tmp_path / "x.ids.txt").unlink()
    np.save(tmp_path / "x.ids.npy", np.array(IDS, "<U9"))
    data = (tmp_path / "x.ids.npy").read_bytes()
    (tmp_path / "x.ids.npy").write_bytes(data[:-4] + b"\xff" * 4)
    with pytest.raises(DataError, match=r"x\.ids\.npy: from id 0"):
        read(tmp_path / "x.npy")


def test_a_damaged_page_of_parquet_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_dense_vectors(path, [f"document {n}" for n in range(400)], [np.ones((400, 3))], "parquet")
    sound = path.read_bytes()
    messages = []
    for at in range(4, len(sound) - 900, 21):  # the footer behind stays as it is
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x5A]) + sound[at + 1 :])
        with contextlib.suppress(DataError):
            read(path)
            continue
        messages.append(at)
    assert messages


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("indptr", np.array([0, 1 << 40]), "indptr ends|a document has"),
        ("indptr", np.array([0, 3]), "a document has 3 of 2 terms"),
        ("format", np.array(b"csc"), "its format is b'csc'"),
        ("format", np.array([b"csr"]), "its format is"),
        ("data", np.zeros((1, 2), np.float32), "an array of shape"),
    ],
)
def test_a_damaged_matrix_is_one_error(
    tmp_path: Path, name: str, value: np.ndarray, message: str
) -> None:
    (tmp_path / "ids.txt").write_text("a\n")
    (tmp_path / "vocabulary.txt").write_text("gold\nriver\n")
    parts = {
        "indptr": np.array([0, 2]), "format": np.array(b"csr"), "shape": np.array([1, 2]),
        "data": np.ones(2, np.float32), "indices": np.arange(2, dtype=np.int32), name: value,
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "vectors.npz", "w") as archive:
        for part, array in parts.items():
            with archive.open(f"{part}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    terms: dict[str, int] = {}
    with pytest.raises(DataError, match=f"(?s)vectors.npz: .*({message})"):
        list(VectorsFolder(tmp_path).vectors(lambda term: terms.setdefault(term, len(terms))))


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.jsonl"])
def test_the_command_line_says_it_in_one_error(tmp_path: Path, shell: Call, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name][0])
    (tmp_path / "x.ids.txt").write_text("a\nb\nc\nd\n")
    code, _, err = shell("import", tmp_path / name, tmp_path / "r", "--format", name[2:])
    assert (code, err.count("error:"), "Traceback" in err) == (2, 1, False)
    assert name in err
    assert not (tmp_path / "r").exists()
