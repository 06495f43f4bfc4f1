"""Retrievers in shards: equal to the whole after every change, and honest where a part is gone."""

import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from small_world import SUBJECTS, WordEncoder, documents
from token_functions import token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    SluiceError,
    UnknownDocumentError,
)
from sluice.indexing import AutoIndex, FaissIndex, FlatIndex, GraphIndex, InvertedIndex, TokenIndex
from sluice.indexing.wrappers.fan_out import partial_results
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval import Document, Retriever, evaluate
from sluice.retrieval.exchange.retriever_files import export_retriever
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.folder import HEAD, verify_retriever
from sluice.retrieval.retrievers.measurements import gather_recalls
from sluice.retrieval.retrievers.shards import folder as opening
from sluice.retrieval.retrievers.shards.store import owners_of, shard_count
from sluice.retrieval.stages.hub_normaliser import log_normalisers
from sluice.retrieval.stages.rerankers.stored_vectors import check_single_vectors

QUERIES = {"a": "gold river", "b": "word7 the number", "c": "stone", "d": "unheard of"}
ALLOW = ["small_world:WordEncoder"]
Build = Callable[..., Retriever]


def corpus(count: int = 40) -> list[Document]:
    """Documents with ties: every third has the text of the one before; some have metadata."""
    made = documents(count)
    return [
        Document(
            each.id,
            each.title,
            made[number - 1].text if number % 3 == 2 else each.text,
            {"lang": ["de", "en"][number % 2], "number": number} if number % 5 else {"odd": True},
        )
        for number, each in enumerate(made)
    ]


def bm25(docs: Sequence[Document], **options: Any) -> Retriever:
    return Retriever.build(BM25Encoder(), docs, index=InvertedIndex(), **options)


def words(docs: Sequence[Document], **options: Any) -> Retriever:
    return Retriever.build(WordEncoder(), docs, index=FlatIndex("cosine"), **options)


def tokens(docs: Sequence[Document], **options: Any) -> Retriever:
    encoder = FunctionEncoder(token_vectors, name="words")
    return Retriever.build(encoder, docs, index=TokenIndex("float32"), **options)


def bm25_passages(docs: Sequence[Document], **options: Any) -> Retriever:
    return bm25(docs, passages=Passages(length=4, overlap=1), **options)


def word_passages(docs: Sequence[Document], **options: Any) -> Retriever:
    return words(docs, passages=Passages(length=5, overlap=1), **options)


def word_means(docs: Sequence[Document], **options: Any) -> Retriever:
    return words(docs, passages=Passages(length=5, overlap=1, aggregate="mean"), **options)


KINDS = [bm25, words, tokens, bm25_passages, word_passages, word_means]


def answers(retriever: Retriever, k: int = 1000, **options: Any) -> dict[str, Any]:
    return {query: list(hits) for query, hits in retriever.run(QUERIES, k=k, **options).items()}


def check_equal(whole: Retriever, sharded: Retriever) -> None:
    """All that can be asked of the two is the same, to the bit, also where a cut parts ties."""
    for k in (4, 1000):
        assert answers(sharded, k) == answers(whole, k)
    for where in ({"lang": "de", "number": {"gte": 12}}, {"odd": None}, {"id": ["d01", "d02"]}):
        assert answers(sharded, 3, where=where) == answers(whole, 3, where=where)
    assert list(sharded) == list(whole)
    assert len(sharded) == len(whole) == sharded.head.documents
    assert sharded.search("gold river", 5) == whole.search("gold river", 5)
    first = whole.search("gold river", 1)[0].doc_id
    if whole.index.innermost.explains:
        explained = [r.explain("gold river", first)._replace(plan=None) for r in (whole, sharded)]
        assert explained[0] == explained[1]
        assert explained[0].score > 0
    assert sharded.matches_of("gold river", first) == whole.matches_of("gold river", first)


