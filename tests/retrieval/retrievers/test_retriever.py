"""Retrievers: build, open, search, add, delete, compact; whole or not at all."""

import gc
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FaissIndex, FlatIndex, InvertedIndex
from sluice.indexing.index import Index
from sluice.retrieval import Dataset, Document, Retriever, Run
from sluice.retrieval.retrievers.folder import verify_retriever
from sluice.retrieval.runs.queries import SelfExcluding

QUERIES = {"a": "gold river", "b": "word7 number", "c": "nothing-shared-xyz", "d": "sluice the"}
WORDS = "small_world:WordEncoder"


def oracle(encoder: WordEncoder, docs: list[Document], k: int) -> Run:
    """Score every document by a plain loop over float64."""
    vectors = encoder.encode_documents([d.full_text for d in docs]).astype(float)
    queries = encoder.encode_queries(list(QUERIES.values())).astype(float)
    scores = queries @ vectors.T
    found = {}
    for query, row in zip(QUERIES, scores, strict=True):
        best = sorted(range(len(docs)), key=lambda i: (-row[i], i))[:k]
        found[query] = {docs[i].id: row[i] for i in best}
    return Run(found)


@pytest.mark.parametrize("k", [1, 7, 100])
def test_flat_retriever_equals_brute_force(tmp_path: Path, k: int) -> None:
    encoder, docs = WordEncoder(), documents()
    built = Retriever.build(encoder, docs, index=FlatIndex(), path=tmp_path / "r")
    opened = Retriever.open(tmp_path / "r", allow=[WORDS])
    expected = oracle(encoder, docs, k)
    for retriever in (built, opened):
        assert dict(retriever.run(QUERIES, k=k)) == dict(expected)
    assert len(opened) == 40


def test_what_was_let_go_is_opened_again(tmp_path: Path) -> None:
    retriever = Retriever.build(WordEncoder(), documents(), path=tmp_path / "r")
    before, encoder = retriever.run(QUERIES), weakref.ref(retriever.encoder)
    assert retriever.add([Document("new", "", "gold gold")]) == 1
    retriever.let_go(allow=[WORDS])
    gc.collect()
    assert encoder() is None
    assert "new" in retriever
    assert retriever.delete(["new"]) == 1
    retriever.let_go()  # its own class is not allowed
    with pytest.raises(ConfigError, match="allow"):
        retriever.search("gold")
    retriever.let_go(allow=[WORDS], params={})
    assert dict(retriever.run(QUERIES)) == dict(before)


def test_hits_of_a_small_corpus_share_the_texts_of_their_ids() -> None:
    retriever = Retriever.build(WordEncoder(), documents(5))
    hits = retriever.run({str(number): "the number" for number in range(9)}, 5)
    assert len({id(name) for ranking in hits.values() for name in ranking.doc_ids}) == 5
    assert {*hits["3"].doc_ids} == {f"d{number:02d}" for number in range(5)}


def test_search_returns_ids_scores_and_texts() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    hits = retriever.search("gold word0", k=3)
    assert hits[0].doc_id == "d00"
    assert hits[0].text.startswith("gold gold word0")
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(retriever.search("word7", k=100)) == 1  # documents without the term are no hits


def test_an_empty_query_has_no_hits_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    retriever = Retriever.build(WordEncoder(), documents())
    with caplog.at_level(logging.WARNING, "sluice"):
        run = retriever.run({"x": " ", "y": "gold", "z": ""})
    assert len(run["x"]) == len(run["z"]) == 0 < len(run["y"])
    assert caplog.text.count("2 empty queries") == 1
    assert dict(retriever.run({})) == {}


def test_empty_and_one_document_corpora_are_valid() -> None:
    for encoder in (WordEncoder(), BM25Encoder()):
        empty = Retriever.build(encoder, [])
        assert len(empty) == 0
        assert empty.search("gold") == []
        one = Retriever.build(encoder, [Document("only", "", "gold")])
        assert [hit.doc_id for hit in one.search("gold")] == ["only"]


