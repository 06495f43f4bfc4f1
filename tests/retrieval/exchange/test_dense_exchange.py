"""Dense retrievers through files of vectors and back: hits, texts, encoders, the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import WordEncoder, documents, write_beir

from sluice.encoders import BM25Encoder, DenseEncoder, PrecomputedEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, ModelError
from sluice.indexing import FaissIndex, FlatIndex
from sluice.retrieval import Document, Retriever, Run
from sluice.retrieval.exchange.retriever_files import (
    export_retriever,
    import_retriever,
    index_of,
)
from sluice.retrieval.exchange.vector_files import (
    format_names,
    queries_of,
    read_dense_vectors,
    run_vectors,
    write_dense_vectors,
)

NAMES = {"npy": "x.npy", "parquet": "x.parquet", "safetensors": "x.safetensors"}
QUERIES = {"q1": "gold river word7", "q2": "stone stone sluice", "ü": "word3 and", "q4": "nothing"}


class TwistedEncoder(WordEncoder):
    """Another model of the same width."""

    def encode_documents(self, texts: Any) -> np.ndarray:
        return super().encode_documents(texts)[:, ::-1].copy() + 1


@pytest.fixture
def dense() -> Retriever:
    return Retriever.build(WordEncoder(), documents())


def bits(retriever: Retriever) -> bytes:
    index: Any = retriever.index
    return bytes(index.documents(np.arange(index.rows)).tobytes())


@pytest.mark.thorough
@pytest.mark.parametrize("form", format_names("dense", written=True))
@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
def test_exported_and_imported_is_the_same(tmp_path: Path, form: str, metric: Any) -> None:
    made = Retriever.build(WordEncoder(), documents(), index=FlatIndex(metric))
    report = export_retriever(made, tmp_path / NAMES[form], form)
    assert str(report) == f"40 documents, 64 dimensions, metric {metric}"
    encoder = WordEncoder()
    back = import_retriever(
        tmp_path / NAMES[form], tmp_path / "r", encoder=encoder, index=FlatIndex(metric)
    )
    assert bits(back) == bits(made)
    assert back.run(QUERIES, k=40).to_dict() == made.run(QUERIES, k=40).to_dict()
    vectors = encoder.encode_queries(list(QUERIES.values()))
    write_dense_vectors(tmp_path / NAMES[form], list(QUERIES), [vectors], form)
    ids, found = queries_of(back, tmp_path / NAMES[form])
    assert run_vectors(back, ids, found, 40).to_dict() == made.run(QUERIES, k=40).to_dict()


@pytest.mark.parametrize("form", format_names("dense", written=True))
def test_deleted_documents_stay_behind(tmp_path: Path, dense: Retriever, form: str) -> None:
    dense.delete(["d07", "d39"])
    dense.add([Document("n1", "A title", "brandnew gold")])
    export_retriever(dense, tmp_path / NAMES[form], form, texts=form == "parquet")
    back = import_retriever(tmp_path / NAMES[form], tmp_path / "r", form, encoder=WordEncoder())
    assert [document.id for document in back.store] == [document.id for document in dense.store]
    assert back.run(QUERIES, k=40).to_dict() == dense.run(QUERIES, k=40).to_dict()
    document = back.store.find("n1")
    assert document is not None
    assert document.full_text == ("A title brandnew gold" if form == "parquet" else "")
    assert back.search("brandnew", k=1)[0].doc_id == "n1"


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF4,Flat", "SQ8"])
def test_faiss_gives_its_vectors_back(tmp_path: Path, factory: str) -> None:
    made = Retriever.build(WordEncoder(8), documents(200), index=FaissIndex(factory))
    whole = WordEncoder(8).encode_documents([each.full_text for each in documents(200)])
    made.delete(["d11"])
    report = export_retriever(made, tmp_path / "x.npy", "npy")
    assert ("decoded" in str(report)) == (factory == "SQ8")
    found = read_dense_vectors(tmp_path / "x.npy").array()
    np.testing.assert_allclose(found, np.delete(whole, 11, 0), atol=0.05 * (factory == "SQ8"))
    rows = np.array([150, 3, 150])
    np.testing.assert_array_equal(
        made.index.documents(rows), made.index.documents([150, 3])[[0, 1, 0]]
    )
    assert made.index.documents([]).shape == (0, 8)
    with pytest.raises(DataError, match="no row 200"):
        made.index.documents([200])


def test_an_index_that_keeps_no_vectors_says_so(tmp_path: Path) -> None:
    made = Retriever.build(WordEncoder(8), documents(200), index=FaissIndex("IVF2,PQ4x4fs"))
    with pytest.raises(ConfigError, match="cannot give its vectors back"):
        export_retriever(made, tmp_path / "x.npy", "npy")
    assert not list(tmp_path.iterdir())
    full = FaissIndex("IVF2,PQ4x4fs", rescore=2)
    made = Retriever.build(WordEncoder(8), documents(200), index=full)
    assert "decoded" not in str(export_retriever(made, tmp_path / "x.npy", "npy"))
    whole = WordEncoder(8).encode_documents([each.full_text for each in documents(200)])
    np.testing.assert_array_equal(read_dense_vectors(tmp_path / "x.npy").array(), whole)


def test_texts_are_matched_by_id(tmp_path: Path, dense: Retriever) -> None:
    export_retriever(dense, tmp_path / "x.npy", "npy")
    mixed = sorted(documents(), key=lambda document: document.id[::-1])
    words = WordEncoder()
    back = import_retriever(tmp_path / "x.npy", tmp_path / "r", documents=mixed, encoder=words)
    assert list(back.store) == documents()
    assert back.run(QUERIES, k=40).to_dict() == dense.run(QUERIES, k=40).to_dict()
    cases = [
        (documents(37), r"3 of 40 ids are not in the corpus \('d37', 'd38', 'd39'\)"),
        (documents(45), r"5 of 45 documents of the corpus have no vector \('d40', 'd41', 'd42'\)"),
        ([*documents(), documents()[3]], "'d03'"),
    ]
    for corpus, message in cases:
        with pytest.raises(DataError, match=message):
            import_retriever(tmp_path / "x.npy", tmp_path / "s", documents=corpus)
        assert not (tmp_path / "s").exists()


def test_without_a_model_the_index_is_searched_by_vector(tmp_path: Path, dense: Retriever) -> None:
    export_retriever(dense, tmp_path / "x.npy", "npy")
    import_retriever(tmp_path / "x.npy", tmp_path / "r")
    back = Retriever.open(tmp_path / "r")
    assert isinstance(back.encoder, PrecomputedEncoder)
    assert back.encoder.dim == 64
    with pytest.raises(ModelError, match=r"search --vectors.*--encoder"):
        back.search("gold")
    with pytest.raises(ModelError, match="queries only"):
        back.add([Document("new", "", "x")])
    vectors = WordEncoder().encode_queries(list(QUERIES.values()))
    run = run_vectors(back, list(QUERIES), vectors, 40)
    assert run.to_dict() == dense.run(QUERIES, k=40).to_dict()
    back.delete(["d07"])
    back.compact()
    assert len(Retriever.open(tmp_path / "r")) == 39


def test_known_queries_are_searched_as_ever(tmp_path: Path, dense: Retriever) -> None:
    texts = list(QUERIES.values())
    encoder = PrecomputedEncoder(texts, WordEncoder().encode_queries(texts))
    chunks = [WordEncoder().encode_documents([each.full_text for each in documents()])]
    back = Retriever.build(encoder, documents(), vectors=chunks, path=tmp_path / "r")
    assert back.run(QUERIES, k=40).to_dict() == dense.run(QUERIES, k=40).to_dict()
    opened = Retriever.open(tmp_path / "r")
    assert opened.run(QUERIES, k=40).to_dict() == dense.run(QUERIES, k=40).to_dict()
    other = PrecomputedEncoder(texts[:2], WordEncoder().encode_queries(texts[:2]))
    with pytest.raises(IndexFormatError, match="the index was built with encoder"):
        Retriever.open(tmp_path / "r", encoder=other)


def test_an_encoder_is_compared_with_the_vectors(
    tmp_path: Path, dense: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    export_retriever(dense, tmp_path / "x.parquet", "parquet", texts=True)
    import_retriever(tmp_path / "x.parquet", tmp_path / "r", encoder=WordEncoder())
    assert "cosines" not in caplog.text
    import_retriever(tmp_path / "x.parquet", tmp_path / "s", encoder=TwistedEncoder())
    assert "its vectors of the first documents have cosines from 0." in caplog.text
    with pytest.raises(ConfigError, match=r"of 32 dimensions, but .* holds 64"):
        import_retriever(tmp_path / "x.parquet", tmp_path / "t", encoder=WordEncoder(32))
    sparse: Any = BM25Encoder().fit(["gold"])
    with pytest.raises(ConfigError, match="makes sparse vectors"):
        import_retriever(tmp_path / "x.parquet", tmp_path / "t", encoder=sparse)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("form", format_names("dense", written=True))
def test_an_empty_retriever(tmp_path: Path, form: str) -> None:
    empty = Retriever.build(WordEncoder(), [])
    assert export_retriever(empty, tmp_path / NAMES[form], form).documents == 0
    back = import_retriever(tmp_path / NAMES[form], tmp_path / "r", encoder=WordEncoder())
    assert len(back) == 0
    assert not back.search("gold")
    assert len(import_retriever(tmp_path / NAMES[form], tmp_path / "s", form)) == 0


def test_what_cannot_be_exchanged(tmp_path: Path, dense: Retriever) -> None:
    out = tmp_path / "out"
    sparse = Retriever.build(BM25Encoder(), documents())
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: export_retriever(sparse, out, "npy"),
            "sparse ones go to ciff, impact-json",
        ),
        (lambda: export_retriever(dense, out, "ciff"), "dense ones go to npy, parquet or safet"),
        (lambda: export_retriever(dense, out, "jsonl"), "written: npy, parquet, safetensors"),
        (lambda: export_retriever(dense, out, "parket"), "did you mean 'parquet'"),
        (lambda: export_retriever(dense, out, "npy", texts=True), "choose parquet"),
        (lambda: export_retriever(dense, out, "safetensor"), "did you mean 'safetensors'"),
        (lambda: index_of("{type: flaat}", None), "did you mean 'flat'"),
        (lambda: index_of("{type: flat", None), "is not YAML"),
        (lambda: index_of("{type: flat, metric: ip}", "l2"), "metric: 'l2', but 'ip'"),
        (lambda: index_of("HNSV32", None), "HNSV32"),
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    assert not out.exists()


def test_a_failed_import_leaves_what_was_there(tmp_path: Path, dense: Retriever) -> None:
    export_retriever(dense, tmp_path / "x.npy", "npy")
    import_retriever(tmp_path / "x.npy", tmp_path / "r", encoder=WordEncoder())
    vectors = np.load(tmp_path / "x.npy")
    vectors[39, 3] = np.nan
    np.save(tmp_path / "x.npy", vectors)
    for name in ("r", "new"):
        with pytest.raises(DataError, match="vector 39"):
            import_retriever(tmp_path / "x.npy", tmp_path / name, encoder=WordEncoder())
    assert not (tmp_path / "new").exists()
    assert len(Retriever.open(tmp_path / "r", allow=["small_world:WordEncoder"]).search("gold")) > 0


@pytest.mark.parametrize("form", format_names("dense", written=True))
def test_the_command_line(tmp_path: Path, sluice: Call, bert: Path, form: str) -> None:
    data = write_beir(tmp_path / "data")
    encoder = DenseEncoder.from_pretrained(bert)
    made = Retriever.build(encoder, documents(), path=tmp_path / "dense")
    output, queries = tmp_path / NAMES[form], tmp_path / f"queries-{NAMES[form]}"
    code, out, err = sluice("export", tmp_path / "dense", output, "--format", form)
    assert (code, "40 documents, 32 dimensions, metric ip" in out) == (0, True), err
    back = tmp_path / "back"
    code, out, err = sluice(
        "import", output, back, "--format", form, "--documents", data / "corpus.jsonl",
        "--encoder", bert, "--index", "Flat",
    )  # fmt: skip
    assert (code, "40 documents, 32 dimensions" in out) == (0, True), err
    assert "cosines" not in err
    code, out, _ = sluice("search", back, "gold river", "-k", 1)
    best = made.search("gold river", k=1)[0]
    assert best.doc_id in out
    assert best.text.split()[-1] in out
    vectors = encoder.encode_queries(list(QUERIES.values()))
    write_dense_vectors(queries, list(QUERIES), [vectors], form)
    run = tmp_path / "run.trec"
    code, out, err = sluice("search", tmp_path / "dense", "--vectors", queries, "--output", run)
    assert (code, "4 queries" in out) == (0, True), err
    made.run(QUERIES, k=1000).save(tmp_path / "expected.trec")
    assert Run.load(run).to_dict() == Run.load(tmp_path / "expected.trec").to_dict()


def test_a_service_s_vectors_on_the_command_line(tmp_path: Path, sluice: Call) -> None:
    data = write_beir(tmp_path / "data")
    words = WordEncoder()
    vectors = words.encode_documents([each.full_text for each in documents()]).tolist()
    lines = [json.dumps({"id": each.id, "embedding": vector})
             for each, vector in zip(documents(), vectors, strict=True)]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    texts = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    write_dense_vectors(
        tmp_path / "q.npy", [each["_id"] for each in texts],
        [words.encode_queries([each["text"] for each in texts])], "npy",
    )  # fmt: skip
    code, out, err = sluice(
        "import", tmp_path / "x.jsonl", tmp_path / "r", "--format", "jsonl", "--documents", data,
        "--metric", "cosine", "--query-vectors", tmp_path / "q.npy",
        "--queries", data / "queries.jsonl",
    )  # fmt: skip
    assert (code, "40 documents, 64 dimensions" in out) == (0, True), err
    made = Retriever.build(words, documents(), index=FlatIndex("cosine"))
    queries = {each["_id"]: each["text"] for each in texts}
    back = Retriever.open(tmp_path / "r")
    assert back.run(queries, k=9).to_dict() == made.run(queries, k=9).to_dict()
    assert list(back.store) == documents()
    code, _, err = sluice("search", tmp_path / "r", "something else")
    assert (code, "search --vectors" in err) == (2, True)


def test_bad_options_on_the_command_line(tmp_path: Path, sluice: Call, bert: Path) -> None:
    Retriever.build(WordEncoder(), documents(), path=tmp_path / "dense")
    Retriever.build(BM25Encoder(), documents(), path=tmp_path / "bm25")
    vectors = np.eye(3, dtype=np.float32)
    write_dense_vectors(tmp_path / "x.npy", "abc", [vectors], "npy")
    write_dense_vectors(tmp_path / "empty.npy", [], [], "npy", dim=3)
    x, r, npy = tmp_path / "x.npy", tmp_path / "r", ("--format", "npy")
    cases: list[tuple[list[object], str]] = [
        (["export", tmp_path / "bm25", r, *npy], "sparse ones go to"),
        (["export", tmp_path / "dense", r, "--format", "ciff"], "dense ones go to"),
        (["export", tmp_path / "dense", r, *npy, "--scale", 2], "--scale: is not for --format npy"),
        (["export", tmp_path / "dense", r, "--format", "ciff", "--texts"], "dense ones go to"),
        (["import", x, x, r, *npy], "2 inputs; expected one"),
        (["import", x, r, *npy, "--language", "en"], "--language: is not for"),
        (["import", x, r, "--format", "ciff", "--metric", "l2"], "--metric: is not for"),
        (["import", x, r, "--format", "csv"], "npy, parquet, safetensors, jsonl (dense"),
        (["import", x, r, *npy, "--metric", "l3"], "l3"),
        (["import", x, r, *npy, "--queries", x], "--queries: needs --query-vectors"),
        (["import", x, r, *npy, "--query-vectors", x], "ids without texts"),
        (["import", x, r, *npy, "--query-vectors", x, "--encoder", bert], "give one"),
        (["import", x, r, *npy, "--encoder", bert], "of 32 dimensions, but"),
        (["search", tmp_path / "dense", "--vectors", x, "--output", r], "3 dimensions, this index"),
        (
            ["search", tmp_path / "dense", "--vectors", tmp_path / "empty.npy", "--output", r],
            "no vec",
        ),
    ]
    for words, message in cases:
        code, _, err = sluice(*words)
        assert (code, message in " ".join(err.split())) == (2, True), (words, err)
        assert not r.exists()