def change(retriever: Retriever, turn: int) -> None:
    """Make one change, which the turn decides alone."""
    drawn = random.Random(turn)
    ids = sorted(each.id for each in retriever)
    verb = ("update", "delete", "add", "compact", "delete", "update")[turn]
    if verb == "compact":
        retriever.compact()
    elif verb == "delete":
        retriever.delete(drawn.sample(ids, 5))
    else:
        old = drawn.sample(ids, 4) if verb == "update" else []
        names = [*old, *(f"n{turn}-{number}" for number in range(4))]
        drawn.shuffle(names)
        text = [" ".join(drawn.choices([*SUBJECTS, "the", f"new{turn}"], k=8)) for _ in names]
        made = [
            Document(name, "", each, {"lang": "de"}) for name, each in zip(names, text, strict=True)
        ]
        getattr(retriever, verb)(made)


@pytest.mark.thorough
@pytest.mark.parametrize("build", KINDS)
def test_shards_equal_the_whole_over_changes(build: Build, tmp_path: Path) -> None:
    whole, sharded = build(corpus(), path=tmp_path / "w"), build(
        corpus(), path=tmp_path / "s", shards=3
    )  # fmt: skip
    check_equal(whole, sharded)
    for turn in range(6 if build is bm25 else 2):
        for retriever in (whole, sharded):
            change(retriever, turn)
        check_equal(whole, sharded)
    if build is not tokens:
        sharded = Retriever.open(tmp_path / "s", allow=ALLOW)
        check_equal(whole, sharded)
    sharded.reshard(2)
    whole.compact()
    check_equal(whole, sharded)


@pytest.mark.thorough
@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("parts", [{}, {"shards": 3}], ids=["whole", "shards"])
def test_synced_equals_a_fresh_build(build: Build, parts: dict[str, int], tmp_path: Path) -> None:
    """Ties at the cut included: rows are in the order of what is given."""
    old, new = corpus(), corpus()
    new[7] = new[7]._replace(text="stone of the river")
    new[8] = new[8]._replace(metadata={"number": 8.0})  # alike, and of another kind
    new[20:22] = []
    new.insert(3, Document("n1", "", old[5].text, {"lang": "de"}))
    new.append(Document("n0", "gold", "number nine"))
    retriever = build(old, path=tmp_path / "r", **parts)
    assert retriever.update(new, sync=True, dry_run=True) == (2, 2, 2, 36)
    assert answers(retriever) == answers(build(old))
    retriever.add([Document("n1", "", old[5].text, {"lang": "de"})])
    assert retriever.update(iter(new), sync=True) == (1, 2, 2, 37)
    fresh = build(new)
    check_equal(fresh, retriever)
    check_equal(fresh, Retriever.open(tmp_path / "r", encoder=retriever.encoder))
    head = retriever.head
    assert retriever.update(new, sync=True) == (0, 0, 0, 40)
    assert retriever.head == head, "nothing was written"
    retriever.update([new[0]._replace(text="gone again")])
    retriever.update([new[0]])
    assert retriever.update(new, sync=True) == (0, 0, 0, 40)
    check_equal(fresh, retriever)  # the same documents, whose order and length BM25 had otherwise
    with pytest.raises(DataError, match="38 of its 40 documents are not in the source"):
        retriever.update(new[:2], sync=True)
    assert retriever.update([], sync=True, delete_most=True) == (0, 0, 40, 0)
    assert len(Retriever.open(tmp_path / "r", encoder=retriever.encoder)) == 0
    assert not (tmp_path / "r" / ".given").exists()


def test_a_change_adds_terms_in_the_order_given(tmp_path: Path) -> None:
    """Sums of a score go by the vocabulary's order, which must not depend on the shards."""
    whole = bm25(corpus(), path=tmp_path / "w")
    sharded = bm25(corpus(), path=tmp_path / "s", shards=5)
    made = [Document(f"x{n}", "", f"zebra{n} yak{9 - n} zebra{n - 1} gold") for n in range(9)]
    for retriever in (whole, sharded):
        retriever.add(made)
    assert sharded.encoder.vocabulary == whole.encoder.vocabulary
    check_equal(whole, sharded)


