"""Retrievers through exchange formats and back: scores, deletions, encoders, the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import WordEncoder, documents, write_beir
from sparse_files import read_ciff, read_vectors

from sluice.encoders import BM25Encoder, SpladeEncoder, VocabularyEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, ModelError
from sluice.encoders.lexical.variants import Variant
from sluice.indexing import InvertedIndex
from sluice.retrieval import Document, Retriever, Run, evaluate, load_dataset
from sluice.retrieval.exchange.formats.ciff import CiffFile
from sluice.retrieval.exchange.retriever_files import export_retriever, import_retriever
from sluice.retrieval.exchange.vector_files import format_names, read_query_vectors, run_vectors

QUERIES = {"q1": "gold river word7", "q2": "stone stone sluice", "q3": "nothing known zzz"}
NAMES = {"ciff": "x.ciff.gz", "impact-json": "x.jsonl.gz", "vectors": "x"}


@pytest.fixture
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), documents())


def same_run(found: Run, expected: Run, *, relative: float) -> None:
    assert list(found) == list(expected)
    for query in expected:
        scores = dict(expected[query])
        assert dict(found[query]).keys() == scores.keys()
        for name, score in found[query]:
            assert score == pytest.approx(scores[name], rel=relative)


@pytest.mark.parametrize("variant", ["lucene", "plus", "l"])
@pytest.mark.parametrize("form", format_names("sparse"))
def test_bm25_comes_back(tmp_path: Path, form: str, variant: Variant) -> None:
    output = tmp_path / NAMES[form]
    bm25 = Retriever.build(BM25Encoder(variant=variant), documents())
    scale = None if form == "vectors" else 1e5
    report = export_retriever(bm25, output, form, scale=scale, queries=QUERIES)
    assert (report.documents, report.lost) == (40, 0)
    assert report.postings == bm25.index.stats().postings
    made = import_retriever(output, tmp_path / "r", form, language="en")
    assert len(made) == 40
    ids, vectors = read_query_vectors(f"{output}.queries.jsonl", made.encoder.vocabulary)
    found = run_vectors(Retriever.open(tmp_path / "r"), ids, vectors, 50)
    expected = bm25.run(QUERIES, k=50)
    if form == "vectors":
        assert {query: dict(found[query]) for query in found} == expected.to_dict()
        return
    scaled = {
        query: [(name, score * 1e5) for name, score in hits] for query, hits in expected.items()
    }
    same_run(found, Run(scaled), relative=1e-4)
    same_run(made.run(QUERIES, k=50), found, relative=1e-6)  # counts of analysed words


def test_default_scales(tmp_path: Path, bm25: Retriever) -> None:
    report = export_retriever(bm25, tmp_path / "x.ciff", "ciff")
    found = read_ciff(tmp_path / "x.ciff")
    assert found.weights.data.max() == 255
    header = CiffFile(tmp_path / "x.ciff").header
    assert f"weight = round({report.scale!r} * impact)" in header.description
    assert header.total_terms == found.weights.sum()
    assert "idf is in the documents' weights" in str(report)
    seven = export_retriever(bm25, tmp_path / "y.ciff", "ciff", quantise=7)
    assert read_ciff(tmp_path / "y.ciff").weights.data.max() == 7
    assert seven.largest_error > report.largest_error
    one = export_retriever(bm25, tmp_path / "x.jsonl", "impact-json")
    assert one.scale == 100
    assert export_retriever(bm25, tmp_path / "z.ciff", "ciff", scale=0.4).lost > 0
    assert "queries' weights" in str(export_retriever(bm25, tmp_path / "v", "vectors"))


def test_idf_is_the_encoders(tmp_path: Path, bm25: Retriever) -> None:
    bm25.delete(["d03", "d17"])
    export_retriever(bm25, tmp_path / "x.ciff", "ciff", scale=1e6)
    folded = read_ciff(tmp_path / "x.ciff")
    export_retriever(bm25, tmp_path / "v", "vectors", queries={"q": "gold word7"})
    plain = read_vectors(tmp_path / "v")
    line = json.loads((tmp_path / "v.queries.jsonl").read_text())
    for term, idf in line["vector"].items():
        before = plain.weights[:, [plain.terms.index(term)]].toarray()
        after = folded.weights[:, [folded.terms.index(term)]].toarray()
        np.testing.assert_allclose(after, before * idf * 1e6, rtol=1e-5)
    assert len(line["vector"]) == 2


@pytest.mark.parametrize("form", format_names("sparse"))
def test_deleted_documents_stay_behind(tmp_path: Path, bm25: Retriever, form: str) -> None:
    bm25.delete(["d07", "d39"])
    bm25.add([Document("n1", "", "brandnew gold")])
    export_retriever(bm25, tmp_path / NAMES[form], form)
    made = import_retriever(tmp_path / NAMES[form], tmp_path / "r", form, language="en")
    names = [document.id for document in made.store]
    assert names == [f"d{n:02d}" for n in range(39) if n != 7] + ["n1"]
    assert [hit.doc_id for hit in made.search("brandnew")] == ["n1"]
    assert not made.search("word7")
    text = made.store.find("n1")
    assert text is not None
    assert text.text == ("brandnew gold" if form == "impact-json" else "")


def test_an_imported_index_is_a_retriever(tmp_path: Path, bm25: Retriever) -> None:
    export_retriever(bm25, tmp_path / "x.ciff", "ciff")
    made = import_retriever(tmp_path / "x.ciff", tmp_path / "r", "ciff")
    assert isinstance(Retriever.open(tmp_path / "r").encoder, VocabularyEncoder)
    assert made.search("word7 WORD8", k=5)[0].doc_id == "d07"
    made.delete(["d07"])
    made.compact()
    assert not Retriever.open(tmp_path / "r").search("word7")
    with pytest.raises(ModelError, match="encodes queries only"):
        made.add([Document("new", "", "word1")])
    assert len(Retriever.open(tmp_path / "r")) == 39
    # Whole numbers are exchanged as they are.
    again = export_retriever(made, tmp_path / "y.ciff", "ciff")
    assert (again.scale, again.idf, again.lost) == (1.0, "", 0)
    first, second = read_ciff(tmp_path / "x.ciff"), read_ciff(tmp_path / "y.ciff")
    kept = [at for at, document in enumerate(first.documents) if document.id != "d07"]
    columns = [first.terms.index(term) for term in second.terms]
    expected = first.weights[kept][:, columns].toarray()
    np.testing.assert_array_equal(second.weights.toarray(), expected)


def test_splade_comes_back(tmp_path: Path, masked_bert: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert)
    retriever = Retriever.build(encoder, documents(12))
    export_retriever(retriever, tmp_path / "v", "vectors", queries=QUERIES)
    made = import_retriever(tmp_path / "v", tmp_path / "r", "vectors")
    assert made.encoder.terms(range(5)) == encoder.tokenizer.convert_ids_to_tokens(range(5))
    ids, vectors = read_query_vectors(tmp_path / "v.queries.jsonl", made.encoder.vocabulary)
    expected = retriever.run(QUERIES, k=12)
    assert run_vectors(made, ids, vectors, 12).to_dict() == expected.to_dict()
    report = export_retriever(retriever, tmp_path / "x.jsonl", "impact-json")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"d{n:02d}" for n in range(12)]
    assert sum(len(line["vector"]) for line in lines) == report.postings
    row = retriever.index.documents([3])
    best = int(row.indices[np.argmax(row.data)])
    assert lines[3]["vector"][encoder.terms([best])[0]] == round(100 * float(row.data.max()))


def test_an_empty_retriever(tmp_path: Path) -> None:
    empty = Retriever.build(BM25Encoder(), [])
    for form in ("ciff", "vectors"):
        export_retriever(empty, tmp_path / NAMES[form], form)
        assert len(import_retriever(tmp_path / NAMES[form], tmp_path / form, form)) == 0


def test_what_cannot_be_exchanged(tmp_path: Path, bm25: Retriever) -> None:
    out = tmp_path / "out"
    dense = Retriever.build(WordEncoder(), documents())
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: export_retriever(dense, out, "ciff"), "its FlatIndex holds dense vectors"),
        (lambda: export_retriever(bm25, out, "cif"), "did you mean 'ciff'"),
        (lambda: export_retriever(bm25, out, "vectors", scale=2), "lossless"),
        (lambda: export_retriever(bm25, out, "ciff", scale=2, quantise=3), "one of them"),
        (lambda: export_retriever(bm25, out, "ciff", scale=0.0), "a number above 0"),
        (lambda: export_retriever(bm25, out, "ciff", scale=float("nan")), "a number above 0"),
        (lambda: export_retriever(bm25, out, "ciff", quantise=0), "from 1 to 2"),
        (lambda: import_retriever([out, out], out, "ciff"), "2 inputs; expected one"),
        (lambda: import_retriever([], out, "impact-json"), "0 inputs"),
        (lambda: import_retriever(out, out, "json"), "ciff, impact-json, vectors"),
    ]
    for call, message in cases:
        with pytest.raises(ConfigError, match=message):
            call()
    assert not out.exists()


def test_a_failed_import_leaves_what_was_there(tmp_path: Path, bm25: Retriever) -> None:
    path = tmp_path / "x.ciff"
    export_retriever(bm25, path, "ciff")
    import_retriever(path, tmp_path / "r", "ciff")
    data = path.read_bytes()
    place = data.index(b"word7\x10")
    broken = tmp_path / "broken.ciff"
    broken.write_bytes(data[:place] + b"word8" + data[place + 5 :])  # seen while reading postings
    with pytest.raises(DataError, match="'word8' again"):
        import_retriever(broken, tmp_path / "new", "ciff")
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="'word8' again"):
        import_retriever(broken, tmp_path / "r", "ciff")
    assert Retriever.open(tmp_path / "r").search("word7")[0].doc_id == "d07"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(IndexFormatError, match=r"thesis\.txt"):
        import_retriever(path, tmp_path / "mine", "ciff")
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_bm25_over_fields_is_exchanged_as_vectors(tmp_path: Path) -> None:
    bm25 = Retriever.build(BM25Encoder(fields={"title": 2.0, "text": 1.0}), documents())
    with pytest.raises(ConfigError, match="over the fields title, text"):
        export_retriever(bm25, tmp_path / "x.ciff", "ciff")
    export_retriever(bm25, tmp_path / "v", "vectors", queries=QUERIES)
    made = import_retriever(tmp_path / "v", tmp_path / "r", "vectors")
    ids, vectors = read_query_vectors(tmp_path / "v.queries.jsonl", made.encoder.vocabulary)
    found = run_vectors(made, ids, vectors, 40)
    assert found.to_dict() == bm25.run(QUERIES, k=40).to_dict()


def test_vectors_of_queries_must_match_their_ids(bm25: Retriever) -> None:
    vectors = bm25.encoder.encode_queries(["gold", "river"])
    with pytest.raises(DataError, match="2 vectors for 1 query"):
        run_vectors(bm25, ["q"], vectors)
    same_run(
        run_vectors(bm25, ["q", "p"], vectors, 100),
        bm25.run({"q": "gold", "p": "river"}, k=100),
        relative=0,
    )


@pytest.mark.parametrize("form", format_names("sparse"))
def test_the_command_line(tmp_path: Path, sluice: Call, form: str) -> None:
    data = write_beir(tmp_path / "data")
    Retriever.build(BM25Encoder(), documents(), path=tmp_path / "bm25")
    output = tmp_path / NAMES[form]
    code, out, _ = sluice(
        "export", tmp_path / "bm25", output, "--format", form, "--queries", data / "queries.jsonl"
    )
    assert (code, "40 documents" in out) == (0, True)
    made = tmp_path / "made"
    code, out, err = sluice("import", output, made, "--format", form, "--language", "en")
    assert (code, "40 documents" in out) == (0, True), err
    code, out, _ = sluice("search", made, "word7", "-k", 1)
    assert "d07" in out
    run = tmp_path / "run.trec"
    code, out, _ = sluice(
        "search", made, "--vectors", f"{output}.queries.jsonl", "--output", run, "-k", 5
    )
    assert (code, "28 queries" in out) == (0, True)
    expected = Retriever.open(tmp_path / "bm25").run({"q0": "gold word0 stone"}, k=1)
    assert Run.load(run)["q0"].doc_ids[0] == expected["q0"].doc_ids[0]


def test_several_files_and_bad_input_on_the_command_line(tmp_path: Path, sluice: Call) -> None:
    files = []
    for number in range(2):
        files.append(tmp_path / f"{number}.jsonl")
        line = {"id": f"d{number}", "contents": "x", "vector": {"gold": number + 0.5}}
        files[-1].write_text(json.dumps(line) + "\n", encoding="utf-8")
    code, out, _ = sluice("import", *files, tmp_path / "r", "--format", "impact-json")
    assert (code, "2 documents, 1 term" in out) == (0, True)
    files[1].write_text('{"id": "d0", "vector": {}}\n', encoding="utf-8")
    code, _, err = sluice("import", *files, tmp_path / "s", "--format", "impact-json")
    assert code == 2
    assert f"{files[1]}:1: id 'd0' again, first in {files[0]}:1" in err
    assert not (tmp_path / "s").exists()
    code, _, err = sluice("export", tmp_path / "none", tmp_path / "x", "--format", "ciff")
    assert (code, "no such folder" in err) == (2, True)


def test_bm25_on_scifact_at_eight_bits(tmp_path: Path, collections: Path) -> None:
    dataset = load_dataset(str(collections / "scifact"))
    bm25 = Retriever.build(BM25Encoder(), dataset.corpus)
    queries = dict(dataset.queries)
    before = evaluate(bm25.run(queries, k=10), dataset.qrels, ["nDCG@10"]).mean["nDCG@10"]
    report = export_retriever(bm25, tmp_path / "x.ciff", "ciff", queries=queries)
    made = import_retriever(tmp_path / "x.ciff", tmp_path / "r", "ciff")
    ids, vectors = read_query_vectors(f"{tmp_path}/x.ciff.queries.jsonl", made.encoder.vocabulary)
    after = evaluate(run_vectors(made, ids, vectors, 10), dataset.qrels, ["nDCG@10"]).mean
    assert after["nDCG@10"] == pytest.approx(before, abs=0.01)
    assert report.largest_error < 0.1


def test_only_a_folder_of_vectors_is_written_over(tmp_path: Path) -> None:
    bm25 = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for folder in (model, tmp_path / "r" / "index", tmp_path / "r"):
        with pytest.raises(ConfigError, match="only a folder saved in the same form"):
            export_retriever(bm25, folder, "vectors")
    assert (model / "config.json").exists()
    assert len(Retriever.open(tmp_path / "r").search("gold")) > 0
    for _ in range(2):
        export_retriever(bm25, tmp_path / "v", "vectors")
    for folder in (model, Path()):
        with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
            export_retriever(bm25, folder, "ciff")


@pytest.mark.parametrize("given", [{"scale": 1e300}, {"scale": 2.0**24}, {"quantise": 2**24 + 1}])
def test_weights_stay_whole_numbers(tmp_path: Path, bm25: Retriever, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"2\^24"):
        export_retriever(bm25, tmp_path / "x.ciff", "ciff", **given)
    assert not list(tmp_path.iterdir())
    export_retriever(bm25, tmp_path / "x.ciff", "ciff", quantise=2**24)
    assert read_ciff(tmp_path / "x.ciff").weights.data.max() == 2**24


def test_pruned_documents_are_exported_with_the_encoders_idf(tmp_path: Path) -> None:
    pruned = Retriever.build(BM25Encoder(), documents(), index=InvertedIndex(top_terms=3))
    export_retriever(pruned, tmp_path / "x.ciff", "ciff", scale=1e5)
    found, stored = read_ciff(tmp_path / "x.ciff"), pruned.index.documents([7])
    idf, vocabulary = pruned.encoder.idf(), pruned.encoder.vocabulary
    row = dict(zip(found.terms, found.weights[[7]].toarray()[0], strict=True))
    for term in ("word7", "number"):
        weight = stored[:, [vocabulary[term]]].toarray()[0, 0] * idf[vocabulary[term]]
        assert row.get(term, 0) == pytest.approx(1e5 * weight, abs=1)
