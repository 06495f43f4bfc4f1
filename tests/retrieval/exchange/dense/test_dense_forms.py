"""Vectors as others write them: parquet dumps, safetensors, JSON lines of services."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dense_files import IDS, VECTORS, same
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import Document
from sluice.retrieval.exchange.vector_files import read_dense_vectors, write_dense_vectors

# parquet


def test_a_dump_with_texts_and_metadata(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = pa.table(
        {
            "_id": [10, 2, 3, 4],
            "title": ["One", None, "", "Four"],
            "text": pa.array(["first", "second", None, "x"]).dictionary_encode(),
            "emb": VECTORS.astype(np.float64).tolist(),
            "other": VECTORS.tolist(),  # a second vector is no metadata
            "year": [1999, None, 2001, 2002],
            "tags": [["a", "b"], [], None, ["c"]],
            "nested": [{"a": 1}, None, None, None],
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    same(tmp_path / "x.parquet", ["10", "2", "3", "4"])
    found = read_dense_vectors(tmp_path / "x.parquet")
    assert found.has_texts
    documents = list(found.documents())
    assert documents[0] == Document("10", "One", "first", {"year": 1999, "tags": ["a", "b"]})
    assert documents[2] == Document("3", "", "", {"year": 2001})
    assert "nested: 1" in caplog.text


@pytest.mark.parametrize("kind", ["list", "large", "fixed", "half"])
def test_lists_of_every_kind(tmp_path: Path, kind: str) -> None:
    vectors = VECTORS
    types = {
        "list": pa.list_(pa.float32()), "large": pa.large_list(pa.float64()),
        "fixed": pa.list_(pa.float32(), 3), "half": pa.list_(pa.float16()),
    }  # fmt: skip
    if kind == "half":
        vectors = VECTORS.astype(np.float16).astype(np.float32)
    column = pa.array([row.astype(np.float16 if kind == "half" else float) for row in vectors],
                      types[kind])  # fmt: skip
    parquet.write_table(pa.table({"id": IDS, "vector": column}), tmp_path / "x.parquet")
    same(tmp_path / "x.parquet", vectors=vectors)


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    for name, part in [("b", slice(2, 4)), ("a", slice(0, 2)), ("c", slice(4, 4))]:
        table = pa.table(
            {
                "id": pa.array(IDS[part], pa.string()),
                "embedding": pa.array(VECTORS[part].tolist(), pa.list_(pa.float32())),
            }
        )
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    same(tmp_path)
    parquet.write_table(pa.table({"id": ["x"], "emb": [[1.0]]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet: columns id, emb; no 'embedding'"):
        read_dense_vectors(tmp_path)
    parquet.write_table(pa.table({"id": ["x"], "embedding": [[1.0]]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="1 dimensions from vector 4 on, expected 3"):
        read_dense_vectors(tmp_path).array()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a"], "embeding": [[1.0]]}, "it has 'embeding' and should have 'embedding'"),
        (
            {"ids": ["a"], "vector": [[1.0]]},
            "it has 'ids' and should have 'id'",
        ),
        ({"id": ["a"], "vector": [[1.0]], "emb": [[2.0]]}, "may both be the vectors: rename one"),
        ({"id": ["a"], "vector": [[1]]}, "holds list.*int64.*expected lists of floats"),
        ({"id": ["a"], "vector": [1.0]}, "holds double, expected lists"),
        ({"id": [1.5], "vector": [[1.0]]}, "'id' holds double"),
        ({"id": ["a", None], "vector": [[1.0], [2.0]]}, "row 1, column 'id' is None"),
        ({"id": ["a", "b"], "vector": [[1.0], None]}, "row 1: no vector"),
        ({"id": ["a", "b"], "vector": [[1.0], [None]]}, "row 1: null among the values"),
        ({"id": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}, "row 1: 2 values, but 1 in row 0"),
        ({"id": ["a"], "vector": pa.array([[]], pa.list_(pa.float32()))}, "an empty vector"),
        ({"id": ["a"], "vector": [[1.0]], "text": [3]}, "column 'text' is 3"),
        ({"id": ["a", "b", "a"], "vector": [[1.0]] * 3}, "row 2: id 'a' again, first in"),
    ],
)
def test_tables_that_are_no_vectors(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=message):
        list(read_dense_vectors(tmp_path / "x.parquet").documents())
        read_dense_vectors(tmp_path / "x.parquet").array()


def test_parquet_keeps_texts_where_given(tmp_path: Path) -> None:
    documents = [Document(name, f"t {name}", f"text {name}") for name in IDS]
    write_dense_vectors(tmp_path / "x.parquet", documents, [VECTORS[:3], VECTORS[3:]], "parquet")
    assert list(read_dense_vectors(tmp_path / "x.parquet").documents()) == documents
    same(tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["id", "title", "text", "embedding"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not PAR1")
    with pytest.raises(DataError, match="not readable as parquet"):
        read_dense_vectors(tmp_path / "x.parquet")


# safetensors


@pytest.mark.thorough
def test_the_packages_files_are_read_and_ours_by_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_dense_vectors(path, IDS, [VECTORS], "safetensors")
    np.testing.assert_array_equal(load_file(path)["vectors"], VECTORS)
    for name, dtype in [("vectors", "f4"), ("whatever", "f2"), ("vectors", "f8")]:
        array = VECTORS.astype(dtype)
        tensors = {name: array, "weights": np.zeros(3), "ints": np.zeros(2, np.int32)}
        save_file(tensors, path, metadata={"ids": json.dumps(IDS), "model": "x"})
        same(path, vectors=array.astype(np.float32))


def test_bfloat16(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_tensors

    vectors = torch.from_numpy(VECTORS).to(torch.bfloat16)
    save_tensors({"vectors": vectors}, tmp_path / "x.safetensors")
    (tmp_path / "ids.txt").write_text("".join(f"{name}\n" for name in IDS), encoding="utf-8")
    same(tmp_path / "x.safetensors", vectors=vectors.float().numpy())
    (tmp_path / "x.safetensors").rename(tmp_path / "vectors.safetensors")
    same(tmp_path, vectors=vectors.float().numpy())


def test_the_ids_of_an_array_of_the_same_name_stay(tmp_path: Path) -> None:
    write_dense_vectors(tmp_path / "x.npy", IDS, [VECTORS], "npy")
    write_dense_vectors(tmp_path / "x.safetensors", IDS, [VECTORS], "safetensors")
    assert list(read_dense_vectors(tmp_path / "x.npy").ids()) == IDS


def test_many_ids_go_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.retrieval.exchange.formats.tensors.LARGEST_IDS", 3)
    write_dense_vectors(tmp_path / "x.safetensors", IDS, [VECTORS], "safetensors")
    assert (tmp_path / "x.ids.txt").read_text(encoding="utf-8").split("\n")[:-1] == IDS
    same(tmp_path / "x.safetensors")
    write_dense_vectors(tmp_path / "x.safetensors", ["a"], [VECTORS[:1]], "safetensors")
    assert not (tmp_path / "x.ids.txt").exists()
    same(tmp_path / "x.safetensors", ["a"], VECTORS[:1])


def test_tensors_that_are_no_vectors(tmp_path: Path) -> None:
    path, ids = tmp_path / "x.safetensors", {"ids": json.dumps(IDS)}
    cases: list[tuple[dict[str, np.ndarray], dict[str, str], str]] = [
        ({"a": VECTORS, "b": VECTORS}, ids, r"tensors a \(4, 3\), b \(4, 3\); expected one named"),
        ({"a": VECTORS[0]}, ids, r"tensors a \(3,\)"),
        ({"vectors": VECTORS.astype(np.int8)}, ids, "is I8 of shape"),
        ({"vectors": VECTORS[:2]}, ids, "2 vectors, but 4 ids"),
        ({"vectors": VECTORS}, {"ids": "["}, "is not JSON"),
        ({"vectors": VECTORS}, {"ids": "{}"}, "is a dict"),
        ({"vectors": VECTORS}, {}, "no ids beside it"),
    ]
    for tensors, metadata, message in cases:
        save_file(tensors, path, metadata=metadata)
        with pytest.raises(DataError, match=message):
            read_dense_vectors(path)
    save_file({"vectors": VECTORS}, path, metadata=ids)
    whole = path.read_bytes()
    for data, message in [
        (whole[:-1], "is the file complete"),
        (whole[:9], "not readable as safetensors"),
        (b"", "not readable as safetensors"),
        (whole.replace(b"[4,3]", b"[3,4]"), "3 vectors, but 4 ids"),
        (whole.replace(b"[4,3]", b"[4,9]"), "has offsets"),
        (whole.replace(b"[0,48]", b"[9,48]"), "has offsets"),
    ]:
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            read_dense_vectors(path)


# JSON lines


def lines(path: Path, objects: list[Any]) -> Path:
    data = "".join(json.dumps(each) + "\n" for each in objects).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    pairs = list(zip([1, *IDS[1:]], VECTORS.tolist(), strict=True))
    same(lines(tmp_path / name, [{"id": i, "embedding": v} for i, v in pairs]), ["1", *IDS[1:]])
    more = [{"_id": i, "vector": v, "title": "t", "text": "x", "metadata": {"n": 1}, "model": "m"}
            for i, v in pairs]  # fmt: skip
    found = read_dense_vectors(lines(tmp_path / name, more))
    assert found.has_texts
    assert next(found.documents()) == Document("1", "t", "x", {"n": 1})


def batch(name: str, data: list[Any]) -> dict[str, Any]:
    return {"id": f"b_{name}", "custom_id": name, "response": {"body": {"data": data}}}


def test_a_batch_of_a_service(tmp_path: Path) -> None:
    coded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in VECTORS]
    for rows in (VECTORS.tolist(), coded):
        objects = [batch(name, [{"embedding": row}]) for name, row in zip(IDS, rows, strict=True)]
        same(lines(tmp_path / "x.jsonl", objects))
    failed = {"custom_id": "a", "response": {"body": {}}, "error": {"message": "too long"}}
    for each, message in [
        (failed, "x.jsonl:1: a request without an embedding.*too long"),
        (batch("a", []), "without an embedding"),
        (batch("a", [{"embedding": [1.0]}] * 2), "2 embeddings for one custom_id"),
        (batch("a", [{"embedding": "AAA"}]), "expected a list of numbers"),
    ]:
        with pytest.raises(DataError, match=message):
            read_dense_vectors(lines(tmp_path / "x.jsonl", [each]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"id": "b", "embedding": [1.0]}, "x.jsonl:2: 1 values, but 2 in the first line"),
        ({"id": "b", "embedding": [1.0, "2"]}, "expected a list of numbers"),
        ({"id": "b", "embedding": [[1.0], [2.0]]}, "expected a list of numbers"),
        ({"id": "b", "embedding": [[1.0], 2.0]}, "expected a list of numbers"),
        ({"id": "b", "embedding": None}, "expected a list of numbers"),
        ({"id": "b", "embedding": [1.0, float("nan")]}, "vector 1 .* dimension 1 is nan"),
        ({"id": "b", "embeding": [1.0, 2.0]}, "should have 'embedding'"),
        ({"ids": "b", "embedding": [1.0, 2.0]}, "it has 'ids' and should have 'id'"),
        ({"id": "", "embedding": [1.0, 2.0]}, "x.jsonl:2: 'id' is ''"),
        ({"id": "a", "embedding": [1.0, 2.0]}, "x.jsonl:2: id 'a' again, first in .*:1"),
        ({"id": "b", "embedding": [1.0, 2.0], "text": 1}, "'title' or 'text' is not a text"),
        (["b"], "a JSON list"),
    ],
)
def test_lines_that_are_no_vectors(tmp_path: Path, second: Any, message: str) -> None:
    path = lines(tmp_path / "x.jsonl", [{"id": "a", "embedding": [1, 2.5]}, second])
    with pytest.raises(DataError, match=message):
        list(read_dense_vectors(path).documents())
        read_dense_vectors(path).array()