def test_a_shard_is_a_retriever(tmp_path: Path) -> None:
    sharded = bm25(corpus(), path=tmp_path / "s", shards=3)
    parts = [Retriever.open(path.parent) for path in sorted((tmp_path / "s/shards").rglob(HEAD))]
    assert len(parts) == 3
    found = {
        (hit.doc_id, hit.score) for part in parts for hit in part.search("gold river", k=40)
    }  # with the statistics of all documents
    assert found == {(hit.doc_id, hit.score) for hit in sharded.search("gold river", k=40)}
    for number, part in enumerate(parts):
        ids = [each.id for each in part]
        assert ids
        assert owners_of(ids, 3).tolist() == [number] * len(ids)
    assert verify_retriever(tmp_path / "s") > 20


def test_by_size_saved_and_copied(tmp_path: Path) -> None:
    whole = words(corpus(), path=tmp_path / "w")
    sharded = words(corpus(), path=tmp_path / "s", shard_size=12)
    assert len(sharded.head.shards["heads"]) == 4  # type: ignore[index]
    sharded.save(tmp_path / "copy")
    shutil.rmtree(tmp_path / "s")
    check_equal(whole, Retriever.open(tmp_path / "copy", allow=ALLOW))


def test_an_approximate_index_in_shards() -> None:
    """An IVF that looks into all its lists is exact; one that does not keeps most of the best."""
    drawn = np.random.default_rng(3)
    vectors = drawn.standard_normal((600, 16)).astype(np.float32)
    names = [Document(f"v{n}", "", f"v{n}") for n in range(600)]
    asked = drawn.standard_normal((30, 16)).astype(np.float32)
    exact = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :10]
    encoder = FunctionEncoder(lambda texts: np.zeros((len(texts), 16), np.float32), name="none")
    sharded = Retriever.build(
        encoder, names, vectors=vectors, index=FaissIndex("IVF8,Flat"), shards=3
    )
    for nprobe, least in ((8, 1.0), (4, 0.75)):
        rows = sharded.index.search(asked, 10, params={"nprobe": nprobe}).rows
        hit = [
            len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), exact.tolist(), strict=True)
        ]
        assert np.mean(hit) >= least


# Kills.


@pytest.mark.thorough
def test_a_kill_at_any_step_leaves_the_state_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = tmp_path / "s", bm25(corpus(), path=tmp_path / "w")
    sharded = bm25(corpus(), path=folder, shards=3)
    before = answers(whole)
    snapshots = []
    write = opening.write_head

    def noted(path: Path, head: Any) -> None:
        snapshots.append(tmp_path / f"{len(snapshots)}")
        shutil.copytree(folder, snapshots[-1])
        write(path, head)

    monkeypatch.setattr(opening, "write_head", noted)
    made = [*corpus()[3:9], *(Document(f"m{n}", "", f"gold new{n}") for n in range(6))]
    sharded.update(made)
    monkeypatch.undo()
    assert len(snapshots) == 4
    whole.update(made)
    for snapshot in snapshots:  # the head of the whole is not written in any
        opened = Retriever.open(snapshot)
        assert answers(opened) == before
        opened.update(made)
        check_equal(whole, opened)
        assert verify_retriever(snapshot)


def test_a_killed_reshard_leaves_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sharded = words(corpus()), words(corpus(), path=tmp_path / "s", shards=2)

    def killed(*_: Any) -> None:
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "_link_encoder", killed)
    with pytest.raises(KeyboardInterrupt):
        sharded.reshard(5)
    monkeypatch.undo()
    check_equal(whole, sharded)
    opened = Retriever.open(tmp_path / "killed", allow=ALLOW)
    check_equal(whole, opened)
    opened.reshard(5)
    check_equal(whole, opened)
    assert [each.name for each in (tmp_path / "killed/shards").iterdir()] == ["s000002"]


class Reader(WordEncoder):
    """Notes the documents that it reads."""

    def __init__(self, sparse: bool) -> None:
        super().__init__(6)
        self.sparse, self.read = sparse, list[str]()

    def encode_queries(self, texts: Sequence[str]) -> Any:
        counts = WordEncoder.encode_documents(self, texts)
        return csr_array(counts) if self.sparse else counts

    def encode_documents(self, texts: Sequence[str]) -> Any:
        self.read.extend(texts)
        return self.encode_queries(texts)


