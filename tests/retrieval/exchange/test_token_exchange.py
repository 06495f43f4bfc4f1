"""Retrievers of token vectors through files and back: vectors, hits, texts, the command line."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import Call
from pyarrow import parquet
from small_world import WordEncoder, documents
from token_functions import DIM, token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder, TokenEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import TokenIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.exchange.formats.format import Format
from sluice.retrieval.exchange.formats.parquet import NESTED
from sluice.retrieval.exchange.formats.tensors import NPZ
from sluice.retrieval.exchange.retriever_files import export_retriever, import_retriever
from sluice.retrieval.exchange.vector_files import (
    CHUNK_ROWS,
    VectorFile,
    find_formats,
    format_names,
    write_vectors,
)

QUERIES = {"q1": "gold river word7", "q2": "stone stone sluice", "ü": "word3 and"}
BLANK = Document("blank", text="")  # without tokens


def read_file(path: Path, form: str) -> VectorFile[TokenVectors]:
    return VectorFile(path, find_formats(form, ["tokens"])[0])


def encoder() -> FunctionEncoder:
    return FunctionEncoder(token_vectors, name="words")


def built(store: Any = "float32") -> Retriever:
    made = Retriever.build(encoder(), [*documents(), BLANK], index=TokenIndex(store))
    made.delete(["d07"])
    return made


@pytest.fixture
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNK_ROWS, "tokens", 11)


@pytest.mark.usefixtures("few_at_a_time")
@pytest.mark.parametrize("form", format_names("tokens"))
def test_exported_and_imported_is_the_same(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = built()
    report = export_retriever(made, tmp_path / "x", form, texts=form == "parquet")
    rows = [row for row in range(41) if row != 7]
    stored = made.index.documents(rows)
    assert str(report) == f"40 documents, {len(stored.values)} vectors of {DIM} dimensions"
    for corpus in (None, sorted(made.store, key=lambda each: each.id[::-1])):
        folder = tmp_path / str(corpus is None)
        back = import_retriever(
            tmp_path / "x", folder, form, encoder=encoder(), documents=corpus,
            index=TokenIndex("float32"),
        )  # fmt: skip
        found = back.index.documents(np.arange(40))
        np.testing.assert_array_equal(found.values, stored.values)
        np.testing.assert_array_equal(found.bounds, stored.bounds)
        assert back.run(QUERIES, k=50).to_dict() == made.run(QUERIES, k=50).to_dict()
        texts = corpus is not None or form == "parquet"
        assert back.store.find("d11").full_text == (documents()[11].full_text if texts else "")  # type: ignore[union-attr]
    assert not caplog.records
    first = (tmp_path / "x").read_bytes()
    export_retriever(made, tmp_path / "x", form, texts=form == "parquet")
    assert (tmp_path / "x").read_bytes() == first
    assert "lossy" in str(export_retriever(built("int8"), tmp_path / "y", form))


def test_vectors_of_others_are_read(tmp_path: Path) -> None:
    vectors = token_vectors(["gold river", "", "stone"])
    plain: list[Any] = [each.tolist() for each in vectors]
    for kind in (pa.list_(pa.list_(pa.float64())), pa.list_(pa.list_(pa.float16(), DIM))):
        halves = [[[np.float16(x) for x in v] for v in text] for text in plain]
        values = halves if pa.types.is_fixed_size_list(kind.value_type) else plain
        table = pa.table({"docid": [7, 8, 9], "vector": pa.array(values, kind), "n": [1, 2, 3]})
        parquet.write_table(table, tmp_path / "x.parquet")
        found = read_file(tmp_path / "x.parquet", "parquet")
        assert (len(found), found.dim, list(found.ids())) == (3, DIM, ["7", "8", "9"])
        assert next(found.documents()).metadata == {"n": 1}
        (chunk,) = found.chunks()
        np.testing.assert_array_equal(chunk.bounds, vectors.bounds)
        np.testing.assert_allclose(chunk.values, vectors.values, atol=1e-3)
    np.savez(
        tmp_path / "x.npz", values=vectors.values.astype(np.float64),
        bounds=vectors.bounds.astype(np.int32), ids=np.array([7, 8, 9]),
    )  # fmt: skip
    found = read_file(tmp_path / "x.npz", "npz")
    assert list(found.ids()) == ["7", "8", "9"]
    (chunk,) = found.chunks()
    np.testing.assert_array_equal(chunk.values, vectors.values)


@pytest.mark.parametrize("form", [NPZ, NESTED])
def test_nothing_is_written_and_read(form: Format, tmp_path: Path) -> None:
    assert write_vectors(tmp_path / "x", [], [], form, dim=3) == 0
    found = read_file(tmp_path / "x", form.name)
    assert (len(found), found.dim, list(found.chunks()), list(found.ids())) == (0, 3, [], [])


def archive(path: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {
        "values": np.ones((3, 2), np.float32), "bounds": np.array([0, 1, 3]),
        "ids": np.array(["a", "b"]),
    }  # fmt: skip
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def nested(path: Path, values: Any) -> Path:
    kind = pa.list_(pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": ["a", "b"], "embedding": pa.array(values, kind)}), path)
    return path


@pytest.mark.parametrize(
    ("form", "write", "message"),
    [
        ("npz", lambda p: archive(p, ids=None), "no array ids"),
        ("npz", lambda p: archive(p, values=np.ones(3)), r"values are float64 of shape \(3,\)"),
        ("npz", lambda p: archive(p, bounds=np.array([0, 4])), "rise from 0 to .* 3"),
        ("npz", lambda p: archive(p, bounds=np.array([0.0, 3])), "expected whole numbers"),
        ("npz", lambda p: archive(p, ids=np.array(["a"])), "2 texts for 1 ids"),
        ("npz", lambda p: archive(p, ids=np.array(["a", "a"])), "'a'"),
        ("npz", lambda p: archive(p, ids=np.array(["a", {}])), "not readable"),
        ("npz", lambda p: archive(p, values=np.full((3, 2), np.inf)), r"text 0 \(from 0\)"),
        ("npz", lambda p: p.write_bytes(b"PK no"), "not readable as a numpy archive"),
        ("npz", lambda p: None, "no such file"),
        ("parquet", lambda p: nested(p, [[[1.0, 2]], [[1.0]]]), "row 1: a vector of 1 values"),
        ("parquet", lambda p: nested(p, [[[1.0]], None]), "row 1: no list of vectors"),
        ("parquet", lambda p: nested(p, [[[1.0]], [[None]]]), "row 1: null among the values"),
        ("parquet", lambda p: nested(p, [[[1.0]], [None]]), "row 1: a vector of 0 values"),
        ("parquet", lambda p: nested(p, [[[1.0]], [[np.nan]]]), r"text 1 \(from 0\)"),
    ],
)
def test_damaged_files_are_named(
    form: str, write: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.npz"
    write(path)
    with pytest.raises(DataError, match=message):
        opened = read_file(path, form)
        assert list(opened.documents())
        assert list(opened.chunks())


def forged(path: Path) -> None:
    """Write an archive whose header of ids speaks of more than any memory has."""
    with zipfile.ZipFile(archive(path)) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    parts["ids.npy"] = parts["ids.npy"].replace(b"(2,), }" + 12 * b" ", b"(2000000000000,), }")
    with zipfile.ZipFile(path, "w") as target:
        for name, data in parts.items():
            target.writestr(name, data)


def damaged(path: Path) -> None:
    """Write a compressed archive whose first block is of no known type."""
    np.savez_compressed(path, values=np.ones((3, 2)), bounds=[0, 1, 3], ids=["a", "b"])
    data = bytearray(path.read_bytes())
    name, extra = (int.from_bytes(data[at : at + 2], "little") for at in (26, 28))
    data[30 + name + extra] = 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("write", [forged, damaged])
def test_archives_that_zip_and_numpy_cannot_read_are_named(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "x.npz")
    with pytest.raises(DataError, match="not readable as a numpy archive"):
        read_file(tmp_path / "x.npz", "npz")


def test_cut_short_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(archive(tmp_path / "x.npz")) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as target:
        for name, data in parts.items():
            target.writestr(name, data[:-4] if name == "values.npy" else data)
    with pytest.raises(DataError, match="cut short"):
        list(read_file(tmp_path / "x.npz", "npz").chunks())


def test_what_does_not_fit_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = built()
    with pytest.raises(ConfigError, match="choose parquet"):
        export_retriever(made, tmp_path / "x.npz", "npz", texts=True)
    with pytest.raises(ConfigError, match="token ones go to npz or parquet"):
        export_retriever(made, tmp_path / "x.npy", "npy")
    export_retriever(made, tmp_path / "x.parquet", "parquet", texts=True)
    with pytest.raises(ConfigError, match="makes dense vectors, and"):
        import_retriever(tmp_path / "x.parquet", tmp_path / "r", "parquet", encoder=WordEncoder())
    narrow = FunctionEncoder(lambda texts: TokenVectors.of([np.ones((1, 2))] * len(texts), 2))
    with pytest.raises(ConfigError, match=f"2 dimensions, but .* holds {DIM}"):
        import_retriever(tmp_path / "x.parquet", tmp_path / "r", "parquet", encoder=narrow)
    assert not (tmp_path / "r").exists()
    with pytest.raises(DataError, match="ids are not in the corpus"):
        import_retriever(
            tmp_path / "x.parquet", tmp_path / "r", "parquet", encoder=encoder(),
            documents=documents(20),
        )  # fmt: skip
    assert not (tmp_path / "r").exists()
    turned = FunctionEncoder(
        lambda texts: TokenVectors(
            token_vectors(texts).values[:, ::-1], token_vectors(texts).bounds
        )
    )
    import_retriever(tmp_path / "x.parquet", tmp_path / "r", "parquet", encoder=turned)
    assert "a mean cosine of" in caplog.text


def test_the_command_line(tmp_path: Path, bert: Path, sluice: Call) -> None:
    model = TokenEncoder.from_pretrained(bert, dim=8, query_length=12, document_length=24)
    model.save_pretrained(tmp_path / "model")
    made = Retriever.build(
        TokenEncoder.from_pretrained(tmp_path / "model"), documents(9), index=TokenIndex("float32"),
        path=tmp_path / "r",
    )  # fmt: skip
    for form in ("parquet", "npz"):
        file = tmp_path / f"x.{form}"
        code, out, err = sluice("export", tmp_path / "r", file, "--format", form)
        assert code == 0, err
        assert "9 documents" in out
        command = ["import", file, tmp_path / "back", "--format", form]
        code, _, err = sluice(*command)
        assert (code, "--encoder: missing" in err) == (2, True)
    lexical = Retriever.build(BM25Encoder(), documents(3), path=tmp_path / "bm25").path
    code, _, err = sluice("export", lexical, tmp_path / "y.npz", "--format", "npz")
    assert (code, "npz is for token vectors; sparse ones" in err) == (2, True)
    code, _, err = sluice("import", tmp_path / "z.npz", tmp_path / "z", "--format", "npz")
    assert (code, "z.npz: no such file" in err) == (2, True)
    code, _, err = sluice(*command, "--encoder", tmp_path / "model", "--metric", "ip")
    assert (code, "--metric: is for one vector a text" in err) == (2, True)
    index = "{type: tokens, store: float32}"
    code, out, err = sluice(*command, "--encoder", tmp_path / "model", "--index", index)
    assert code == 0, err
    assert "9 documents, 8 dimensions" in out
    back = Retriever.open(tmp_path / "back")
    assert back.run(QUERIES, k=9).to_dict() == made.run(QUERIES, k=9).to_dict()