@pytest.mark.parametrize("kind", ["flat", "faiss", "bm25"])
def test_add_delete_compact_equal_a_rebuild(tmp_path: Path, kind: str) -> None:
    make = {
        "flat": lambda: (WordEncoder(), FlatIndex()),
        "faiss": lambda: (WordEncoder(), FaissIndex("Flat", metric="ip")),
        "bm25": lambda: (BM25Encoder(), InvertedIndex()),
    }[kind]
    docs = documents()
    encoder, index = make()
    retriever = Retriever.build(encoder, docs[:25], index=index, path=tmp_path / "r")
    assert retriever.add(docs[25:]) == 15
    assert retriever.delete(["d03", "d30"]) == 2
    retriever = Retriever.open(tmp_path / "r", allow=[WORDS])
    left = [d for d in docs if d.id not in ("d03", "d30")]
    encoder, index = make()
    rebuilt = Retriever.build(encoder, left, index=index)
    if kind != "bm25":  # BM25's average length waits for compact
        assert dict(retriever.run(QUERIES)) == dict(rebuilt.run(QUERIES))
    retriever.compact()
    assert len(retriever) == retriever.index.rows == 38
    retriever = Retriever.open(tmp_path / "r", allow=[WORDS])
    assert dict(retriever.run(QUERIES)) == dict(rebuilt.run(QUERIES))
    if kind == "bm25":
        assert verify_retriever(tmp_path / "r") > 3


def test_bm25_counts_added_documents_into_idf(tmp_path: Path) -> None:
    docs = documents()
    retriever = Retriever.build(BM25Encoder(), docs[:25], path=tmp_path / "r")
    retriever.add(docs[25:])
    refit = BM25Encoder().fit(d.full_text for d in docs)
    found = Retriever.open(tmp_path / "r").encoder
    queries = ["gold number word39", "the river"]
    terms = [{t: i for t, i in e.vocabulary.items()} for e in (found, refit)]
    left, right = (e.encode_queries(queries).toarray() for e in (found, refit))
    for one, other in zip(left, right, strict=True):
        assert {t: one[i] for t, i in terms[0].items()} == {
            t: other[i] for t, i in terms[1].items()
        }


def test_a_failed_change_leaves_the_retriever_as_it_was(tmp_path: Path) -> None:
    docs = documents()
    retriever = Retriever.build(BM25Encoder(), docs[:30], path=tmp_path / "r")
    before = dict(retriever.run(QUERIES))
    with pytest.raises(DataError, match="d05"):
        retriever.add([docs[35], docs[5]])
    with pytest.raises(DataError, match="nowhere"):
        retriever.delete(["d01", "nowhere"])
    for one in (retriever, Retriever.open(tmp_path / "r")):
        assert dict(one.run(QUERIES)) == before
        assert len(one) == 30
    assert retriever.add(docs[30:]) == 10


def test_two_writers_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    docs = documents()
    first = Retriever.build(WordEncoder(), docs[:30], path=tmp_path / "r")
    second = Retriever.open(tmp_path / "r", allow=[WORDS])
    first.add(docs[30:35])
    with pytest.raises(IndexFormatError, match="open it again"):
        second.add(docs[35:])


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    Retriever.build(WordEncoder(64), documents(), path=tmp_path / "r")
    with pytest.raises(IndexFormatError, match="was built with encoder"):
        Retriever.open(tmp_path / "r", encoder=WordEncoder(32))
    # somebody edits the encoder inside the folder
    (tmp_path / "r" / "encoder" / "words.json").write_text('{"dim": 32}')
    with pytest.raises(IndexFormatError, match="was built with encoder"):
        Retriever.open(tmp_path / "r", allow=[WORDS]).search("gold")