@pytest.mark.parametrize("sparse", [False, True])
def test_reshard_moves_vectors_that_were_given(sparse: bool, tmp_path: Path) -> None:
    """They are not what the encoder would make of the texts, which it is not asked to read."""
    docs = corpus()
    drawn = np.random.default_rng(5).random((len(docs), 6)).astype(np.float32)
    given: Any = csr_array(drawn * (drawn > 0.5)) if sparse else drawn
    encoder = Reader(sparse)

    def built(name: str, shards: int | None) -> Retriever:
        made = Retriever.build(
            encoder, docs, vectors=given, shards=shards, path=tmp_path / name,
            index=InvertedIndex() if sparse else FlatIndex(),
        )  # fmt: skip
        made.delete([docs[3].id, docs[17].id])
        made.add([Document("new", "", "gold")])
        return made

    whole, sharded = built("w", None), built("s", 2)
    encoder.read.clear()
    sharded.reshard(3)
    assert encoder.read == []
    whole.compact()
    assert answers(sharded) == answers(whole)
    assert answers(sharded, 3) == answers(whole, 3)
    whole.reshard(4)
    assert answers(sharded) == answers(whole)


def test_a_first_build_that_was_killed_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "write_head", killed)
    with pytest.raises(KeyboardInterrupt):
        bm25(corpus(), path=tmp_path / "s", shards=2)
    monkeypatch.undo()
    whole = bm25(corpus())
    for folder in ("killed", "s"):
        check_equal(whole, bm25(corpus(), path=tmp_path / folder, shards=3))


def test_rebuilding_whole_and_in_shards(tmp_path: Path) -> None:
    for shards in (2, None, 3):
        bm25(corpus(9), path=tmp_path / "r", shards=shards)
        assert len(Retriever.open(tmp_path / "r").search("gold river", 9)) > 1
        assert (tmp_path / "r/documents").exists() == (shards is None)
        assert len(list((tmp_path / "r").glob("shards/*/shard-*"))) == (shards or 0)


# A shard that is missing, late, or another's.


@pytest.fixture(name="folder")
def built(tmp_path: Path) -> Path:
    bm25(corpus(), path=tmp_path / "s", shards=3)
    return tmp_path / "s"


def shard(folder: Path, number: int) -> Path:
    return folder / f"shards/s000001/shard-{number}"


def without(folder: Path, number: int) -> dict[str, Any]:
    """Return what is found of the other shards' documents."""
    ids = [each.id for each in corpus()]
    own = {
        name for name, owner in zip(ids, owners_of(ids, 3).tolist(), strict=True) if owner == number
    }
    return {
        query: [hit for hit in hits if hit[0] not in own]
        for query, hits in answers(bm25(corpus())).items()
    }


def test_a_missing_shard_is_an_error_or_named(folder: Path) -> None:
    shutil.rmtree(shard(folder, 1))
    retriever = Retriever.open(folder)
    with pytest.raises(SluiceError, match=r"^shard-1: .*; put the shard back"):
        retriever.run(QUERIES)
    allowed = Retriever.open(folder, params={"partial": "allow"})
    run = allowed.run(QUERIES)
    assert run.partial == ("shard-1",)
    assert {query: list(hits) for query, hits in run.items()} == without(folder, 1)
    assert (allowed % 5).run(QUERIES).partial == ("shard-1",)
    with partial_results() as absent:
        hits = allowed.search("gold river", 5)
    assert list(absent) == ["shard-1"]
    assert [hit.text for hit in hits]
    for changed in (retriever, allowed):
        with pytest.raises(IndexFormatError, match="shard-1: the shard is missing; put it back"):
            changed.add([Document("n", "", "gold")])
    with pytest.raises(IndexFormatError, match="shard-1: the shard is missing; put it back"):
        verify_retriever(folder)
    with pytest.raises(IndexFormatError, match=r"shard-1 cannot be read .*; put the shard back"):
        list(allowed)
    for counted in (run, run.top(3)):
        with pytest.raises(DataError, match="searched without shard-1"):
            evaluate(counted, {"q": {"d01": 1}})
    for number, name in enumerate(owners_of(["d01", "d02", "d03", "d04", "nobody"], 3).tolist()):
        named = ["d01", "d02", "d03", "d04", "nobody"][number]
        if name == 1:
            with pytest.raises(IndexFormatError, match=f"'{named}': shard-1, where it would be"):
                allowed[named]
        elif named == "nobody":
            with pytest.raises(UnknownDocumentError, match="no document 'nobody'"):
                allowed[named]
        else:
            assert allowed[named].id == named


