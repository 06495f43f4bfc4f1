"""Impact JSON, folders of vectors, query vectors: round trips and one clear error a fault."""

import gzip
import json
import shutil
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st
from sparse_files import read_impact_json, read_vectors

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.formats.sparse_files import (
    IDS,
    MATRIX,
    TERMS,
    write_folder,
    write_impact_json,
)
from sluice.retrieval.exchange.vector_files import (
    read_query_vectors,
    terms_of,
    write_query_vectors,
)

WEIGHTS = np.array([[3, 0, 0], [0, 0, 0], [200, 1, 0]], np.float32)
WEIGHTS_REST = sp.csr_array(WEIGHTS[1:])
TOKENS = ["gold", "ri ver", "none"]
DOCUMENTS = [
    Document("a", "", "gold here"),
    Document("b", "", ""),
    Document("ç", "T", "gold, river\n"),
]


def dense_by_id(found: Any) -> dict[tuple[str, str], float]:
    matrix = found.weights.tocoo()
    return {
        (found.documents[row].id, found.terms[column]): float(weight)
        for row, column, weight in zip(matrix.row, matrix.col, matrix.data, strict=True)
    }


def test_impact_json_is_what_lucene_tools_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert write_impact_json(path, DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS)) == 3
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"id": "a", "contents": "gold here", "vector": {"gold": 3}},
        {"id": "b", "contents": "", "vector": {}},
        {"id": "ç", "contents": "T gold, river", "vector": {"gold": 200, "ri ver": 1}},
    ]
    assert '"gold": 3}' in path.read_text(encoding="utf-8")
    packed = tmp_path / "x.jsonl.gz"
    write_impact_json(packed, iter(DOCUMENTS), TOKENS, [sp.csr_array(WEIGHTS[:1]), WEIGHTS_REST])
    assert gzip.decompress(packed.read_bytes()) == path.read_bytes()


def test_impact_json_comes_from_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    write_impact_json(folder / "2.jsonl.gz", DOCUMENTS[1:], TOKENS, WEIGHTS_REST)
    write_impact_json(folder / "1.jsonl", DOCUMENTS[:1], TOKENS, sp.csr_array(WEIGHTS[:1]))
    (folder / "README").write_text("not read")
    (folder / "3.json").write_text(
        '{"id": 7, "vector": {"new": 0.25, "gold": 1, "gone": 0}}\n\n', encoding="utf-8"
    )
    found = read_impact_json(folder)
    assert [document.id for document in found.documents] == ["a", "b", "ç", "7"]
    assert found.documents[2].text == "T gold, river"
    assert found.terms == ["gold", "ri ver", "new", "gone"]
    assert found.weights.toarray()[3].tolist() == [1, 0, 0.25, 0]
    assert found.weights.nnz == 5
    listed = read_impact_json(folder / "1.jsonl", folder / "3.json")
    assert len(listed.documents) == 2


GOOD = '{"id": "a", "contents": "x", "vector": {"gold": 1}}\n'
LINES = {
    '{"contents": "", "vector": {}}': "x.jsonl:2: no field 'id'",
    '{"id": "b", "vectors": {}}': "it has 'vectors' and should have 'vector'",
    '{"id": "", "vector": {}}': "expected a text that is not empty",
    '{"id": true, "vector": {}}': "'id' is True",
    '{"id": "b", "contents": 3, "vector": {}}': "'contents' is not a text",
    '{"id": "b", "vector": [1]}': "'vector' is not an object",
    '{"id": "b", "vector": {"gold": -1}}': "x.jsonl:2: token 'gold' has the weight -1",
    '{"id": "b", "vector": {"gold": NaN}}': "the weight NaN",
    '{"id": "b", "vector": {"gold": Infinity}}': "the weight inf",
    '{"id": "b", "vector": {"gold": 1e39}}': "the weight 1e+39",
    f'{{"id": "b", "vector": {{"gold": {10**400}}}}}': "the weight 1000",
    '{"id": "b", "vector": {"gold": "1"}}': "the weight '1'",
    '{"id": "b", "vector": {"gold": true}}': "the weight True",
    '{"id": "b", "vector": {"gold": null}}': "the weight None",
    '{"id": "b", "vector": {"go': "x.jsonl:2: not JSON",
    '["id"]': "a JSON list",
    '{"id": "a", "vector": {}}': "x.jsonl:2: id 'a' again, first in ",
    '{"id": "b", "vector": {"\\ud800": 1}}': "without its partner",
}


@pytest.mark.parametrize("line", LINES)
def test_bad_lines_are_one_clear_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"{GOOD}{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_impact_json(path)
    assert LINES[line] in str(caught.value)