def test_a_saved_folder_imports_no_code_unasked(tmp_path: Path) -> None:
    Retriever.build(WordEncoder(), documents(), path=tmp_path / "r")
    with pytest.raises(ConfigError, match="--allow small_world:WordEncoder"):
        Retriever.open(tmp_path / "r").search("gold")


def test_rebuilding_replaces_the_retriever_and_its_encoder(tmp_path: Path) -> None:
    for encoder in (BM25Encoder(), WordEncoder(64), WordEncoder(32), BM25Encoder(k1=1.2)):
        Retriever.build(encoder, documents(), path=tmp_path / "r")
        again = Retriever.open(tmp_path / "r", allow=[WORDS])
        assert again.encoder.fingerprint == encoder.fingerprint
        assert again.search("gold", k=1)
        assert len(list((tmp_path / "r").glob("encoder*"))) == 1


@pytest.mark.parametrize("part", ["retriever.json", "index", "documents"])
def test_damage_is_found(tmp_path: Path, part: str) -> None:
    Retriever.build(WordEncoder(), documents(), path=tmp_path / "r")
    target = tmp_path / "r" / part
    if target.is_dir():
        data_files = [file for file in target.glob("g*/*.*") if file.suffix != ".json"]
        target = max(data_files, key=lambda file: file.stat().st_size)
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 0xFF
    target.write_bytes(data if part != "retriever.json" else data[: len(data) // 2])
    with pytest.raises(IndexFormatError, match=target.name.replace(".", r"\.")):
        Retriever.open(tmp_path / "r", allow=[WORDS]).search("gold")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match="expected a retriever folder"):
        Retriever.open(tmp_path)


def test_nan_vectors_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    class Broken(WordEncoder):
        def encode_documents(self, texts: list[str]) -> np.ndarray:
            return np.full((len(texts), self.dim), np.nan, np.float32)

    with pytest.raises(DataError, match=r"(?i)nan|finite"):
        Retriever.build(Broken(), documents(), path=tmp_path / "r")
    assert not (tmp_path / "r" / "retriever.json").exists()


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    for name in ("thesis.tex", "encoders_of_mine", "documents/letter.txt", "encoder/x", "index/a"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        with pytest.raises(IndexFormatError, match="not part of a retriever"):
            Retriever.build(BM25Encoder(), documents(), path=folder)
        assert (folder / name).read_text() == "mine"
    path = tmp_path / "r"
    Retriever.build(BM25Encoder(), documents(), path=path)
    (path / "encoders_of_mine").mkdir()
    Retriever.build(WordEncoder(), documents(), path=path)
    assert (path / "encoders_of_mine").exists()


def test_a_damaged_retriever_can_be_built_anew(tmp_path: Path) -> None:
    for damage in ("{", '{"format": "sluice.retriever", "version": "x"}', "[]"):
        Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
        (tmp_path / "r" / "retriever.json").write_text(damage)
        with pytest.raises(IndexFormatError):
            Retriever.open(tmp_path / "r")
        assert Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r").search("gold")
    (tmp_path / "r" / "index" / "manifest.json").write_text("{")
    assert Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r").search("gold")


@pytest.mark.parametrize(
    "change",
    [{"index_generation": "../g000001"}, {"encoder": "../../x"}, {"origin": 3}],
)
def test_a_head_that_lies_is_refused(tmp_path: Path, change: dict) -> None:
    import json

    Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    head = json.loads((tmp_path / "r" / "retriever.json").read_text())
    (tmp_path / "r" / "retriever.json").write_text(json.dumps({**head, **change}))
    with pytest.raises(IndexFormatError, match="not as Sluice writes it"):
        Retriever.open(tmp_path / "r")


def test_a_reader_that_was_overtaken_takes_the_newer_state(tmp_path: Path) -> None:
    docs = documents()
    writer = Retriever.build(BM25Encoder(), docs[:20], path=tmp_path / "r")
    fresh, counted, read, whole = (Retriever.open(tmp_path / "r") for _ in range(4))
    assert len(counted) == 20
    assert len(read.encoder.vocabulary)
    assert len(whole.documents) == 20  # for later searches: all is open
    for number in range(20, 24):
        writer.add([docs[number]])
    for reader in (fresh, counted, read):
        assert [hit.doc_id for hit in reader.search("word23")] == ["d23"]
        assert len(reader) == 24
    assert whole.search("word23") == []
    assert len(whole.search("number", 40)) == 20
    whole.save(tmp_path / "copy")
    assert len(Retriever.open(tmp_path / "copy")) == len(whole) == 24
    Retriever.build(WordEncoder(), docs[:30], path=tmp_path / "r")  # with another encoder
    late = Retriever.open(tmp_path / "r", allow=[WORDS])
    assert len(late) == 30
    Retriever.build(WordEncoder(32), docs, path=tmp_path / "r")
    for number in range(2):
        Retriever.open(tmp_path / "r", allow=[WORDS]).delete([f"d0{number}"])
    assert len(late.search("word35", 50)) == 38


def test_verifying_writes_nothing(tmp_path: Path) -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r")
    retriever.index.save(tmp_path / "r" / "index")  # what a writer does before it commits
    before = (tmp_path / "r" / "index" / "manifest.json").read_bytes()
    assert verify_retriever(tmp_path / "r") > 3
    assert (tmp_path / "r" / "index" / "manifest.json").read_bytes() == before


def test_queries_that_exclude_themselves_keep_their_depth() -> None:
    docs = documents()
    retriever = Retriever.build(WordEncoder(), docs)
    queries = SelfExcluding({doc.id: doc.full_text for doc in docs[:5]})
    for k in (1, 7):
        run = (retriever % k).run(queries)
        for query, ranking in run.items():
            assert len(ranking) == k
            assert query not in ranking.doc_ids
    assert (retriever % 1).run(dict(queries))["d00"].doc_ids == ["d00"]


def test_a_text_is_no_list_of_ids() -> None:
    retriever = Retriever.build(BM25Encoder(), [Document("1", "", "a"), Document("2", "", "b")])
    with pytest.raises(ConfigError, match="list of ids"):
        retriever.delete("12")
    with pytest.raises(ConfigError, match="query"):
        retriever.search(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="k is '3'"):
        retriever.search("a", k="3")  # type: ignore[arg-type]


def test_an_empty_corpus_gets_the_index_its_encoder_needs(masked_bert: Path) -> None:
    empty = Retriever.build(SpladeEncoder.from_pretrained(masked_bert), [])
    assert empty.search("gold") == []
    empty.add([Document("a", "", "gold")])
    assert empty.search("gold")


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_missed_positives_are_scored_as_the_index_scores(
    metric: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.retrieval.training_data.list_tasks import missed_scores

    class Counting(WordEncoder):
        encoded = 0

        def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
            self.encoded += len(texts)
            return super().encode_documents(texts)

    docs = documents()
    retriever = Retriever.build(Counting(), docs, index=FlatIndex(metric=metric))
    retriever.encoder.encoded = 0
    if not keeps:
        monkeypatch.setattr(FlatIndex, "_documents", Index._documents)
    queries = {"a": docs[0].full_text, "b": "gold river and more gold"}
    qrels = {query: {d.id: 1 for d in docs[:7]} for query in queries}
    dataset = Dataset.from_memory(docs, queries, qrels)
    found = missed_scores(retriever, Run({}), dataset.queries, dataset.qrels)
    assert retriever.encoder.encoded == len(queries) + (0 if keeps else 7)
    everything = retriever.run(queries, k=100).to_dict()
    for query, scores in found.items():
        assert scores == pytest.approx({d: everything[query][d] for d in scores}, rel=1e-5)
        assert len(scores) == 7


def test_a_depth_beyond_all_bounds_is_the_whole_corpus() -> None:
    retriever = Retriever.build(WordEncoder(), documents())
    assert len(retriever.search("gold", k=10**12)) == 40