def test_a_shard_whose_documents_are_gone(folder: Path) -> None:
    shutil.rmtree(shard(folder, 1) / "documents")
    with pytest.raises(SluiceError, match=r"^shard-1: .*documents.*; put the shard back"):
        Retriever.open(folder).run(QUERIES)
    run = Retriever.open(folder, params={"partial": "allow"}).run(QUERIES)
    assert run.partial == ("shard-1",)
    assert {query: list(hits) for query, hits in run.items()} == without(folder, 1)


def test_a_replica_stands_in_for_a_whole_folder(folder: Path) -> None:
    Retriever.open(folder).delete(["d03", "d04"])
    whole = bm25(corpus())
    whole.delete(["d03", "d04"])
    (folder / "replicas").mkdir()
    for number in (0, 1, 2):
        shutil.move(shard(folder, number), folder / f"replicas/shard-{number}")
    retriever = Retriever.open(folder)
    assert answers(retriever) == answers(whole)
    assert retriever.run(QUERIES).partial == ()
    assert [each.id for each in retriever] == [each.id for each in whole]
    explained = [
        each.explain("gold river", "d11")._replace(plan=None) for each in (whole, retriever)
    ]
    assert explained[0] == explained[1]
    with pytest.raises(IndexFormatError, match="the shard is missing"):
        retriever.add([Document("n", "", "gold")])


def test_nothing_is_partial_without_cause(folder: Path) -> None:
    retriever = Retriever.open(folder, params={"partial": "allow", "deadline_ms": 60_000})
    run = retriever.run(QUERIES)
    assert run.partial == ()
    assert {query: list(hits) for query, hits in run.items()} == answers(bm25(corpus()))


class Slow:
    """An index that answers when it is told to."""

    def __init__(self, index: Any) -> None:
        self._index, self.told = index, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def __len__(self) -> int:
        return len(self._index)

    def search(self, *args: Any, **options: Any) -> Any:
        self.told.wait(20)
        return self._index.search(*args, **options)


@pytest.fixture(name="slow")
def slowed(folder: Path) -> Iterator[tuple[Retriever, Slow]]:
    shutil.copytree(shard(folder, 2), folder / "replicas/shard-2")
    retriever = Retriever.open(folder)
    index: Any = retriever.index
    index._parts[2] = late = Slow(index._parts[2])
    yield retriever, late
    late.told.set()


def test_a_late_shard_is_an_error_or_named(folder: Path, slow: tuple[Retriever, Slow]) -> None:
    retriever, _ = slow
    with pytest.raises(SluiceError, match=r"^shard-2: no answer within \d+ ms; .*deadline_ms"):
        retriever.run(QUERIES, params={"deadline_ms": 600})
    run = retriever.run(QUERIES, params={"deadline_ms": 600, "partial": "allow"})
    assert run.partial == ("shard-2",)
    assert {query: list(hits) for query, hits in run.items()} == without(folder, 2)


def test_a_replica_answers_for_a_late_or_a_missing_shard(
    folder: Path, slow: tuple[Retriever, Slow]
) -> None:
    expected = answers(bm25(corpus()))
    retriever, late = slow
    for deadline in (None, 60_000):
        found = retriever.run(QUERIES, params={"hedge_ms": 5, "deadline_ms": deadline})
        assert {query: list(hits) for query, hits in found.items()} == expected
    assert not late.told.is_set()
    index: Any = retriever.index
    index._parts[2] = None
    index.absent["shard-2"] = "its disk is gone"
    for params in ({}, {"deadline_ms": 60_000}):
        assert answers(retriever, params=params) == expected