def test_a_folder_without_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file whose name ends in \.jsonl"):
        read_impact_json(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_impact_json(tmp_path / "none.jsonl")


@pytest.mark.parametrize("write", [write_impact_json, write_folder])
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, write: Callable[..., int]) -> None:
    for matrix in (WEIGHTS[:2], np.vstack([WEIGHTS, WEIGHTS])):
        with pytest.raises(DataError, match="for 3 documents"):
            write(tmp_path / "x", DOCUMENTS, TOKENS, sp.csr_array(matrix))
    with pytest.raises(DataError, match="unique"):
        write(tmp_path / "x", DOCUMENTS, ["a", "a", "b"], sp.csr_array(WEIGHTS))
    assert list(tmp_path.iterdir()) == []


def test_impact_json_holds_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="some weights are not integers"):
        write_impact_json(tmp_path / "x", DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS / 2))


def test_a_folder_of_vectors_is_scipys(tmp_path: Path) -> None:
    path = tmp_path / "v"
    assert write_folder(path, DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS / 7)) == 3
    assert sorted(file.name for file in path.iterdir()) == [IDS, MATRIX, TERMS]
    loaded = sp.load_npz(path / MATRIX)
    assert isinstance(loaded, sp.csr_array)
    np.testing.assert_array_equal(loaded.toarray(), WEIGHTS / 7)
    assert (path / IDS).read_text(encoding="utf-8") == "a\nb\nç\n"
    for source in (path, path / MATRIX):
        found = read_vectors(source)
        assert [document.id for document in found.documents] == ["a", "b", "ç"]
        assert found.terms == TOKENS
        np.testing.assert_array_equal(found.weights.toarray(), WEIGHTS / 7)
    write_folder(path, DOCUMENTS[:1], TOKENS, sp.csr_array(WEIGHTS[:1]))  # its own is replaced
    assert len(read_vectors(path).documents) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        write_folder(tmp_path / "other", DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("compressed", [True, False])
def test_what_scipy_saves_is_read(tmp_path: Path, dtype: type, compressed: bool) -> None:
    matrix = sp.csr_matrix(WEIGHTS.astype(dtype)[:, ::-1])
    matrix = sp.csr_matrix((matrix.data, matrix.indices.astype(np.int32), matrix.indptr), (3, 3))
    sp.save_npz(tmp_path / MATRIX, matrix, compressed=compressed)
    (tmp_path / IDS).write_text("1\n2\n3\n")
    (tmp_path / TERMS).write_text("x\ny\nz\n")
    np.testing.assert_array_equal(read_vectors(tmp_path).weights.toarray(), WEIGHTS[:, ::-1])


def spoil_members(folder: Path, **members: Any) -> None:
    with np.load(folder / MATRIX) as loaded:
        arrays = dict(loaded)
    np.savez(folder / MATRIX, **{**arrays, **members})


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def marked(folder: Path, at: tuple[int, int], value: int) -> None:
    """Change a byte of every local (at[0]) and central (at[1]) header of the zip file."""
    data = bytearray((folder / MATRIX).read_bytes())
    for mark, place in zip((b"PK\x03\x04", b"PK\x01\x02"), at, strict=True):
        begin = data.find(mark)
        while begin >= 0:
            data[begin + place] = value
            begin = data.find(mark, begin + 4)
    (folder / MATRIX).write_bytes(data)


def claimed(folder: Path, name: str, count: int) -> None:
    """Make a member's header say that it has so many values."""
    spoil_members(folder)
    with zipfile.ZipFile(folder / MATRIX) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    header = BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (count,)}
    )
    members[f"{name}.npy"] = header.getvalue()
    with zipfile.ZipFile(folder / MATRIX, "w") as archive:
        for each, content in members.items():
            archive.writestr(each, content)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no ids": (lambda f: (f / IDS).unlink(), "ids.txt: no such file"),
    "no matrix": (lambda f: (f / MATRIX).unlink(), "expected vectors.npz, ids.txt and"),
    "id twice": (lambda f: (f / IDS).write_text("a\nb\na\n"), "ids.txt:3: id 'a' again"),
    "empty id": (lambda f: (f / IDS).write_text("a\n\nb\n"), "ids.txt:2: an empty id"),
    "cut ids": (lambda f: cut(f / IDS, 1), "last line does not end"),
    "fewer ids": (lambda f: (f / IDS).write_text("a\nb\n"), "its shape is (3, 3)"),
    "ids no text": (lambda f: (f / IDS).write_bytes(b"a\nb\n\xff\n"), "byte 4 is not UTF-8"),
    "term twice": (lambda f: (f / TERMS).write_text("x\ny\nx\n"), "vocabulary.txt:3: the term"),
    "more terms": (lambda f: (f / TERMS).write_text("x\ny\nz\nw\n"), "its shape is (3, 3)"),
    "cut matrix": (lambda f: cut(f / MATRIX, 30), "not a CSR matrix"),
    "no zip": (lambda f: (f / MATRIX).write_bytes(b"hello"), "not a CSR matrix"),
    "csc": (lambda f: spoil_members(f, format=np.array(b"csc")), "format is b'csc'"),
    "negative": (
        lambda f: spoil_members(f, data=np.array([1, -2, 3], np.float32)),
        "row 2, term 0 has the weight -2.0",
    ),
    "NaN": (lambda f: spoil_members(f, data=np.array([1, 2, np.nan], np.float32)), "weight nan"),
    "column": (lambda f: spoil_members(f, indices=np.array([0, 0, 3], np.int32)), "CSR"),
    "short data": (lambda f: spoil_members(f, data=np.ones(2, np.float32)), "indptr ends at 3"),
    "indptr": (lambda f: spoil_members(f, indptr=np.array([0, 2, 1, 3])), "does not ascend"),
    "indptr 2-d": (lambda f: spoil_members(f, indptr=np.zeros((4, 1), int)), "shape (4, 1)"),
    "indptr NaN": (lambda f: spoil_members(f, indptr=np.full(4, np.nan)), "dtype float64"),
    "indptr short": (lambda f: spoil_members(f, indptr=np.array([0, 1])), "has 2 values"),
    "indptr huge": (lambda f: claimed(f, "indptr", 10**13), "has 10,000,000,000,000 values"),
    "shape": (lambda f: spoil_members(f, shape=np.array(3)), "shape ()"),
    "encrypted": (lambda f: marked(f, (6, 8), 1), "is encrypted"),
    "compression": (lambda f: marked(f, (8, 10), 97), "compression"),
    "texts": (lambda f: spoil_members(f, data=np.array(["a", "b", "c"])), "dtype <U1"),
    "pickle": (
        lambda f: spoil_members(f, indptr=np.array([0, None], dtype=object)),
        "Python objects",
    ),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_spoiled_folders_are_one_clear_error(tmp_path: Path, spoiled: str) -> None:
    path = tmp_path / "v"
    write_folder(path, DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS))
    spoil, message = SPOILED[spoiled]
    spoil(path)
    with pytest.raises(DataError) as caught:
        read_vectors(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_flipped_byte_of_the_matrix_is_found(tmp_path: Path) -> None:
    write_folder(tmp_path / "v", DOCUMENTS, TOKENS, sp.csr_array(WEIGHTS))
    with zipfile.ZipFile(tmp_path / "v" / MATRIX) as archive:
        info = archive.getinfo("data.npy")
    path = tmp_path / "v" / MATRIX
    data = bytearray(path.read_bytes())
    place = data.index(WEIGHTS[0, :1].tobytes(), info.header_offset)
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="CRC"):
        read_vectors(tmp_path / "v")


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
plain = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=4)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(data=st.data(), form=st.sampled_from(["json", "vectors", "queries"]))
def test_round_trips(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, form: str
) -> None:
    kind = plain if form == "vectors" else names
    ids = data.draw(st.lists(kind, min_size=1, max_size=5, unique=True))
    terms = data.draw(st.lists(kind, min_size=1, max_size=5, unique=True))
    whole = st.integers(0, 2**24)
    weight = whole if form == "json" else st.floats(0, 2.0**120, width=32)
    row = st.lists(weight | st.just(0), min_size=len(terms), max_size=len(terms))
    weights = np.array([data.draw(row) for _ in ids], np.float32)
    matrix = sp.csr_array(weights)
    path = tmp_path_factory.getbasetemp() / f"round-{form}"
    expected = {
        (name, term): float(weights[i, j])
        for i, name in enumerate(ids)
        for j, term in enumerate(terms)
        if weights[i, j]
    }
    documents = [Document(name, "", "") for name in ids]
    if form == "queries":
        write_query_vectors(path, ids, terms, matrix)
        found, vectors = read_query_vectors(path, {term: at for at, term in enumerate(terms)})
        assert found == ids
        np.testing.assert_array_equal(vectors.toarray(), weights)
        return
    if form == "json":
        write_impact_json(path, documents, terms, matrix)
        back = read_impact_json(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
        write_folder(path, documents, terms, matrix)
        back = read_vectors(path)
        assert back.terms == terms
    assert [document.id for document in back.documents] == ids
    assert dense_by_id(back) == expected


def test_query_vectors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"id": "q1", "vector": {"b": 0.5, "zz": 1}}\n{"id": 2, "vector": {}}\n', encoding="utf-8"
    )
    ids, vectors = read_query_vectors(path, {"a": 0, "b": 1, "c": 2})
    assert ids == ["q1", "2"]
    assert vectors.toarray().tolist() == [[0, 0.5, 0], [0, 0, 0]]
    assert "1 of 2 tokens are not in" in caplog.text
    for text, message in {
        "": "empty",
        '{"id": "q1", "vector": {}}\n' * 2: "q.jsonl:2: id 'q1' again, first in",
        '{"_id": "q1", "vector": {}}': "it has '_id' and should have 'id'",
        '{"id": "q1", "text": "x"}': "no field 'vector'",
        '{"id": "q1", "vector": {"a": -1}}': "'a' has the weight -1",
    }.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError) as caught:
            read_query_vectors(path, {"a": 0})
        assert message in str(caught.value)


def test_encoders_without_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="object has no terms"):
        terms_of(object())
