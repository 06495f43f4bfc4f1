"""Qdrant as an index: in memory, in its own engine, and through its client, against our own."""

import copy
import itertools
import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_loop
from memory_collection import STORED, MemoryCollection
from scipy import sparse
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    MissingPackageError,
)
from sluice.indexing import FlatIndex, InvertedIndex, QdrantIndex, open_index
from sluice.indexing.databases.qdrant import index as qdrant, remote
from sluice.indexing.databases.qdrant.remote import BuildNotes
from sluice.retrieval import Document, Retriever
from sluice.retrieval.exchange.adapters.database_export import export_database, export_home
from sluice.retrieval.exchange.retriever_files import export_retriever
from sluice.retrieval.testing import check_index

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect"),  # of the client's
    pytest.mark.filterwarnings("ignore:Local mode performs exact"),  # local mode
]

Make = Callable[..., QdrantIndex]
URL = "http://localhost:6333"


@pytest.fixture(params=["memory", "engine", "client"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """What makes an index: beside a double, Qdrant's engine, and its client's local mode."""
    if request.param == "engine":
        pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
        return lambda **settings: QdrantIndex(str(tmp_path / "db"), **settings)
    if request.param == "client":
        client = pytest.importorskip("qdrant_client", reason="pip install 'sluice-ir[qdrant]'")
        local = client.QdrantClient(":memory:")
        monkeypatch.setattr(remote, "connected", lambda url: local)
        return lambda **settings: QdrantIndex(url=URL, **settings)
    return memory(tmp_path, monkeypatch)


@pytest.fixture(name="memory")
def memory_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return memory(tmp_path, monkeypatch)


def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(qdrant, "_collection", MemoryCollection)
    monkeypatch.setattr(MemoryCollection, "upserts", 0)
    return lambda **settings: QdrantIndex(str(tmp_path / "db"), **settings)


def whole_numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def same(found: Any, expected: Any, *, rows: bool = True) -> None:
    assert np.array_equal(found.rows >= 0, expected.rows >= 0)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)
    if rows:
        assert np.array_equal(found.rows, expected.rows)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_hits_are_those_of_the_exact_index(make: Make, tmp_path: Path, metric: Any) -> None:
    """Whole numbers in three dimensions: groups of ties far larger than the first fetch."""
    vectors, queries = whole_numbers(0, 120, 3), whole_numbers(1, 6, 3)
    index, expected = make(metric=metric), FlatIndex(metric)
    for part in (vectors[:50], vectors[50:51], vectors[51:], vectors[:0]):
        assert np.array_equal(index.add(part), expected.add(part))
    for k in (0, 1, 7, 119, 120, 500):
        same(index.search(queries, k), expected.search(queries, k))
    keep = np.random.default_rng(2).random(120)
    for share in (0.0, 0.3, 0.8):
        same(
            index.search(queries, 9, keep=keep < share),
            expected.search(queries, 9, keep=keep < share),
        )
    dead = np.flatnonzero(keep > 0.9)
    for each in (index, expected):
        each.delete(dead)
    same(index.search(queries, 40), expected.search(queries, 40))
    assert np.array_equal(index.compact(), expected.compact())
    same(index.search(queries, 40), expected.search(queries, 40))
    index.save(tmp_path / "index")
    index.settle()
    opened = open_index(tmp_path / "index", allow=[index.address])
    same(opened.search(queries, 40), expected.search(queries, 40))
    assert np.array_equal(opened.documents([5, 1]), expected.documents([5, 1]))
    assert any("in the order of rows" in said for said in opened.verify())
    opened.add(vectors[:3])
    expected.add(vectors[:3])
    same(opened.search(queries, 200), expected.search(queries, 200))
    assert not make(metric=metric).search(queries, 3).rows.size or index.empty().rows == 0


def test_scores_of_any_vectors_are_near(make: Make) -> None:
    draw = np.random.default_rng(3)
    vectors, queries = draw.standard_normal((150, 8)), draw.standard_normal((5, 8))
    vectors[7] = queries[2] = 0
    for metric in ("ip", "l2", "cosine"):
        index, expected = make(metric=metric), FlatIndex(metric)
        index.add(vectors)
        expected.add(vectors)
        found, other = index.search(queries, 20), expected.search(queries, 20)
        distinct = (np.diff(other.scores, axis=1) < -1e-4).all()
        same(found, other, rows=bool(distinct))
        assert found.rows[2].tolist()[:3] == other.rows[2].tolist()[:3]


def test_sparse_hits_are_those_of_the_inverted_index(make: Make) -> None:
    draw = np.random.default_rng(4)
    table = np.ceil(4 * draw.random((90, 30)) * (draw.random((90, 30)) < 0.08))
    table[11] = 0
    matrix = sparse.csr_array(table.astype(np.float32))
    queries = sparse.csr_array(table[:8].astype(np.float32))
    index, expected = make(), InvertedIndex()
    for each in (index, expected):
        each.add(matrix)
        each.delete([2, 60])
    for k in (1, 5, 200):
        same(index.search(queries, k), expected.search(queries, k))
    assert index.metric is None
    assert (index.documents([3, 8]) != matrix[[3, 8]]).nnz == 0
    none = index.search(sparse.csr_array((1, 30), dtype=np.float32), 3)
    assert none.rows.tolist() == [[-1] * 3]


ODD = [
    {}, {"n": 1}, {"n": 1.0}, {"n": True}, {"n": "1"}, {"n": 2.5, "t": ["a", "b"]}, {"t": []},
    {'q"uo.te\\ [0]': "x", "ü ": 3}, {"n": -7, "t": ["1"]}, {"n": 2**53}, {"n": False},
    {"t": ["x"]},
]  # fmt: skip
WHERE: list[dict[str, Any]] = [
    {"n": 1}, {"n": True}, {"n": "1"}, {"n": [1, "1"]}, {"n": None}, {"n": {"not": 1}},
    {"n": {"gte": 1}}, {"n": {"gt": 1, "lt": 2.6}}, {"n": {"lte": 2.5}}, {"t": "a"}, {"t": None},
    {"t": {"not": ["a", "x"]}}, {'q"uo.te\\ [0]': "x"}, {"ü ": {"gt": 2}}, {"n": [None, 2.5]},
    {"n": {"not": None}, "t": "1"}, {"id": ["d03", "d05"], "n": 2.5}, {"n": 2**53},
]  # fmt: skip


def test_conditions_choose_the_same_documents(make: Make, tmp_path: Path) -> None:
    corpus = [
        Document(f"d{at:02d}", "", f"gold word{at}", metadata)
        for at, metadata in enumerate(ODD)
    ]  # fmt: skip
    found = Retriever.build(WordEncoder(), corpus, index=make(), path=tmp_path / "r")
    expected = Retriever.build(WordEncoder(), corpus)
    for where in WHERE:
        hits = found.run({"q": "gold"}, k=20, where=where)
        assert hits.to_dict() == expected.run({"q": "gold"}, k=20, where=where).to_dict(), where
    with pytest.raises(ConfigError, match="orders numbers and no texts"):
        found.search("gold", where={"n": {"gte": "a"}})
    found.delete(["d05"])
    expected.delete(["d05"])
    found.add([Document("new", "", "gold", {"n": 2.5})])
    expected.add([Document("new", "", "gold", {"n": 2.5})])
    for where in ({"n": 2.5}, {"n": {"gte": 2}}):
        hits = found.run({"q": "gold"}, where=where)
        assert hits.to_dict() == expected.run({"q": "gold"}, where=where).to_dict()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_retriever_changes_as_any_other(make: Make, tmp_path: Path, kind: str) -> None:
    encoder = WordEncoder if kind == "dense" else BM25Encoder
    index = make()
    made = Retriever.build(encoder(), documents(), index=index, path=tmp_path / "r")
    expected = Retriever.build(encoder(), documents())
    queries = {"q": "gold river word7", "p": "stone sluice"}
    for each in (made, expected):
        each.delete(["d03", "d21"])
        each.update([Document("d07", "", "gold rewritten"), Document("n1", "", "river gold")])
    rows = made.run(queries, k=50).to_dict(), expected.run(queries, k=50).to_dict()
    for query, hits in rows[1].items():
        assert rows[0][query] == pytest.approx(hits, rel=1e-5)
    collection = made.index._collection  # type: ignore[attr-defined]
    assert collection.count({}) == len(made) == 39
    for each in (made, expected):
        each.compact()
    after = expected.run(queries, k=50).to_dict()
    opened = Retriever.open(tmp_path / "r", allow=[*index.words, "small_world:WordEncoder"])
    for query, hits in opened.run(queries, k=50).to_dict().items():
        assert hits == pytest.approx(after[query], rel=1e-5)
    first = opened.index._collection.points(np.arange(1), vectors=False)[0][1]  # type: ignore[attr-defined]
    assert first["id"] == opened.store.ids([0])[0]
    with pytest.raises((ConfigError, IndexFormatError), match="allow"):
        Retriever.open(tmp_path / "r", allow=["small_world:WordEncoder"]).search("gold")


def test_a_failed_build_goes_on(memory: Make, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(qdrant, "CHUNK", 8)
    plain = MemoryCollection.upsert

    def failing(self: Any, rows: Any, *rest: Any) -> None:
        if rows[0] == 24:
            raise KeyboardInterrupt
        plain(self, rows, *rest)

    monkeypatch.setattr(MemoryCollection, "upsert", failing)
    with pytest.raises(KeyboardInterrupt):
        Retriever.build(WordEncoder(), documents(), index=memory(), path=tmp_path / "r")
    monkeypatch.setattr(MemoryCollection, "upsert", plain)
    assert MemoryCollection.upserts == 3
    before = set(STORED)
    made = Retriever.build(WordEncoder(), documents(), index=memory(), path=tmp_path / "r")
    assert MemoryCollection.upserts == 5  # 24 to 31 and 32 to 39
    assert set(STORED) == before
    expected = Retriever.build(WordEncoder(), documents()).run({"q": "gold river"})
    assert made.run({"q": "gold river"}).to_dict() == expected.to_dict()


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_killed_build_goes_on(
    tmp_path: Path, chunks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGKILL after so many chunks."""
    pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
    words = [str(tmp_path / "db"), str(tmp_path / "work"), "6", str(chunks - 1)]
    command = [sys.executable, qdrant_loop.__file__, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        for _ in range(chunks):
            process.stdout.readline()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with caplog.at_level("INFO", logger="sluice"):
        index = qdrant_loop.filled(words[0], Path(words[1]), 6)
    assert "going on with the collection" in caplog.text
    vectors = np.random.default_rng(0).integers(-3, 4, (240, 6)).astype(np.float32)
    expected = FlatIndex()
    expected.add(vectors)
    index.save(tmp_path / "index")
    index.settle()
    same(index.search(vectors[:9], 240), expected.search(vectors[:9], 240))
    assert index.verify()[0].startswith("240 documents have points")
    assert len(list((tmp_path / "db").iterdir())) == 1


def test_another_recipe_begins_anew(memory: Make, tmp_path: Path, monkeypatch: Any) -> None:
    plain = MemoryCollection.upsert

    def failing(self: Any, *rest: Any) -> None:
        plain(self, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(MemoryCollection, "upsert", failing)
    with pytest.raises(KeyboardInterrupt):
        Retriever.build(WordEncoder(), documents(), index=memory(), path=tmp_path / "r")
    left = set(STORED)
    monkeypatch.setattr(MemoryCollection, "upsert", plain)
    Retriever.build(WordEncoder(), documents(), index=memory(metric="l2"), path=tmp_path / "r")
    assert len(left - set(STORED)) == 1  # what the killed one left is removed


def test_a_new_build_takes_the_place_of_the_former_collection(make: Make, tmp_path: Path) -> None:
    made = [Retriever.build(WordEncoder(), documents(), index=make(), path=tmp_path / "r")]
    other = Retriever.build(WordEncoder(), documents(), index=make(), path=tmp_path / "other")
    former: Any = made[0].index._collection  # type: ignore[attr-defined]
    made.append(Retriever.build(WordEncoder(), documents(), index=make(), path=tmp_path / "r"))
    with pytest.raises((IndexFormatError, KeyError)):  # the latter of the double
        former.count({})
    for each in (made[1], other):
        assert len(each.search("gold", k=40)) == 40


def test_what_another_server_does_not_find_is_no_lost_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("qdrant_client", reason="pip install 'sluice-ir[qdrant]'")
    said = {
        b"404 page not found": DataError,
        b'{"error":"no /collections/c-1/points: not found"}': DataError,
        b'{"status":{"error":"Not found: Collection `c-1` doesn\'t exist!"}}': IndexFormatError,
    }
    for content, kind in said.items():

        class Answering:
            def __getattr__(self, name: str, content: bytes = content) -> Any:
                from qdrant_client.http.exceptions import UnexpectedResponse

                raise UnexpectedResponse(404, "Not Found", content, None)  # type: ignore[arg-type]

        monkeypatch.setattr(remote, "connected", lambda url, own=Answering: own())
        with pytest.raises(kind) as caught:
            remote.RemoteCollection(qdrant.Settings(url=URL), "c-1").count({})
        assert ("correct url" in str(caught.value)) == (kind is DataError)


def test_a_note_names_collections_of_ours_alone(tmp_path: Path) -> None:
    notes = BuildNotes(tmp_path)
    notes.begin({"path": "db"}, "sluice-0123abcd-1")
    notes.note(0, 2, "digest")
    assert BuildNotes(tmp_path).abandoned() == "sluice-0123abcd-1"
    for name in ("sluice-/../../texts-1", "..", 3):
        (tmp_path / "qdrant.json").write_text(json.dumps({"path": "db", "name": name}))
        edited = BuildNotes(tmp_path)
        assert edited.begun({"path": "db"}) is edited.abandoned() is None
        assert not edited.stored(0, 2, "digest")


def test_a_failed_change_is_undone(memory: Make, tmp_path: Path, monkeypatch: Any) -> None:
    """Points of a change that was not committed are passed over, and removed by the next."""
    vectors = whole_numbers(5, 30, 3)
    index = memory()
    index.add(vectors)
    index.save(tmp_path / "index")
    index.settle()
    open_index(tmp_path / "index", allow=index.words).add(vectors[:9])  # and never saved
    opened = open_index(tmp_path / "index", allow=index.words)
    expected = FlatIndex()
    expected.add(vectors)
    same(opened.search(vectors[:4], 30), expected.search(vectors[:4], 30))
    assert "9 points that a killed change left" in " ".join(opened.verify())
    opened.add(vectors[:2])
    expected.add(vectors[:2])
    same(opened.search(vectors[:4], 40), expected.search(vectors[:4], 40))
    collection: Any = opened._collection  # type: ignore[attr-defined]
    assert collection.count({}) == 32
    collection.delete({"must": [{"has_id": [4]}]})
    opened.save(tmp_path / "index")
    with pytest.raises(IndexFormatError, match="31 points for 32 documents"):
        opened.verify()
    with pytest.raises(DataError, match="row 4 is not in the database"):
        opened.documents([4])


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "path, url: expected one of them"),
    ({"path": "db", "url": URL}, "path, url: expected one of them"),
    ({"url": "http://example.org:6333"}, "example.org is another machine"),
    ({"url": "ftp://localhost"}, "url: expected https"),
    ({"url": "https://me:hush@example.org"}, "QDRANT_API_KEY"),
    ({"url": "https://example.org/?api-key=hush"}, "QDRANT_API_KEY"),
    ({"path": "db", "collection": "../up"}, "collection: '../up'"),
    ({"path": "db", "metric": "dot"}, "metric"),
    ({"path": "db", "method": "hsnw"}, "did you mean 'hnsw'"),
    ({"path": "db", "m": 32}, "method: hnsw; leave them out"),
    ({"path": "db", "method": "hnsw", "m": 1}, "m"),
    ({"path": 3}, "path, url"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        QdrantIndex(**settings)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_the_rules_of_every_index(memory: Make, metric: Any) -> None:
    check_index(lambda: memory(metric=metric), ties=metric != "cosine")


def test_copies_search_the_same_collection(make: Make) -> None:
    index = make()
    index.add(whole_numbers(0, 30, 3))
    expected = index.search(whole_numbers(1, 3, 3), 9)
    for each in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        same(each.search(whole_numbers(1, 3, 3), 9), expected)


def test_bad_input(memory: Make) -> None:
    index = memory(metric="l2")
    with pytest.raises(ConfigError, match="inner products alone"):
        index.add(sparse.csr_array((1, 3), dtype=np.float32))
    with pytest.raises(ConfigError, match="method: hnsw; Qdrant searches sparse vectors exactly"):
        memory(method="hnsw").add(sparse.csr_array((1, 3), dtype=np.float32))
    index.add(whole_numbers(0, 4, 3))
    with pytest.raises(DataError, match="this index holds 3"):
        index.add(whole_numbers(0, 4, 2))
    with pytest.raises(ConfigError, match="takes none"):
        index.search(whole_numbers(0, 1, 3), 1, params={"ef": 3})
    graph = memory(method="hnsw")
    for params in ({"ef": 0}, {"exact": 1}, {"eff": 2}):
        with pytest.raises(ConfigError, match="params"):
            graph.check_params(params)
    with pytest.raises(ConfigError, match="65,536"):
        graph.check_fit(70_000, 1)


def test_damaged_folders(memory: Make, tmp_path: Path) -> None:
    index = memory()
    index.add(whole_numbers(0, 4, 3))
    index.save(tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    good = json.loads(manifest.read_text())
    for key, value in (
        ("name", "../../etc"), ("name", "sluice"), ("name", 3), ("width", 0), ("kind", "fat"),
        ("settings", {"url": 1}), ("settings", []),
    ):  # fmt: skip
        manifest.write_text(json.dumps({**good, "index": {**good["index"], key: value}}))
        with pytest.raises(IndexFormatError):
            open_index(tmp_path / "index", allow=index.words)


def test_the_key_stays_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("qdrant_client", reason="pip install 'sluice-ir[qdrant]'")

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("401: the key hush-hush is not known")

    monkeypatch.setenv("QDRANT_API_KEY", "hush-hush")
    monkeypatch.setattr(remote, "connected", lambda url: Refusing())
    index = QdrantIndex(url=URL)
    with pytest.raises(DataError, match=r"the key \*\*\* is not known") as caught:
        index.add(whole_numbers(0, 2, 3))
    assert "hush" not in str(caught.value)
    index.save(tmp_path / "index")
    saved = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert saved
    assert not any(b"hush" in data for data in saved)


@pytest.mark.parametrize("settings", [{"path": "db"}, {"url": URL}])
def test_a_missing_package_is_named(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("qdrant_edge", "qdrant_client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[qdrant\]'"):
        QdrantIndex(**settings).add(whole_numbers(0, 2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["dense", "sparse", "cosine"])
def test_a_retriever_comes_home_with_its_hits(memory: Make, tmp_path: Path, kind: str) -> None:
    encoder: Any = BM25Encoder() if kind == "sparse" else WordEncoder()
    settings = {"metric": "cosine"} if kind == "cosine" else {}
    there = Retriever.build(encoder, documents(), index=memory(**settings), path=tmp_path / "r")
    there.delete(["d03", "d39"])
    there.update([Document("d07", "", "gold rewritten"), Document("n1", "", "river gold")])
    words = [str(tmp_path / "db"), "small_world:WordEncoder"]
    for _ in range(2):  # the second replaces the first
        said = export_home(there, tmp_path / "home", words)
    assert said.startswith("39 documents, index of type " + ("inv" if kind == "sparse" else "flat"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "r"]
    queries = {"q": "gold river word7", "p": "stone sluice"}
    home = Retriever.open(tmp_path / "home", allow=words[1:])
    assert isinstance(home.index, InvertedIndex if kind == "sparse" else FlatIndex)
    for query, ranking in there.run(queries, k=50).items():
        own = home.run(queries, k=50)[query]
        assert list(own.doc_ids) == list(ranking.doc_ids)
        assert own.scores.tolist() == pytest.approx(ranking.scores.tolist(), rel=1e-5, abs=1e-5)
    home.add([Document("n2", "", "gold")])
    assert len(home) == 40
    assert len(there) == 39
    with pytest.raises(ConfigError, match="is for an index in PostgreSQL or Qdrant"):
        export_home(home, tmp_path / "again", words)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_an_export_reads_the_database(memory: Make, tmp_path: Path, kind: str) -> None:
    encoder: Any = WordEncoder() if kind == "dense" else BM25Encoder()
    made = Retriever.build(encoder, documents(), index=memory(), path=tmp_path / "r")
    same = Retriever.build(encoder, documents())
    for each, name in ((made, "a"), (same, "b")):
        export_database(each, tmp_path / name, "opensearch")
        if kind == "dense":
            export_retriever(each, tmp_path / f"{name}.npy", "npy")
        else:
            export_retriever(each, tmp_path / f"{name}.jsonl", "impact-json")
    for ending in ("/documents-00001.ndjson", ".npy" if kind == "dense" else ".jsonl"):
        found = Path(f"{tmp_path}/a{ending}").read_bytes()
        assert found == Path(f"{tmp_path}/b{ending}").read_bytes()


def test_a_graph_finds_what_is_near(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
    vectors = np.random.default_rng(6).standard_normal((200, 4)).astype(np.float32)
    index = QdrantIndex(str(tmp_path / "db"), method="hnsw", m=4, ef_construct=16)
    index.spool(tmp_path / "work")
    index.add(vectors)
    index.save(tmp_path / "index")
    assert 0.8 <= index.notes["recall"] <= 1
    assert any(said.startswith("recall@10 ") for said in index.differences)
    expected = FlatIndex()
    expected.add(vectors)
    same(index.search_exactly(vectors[:5], 10), expected.search(vectors[:5], 10), rows=False)
    assert any("recall@10 " in said for said in index.verify())
    assert "approximate" in index.differences[0]
    walked = index.search(vectors[:5], 10, params={"ef": 200})
    common = [len(np.intersect1d(*pair)) for pair in zip(
        walked.rows, expected.search(vectors[:5], 10).rows, strict=True)]  # fmt: skip
    assert sum(common) >= 40


def test_a_folder_that_is_open_elsewhere(tmp_path: Path) -> None:
    edge = pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
    index = QdrantIndex(str(tmp_path / "db"))
    index.add(whole_numbers(0, 4, 3))
    index.save(tmp_path / "index")
    name = next((tmp_path / "db").iterdir())
    words = index.words
    del index
    held = edge.EdgeShard.load(str(name))  # as another process has it
    opened = open_index(tmp_path / "index", allow=words)
    with pytest.raises(DataError, match="open in another process"):
        opened.search(whole_numbers(0, 1, 3), 1)
    held.close()
    assert opened.search(whole_numbers(0, 1, 3), 1).rows.shape == (1, 1)


def test_every_combination_of_conditions(memory: Make) -> None:
    """Words of keys and values cannot be taken for each other."""
    from sluice.indexing.databases.qdrant.collection import words_of

    values = ["", "a", '"', "null", 1, True, 0.5, '["a"]']
    seen: dict[str, tuple[str, Any]] = {}
    for key, value in itertools.product(["a", '"', "", '["a"', "a, 1"], values):
        for word in words_of({key: value}):
            assert seen.setdefault(word, (key, word)) == (key, word)