def test_a_replica_of_another_state_is_not_asked(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(shard(folder, 0), folder / "replicas/shard-0")
    Retriever.open(folder).update([each._replace(title="new") for each in corpus()])
    retriever = Retriever.open(folder, params={"hedge_ms": 5})
    retriever.run(QUERIES)
    assert "of another state than the shard; copy it again" in caplog.text
    assert "no shard has a replica" in caplog.text


def test_a_wrong_question_is_not_a_missing_shard(folder: Path) -> None:
    retriever = Retriever.open(folder, params={"partial": "allow"})
    with pytest.raises(DataError):
        retriever.index.search(np.zeros((1, 3)), 3)
    for params, message in (
        ({"partial": "maybe"}, "expected error, or allow"),
        ({"deadline_ms": 0}, "a number above 0"),
        ({"hedge_ms": "5"}, "a number above 0"),
        ({"nprobe": 3}, "unknown search parameter 'nprobe'"),
    ):
        with pytest.raises(ConfigError, match=message):
            retriever.run(QUERIES, params=params)


def test_shards_that_do_not_belong_together(folder: Path, tmp_path: Path) -> None:
    one, two = shard(folder, 0), shard(folder, 1)
    one.rename(tmp_path / "x")
    two.rename(one)
    (tmp_path / "x").rename(two)  # swapped: other counts of rows, or other ids
    with pytest.raises(IndexFormatError):
        verify_retriever(folder)
    words(corpus(), path=tmp_path / "v", shards=3)
    words(corpus(), path=tmp_path / "o", shards=3)
    head = json.loads((tmp_path / "v" / HEAD).read_text())
    head["shards"]["heads"]["shard-1"]["encoder_fingerprint"] = "0" * 32
    (tmp_path / "v" / HEAD).write_text(json.dumps(head))
    with pytest.raises(SluiceError, match="all shards are of one encoder"):
        Retriever.open(tmp_path / "v", allow=ALLOW).run(QUERIES)


@pytest.mark.parametrize("fault", ["set", "name", "none", "nested", "folder"])
def test_a_damaged_manifest(folder: Path, fault: str) -> None:
    head = json.loads((folder / HEAD).read_text())
    heads = head["shards"]["heads"]
    if fault == "set":
        head["shards"]["set"] = "../../elsewhere"
    elif fault == "name":
        heads["../shard-1"] = heads.pop("shard-1")
    elif fault == "none":
        head["shards"]["heads"] = {}
    elif fault == "nested":
        heads["shard-0"]["shards"] = json.loads(json.dumps(head["shards"]))
    else:
        heads["shard-2"]["encoder"] = "/etc"
    (folder / HEAD).write_text(json.dumps(head))
    with pytest.raises(IndexFormatError, match="not as Sluice writes it"):
        Retriever.open(folder)


def test_a_row_in_two_shards(folder: Path) -> None:
    rows = next((folder / "index").glob("g*/rows-1.npy"))
    kept = np.load(rows)
    kept[0] = np.load(rows.with_name("rows-0.npy"))[0]
    np.save(rows, np.sort(kept))
    with pytest.raises(IndexFormatError):
        Retriever.open(folder).run(QUERIES)


def test_what_cannot_be_parted(tmp_path: Path) -> None:
    assert [shard_count(10, None, size) for size in (1, 3, 10, 99)] == [10, 4, 1, 1]
    for options, message in (
        ({"shards": 41}, "41, for 40 documents"),
        ({"shards": 0}, "shards"),
        ({"shards": 2, "shard_size": 3}, "expected their number, or shard_size"),
        ({"shard_size": 0}, "shard_size"),
    ):
        with pytest.raises(ConfigError, match=message):
            bm25(corpus(), path=tmp_path / "r", **options)
        assert not (tmp_path / "r" / HEAD).exists()
    encoder = FunctionEncoder(lambda texts: np.zeros((len(texts), 4), np.float32), name="none")
    for index in (AutoIndex(), GraphIndex()):
        with pytest.raises(ConfigError, match=r"^shards: .*(take|name the type)"):
            Retriever.build(encoder, corpus(), index=index, shards=2)
    with pytest.raises(DataError, match="'d01'"):
        bm25([*corpus(), corpus()[1]], path=tmp_path / "r", shards=2)


def test_one_document_and_none(tmp_path: Path) -> None:
    retriever = bm25(corpus(1), path=tmp_path / "r", shards=1)
    assert [hit.doc_id for hit in retriever.search("gold", 10)] == ["d00"]
    retriever.delete(["d00"])
    assert retriever.search("gold") == []
    retriever.add(corpus(2))
    assert retriever.search("gold", 1)[0].doc_id == "d00"
    assert isinstance(retriever.index, ShardedIndex)


def test_a_reader_beside_a_writer(folder: Path) -> None:
    """One that has opened nothing yet takes the newest state; one that has, keeps its own."""
    lazy, opened, writer = (Retriever.open(folder) for _ in range(3))
    before = answers(opened)
    for turn in range(3):  # of the first state no file is left
        writer.update([Document(each.id, "", f"gold {turn}") for each in corpus()[:20]])
    assert answers(opened) == before
    assert answers(lazy) == answers(writer) != before
    with pytest.raises(IndexFormatError, match="changed by another process"):
        opened.delete(["d01"])


@pytest.mark.thorough
def test_searches_while_the_documents_change(folder: Path) -> None:
    """Each search sees one state of all shards: the same turn in every document."""
    retriever = Retriever.open(folder)
    made = corpus()[:12]
    retriever.update([Document(each.id, "", "unheard turn0") for each in made])
    seen, done = [], threading.Event()

    def search() -> None:
        while not done.is_set():
            seen.append({hit.text for hit in retriever.search("unheard", 40)})

    threads = [threading.Thread(target=search) for _ in range(2)]
    for each in threads:
        each.start()
    for turn in range(1, 4):
        retriever.update([Document(each.id, "", f"unheard turn{turn}") for each in made])
    done.set()
    for each in threads:
        each.join()
    assert all(len(texts) == 1 for texts in seen)
    assert {"unheard turn3"} == {hit.text for hit in retriever.search("unheard", 40)}


def test_passages_in_shards_have_no_single_vectors(tmp_path: Path) -> None:
    for shards in (None, 3):
        sparse = bm25_passages(corpus(), shards=shards, path=tmp_path / f"sparse-{shards}")
        with pytest.raises(ConfigError, match="documents are indexed in passages"):
            export_retriever(sparse, tmp_path / "out", "vectors")
        dense = word_passages(corpus(), shards=shards, path=tmp_path / f"dense-{shards}")
        with pytest.raises(ConfigError, match="indexes passages, of which a document has several"):
            check_single_vectors(dense.state, "mmr")
        with pytest.raises(ConfigError, match="has no single vector to normalise"):
            log_normalisers(dense.index, np.ones((2, 3), np.float32), 1.0)


def test_a_hedge_without_replicas_is_warned_of_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retriever = Retriever.open(folder, params={"hedge_ms": 5})
    for _ in range(3):
        assert retriever.run(QUERIES)["a"]
    assert caplog.text.count("hedge_ms: no shard has a replica") == 1


def test_what_each_shard_noted_of_its_gather(tmp_path: Path) -> None:
    encoder = FunctionEncoder(token_vectors, name="words")
    index = TokenIndex("float32", mode="gather")
    sharded = Retriever.build(encoder, corpus(), index=index, path=tmp_path / "s", shards=2)
    found = gather_recalls(sharded, QUERIES)
    assert [each.stage for each in found] == ["s/shard-0", "s/shard-1"]
    for each, part in zip(found, sharded.index.parts, strict=True):  # type: ignore[attr-defined]
        assert each.recall["10"] == part.recall_note.at_10
