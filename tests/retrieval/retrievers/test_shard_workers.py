"""Shards searched by other processes: the hits of this one, and honest where a worker is gone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from small_world import WordEncoder, documents
from token_functions import token_vectors
from workers_here import WorkersHere

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import FlatIndex, InvertedIndex, TokenIndex
from sluice.indexing.wrappers.remote import RemoteIndex
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.shards.workers import ShardProcesses, crew, processes
from sluice.retrieval.retrievers.shards.workers.crew import (
    STATES,
    Message,
    pack,
    query_arrays,
    read_queries,
    unpack,
)

QUERIES = {"a": "gold river", "b": "word7 the number", "c": "stone", "d": "unheard of"}
PATIENCE = 300.0  # seconds for what a busy machine does late


def corpus(count: int = 40) -> list[Document]:
    """Documents with ties: every third has the text of the one before."""
    made = documents(count)
    return [
        Document(each.id, "", made[n - 1].text if n % 3 == 2 else each.text, {"number": n})
        for n, each in enumerate(made)
    ]


def built(path: Path, kind: str, shards: int = 3) -> Path:
    options: dict[str, Any] = {"path": path, "shards": shards}
    if kind == "bm25":
        Retriever.build(BM25Encoder(), corpus(), index=InvertedIndex(), **options)
    elif kind == "passages":
        cut = Passages(length=4, overlap=1)
        Retriever.build(BM25Encoder(), corpus(), passages=cut, **options)
    elif kind == "words":
        Retriever.build(WordEncoder(), corpus(), index=FlatIndex("cosine"), **options)
    else:
        encoder = FunctionEncoder(token_vectors, name="words")
        Retriever.build(encoder, corpus(), index=TokenIndex("float32"), **options)
    return path


def opened(path: Path, kind: str = "bm25", **options: Any) -> Retriever:
    if kind == "tokens":
        options["encoder"] = FunctionEncoder(token_vectors, name="words")
    return Retriever.open(path, allow=["small_world:WordEncoder"], **options)


def answers(retriever: Retriever, **options: Any) -> dict[str, Any]:
    return {query: list(hits) for query, hits in retriever.run(QUERIES, **options).items()}


def check_equal(here: Retriever, there: Retriever) -> None:
    assert isinstance(there.index.first, RemoteIndex)  # type: ignore[attr-defined]
    for k in (1, 4, 1000):
        assert answers(there, k=k) == answers(here, k=k)
    for where in ({"number": {"gte": 12}}, {"id": ["d01", "d02"]}, {"number": -1}):
        assert answers(there, k=3, where=where) == answers(here, k=3, where=where)
    assert there.search("gold river", 5) == here.search("gold river", 5)
    first = here.search("gold river", 1)[0].doc_id
    assert there.matches_of("gold river", first) == here.matches_of("gold river", first)


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.fixture(scope="module")
def workers() -> Iterator[ShardProcesses]:
    """Two processes: one for the shards 0 and 2, one for 1."""
    with ShardProcesses(workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("bm25") / "r", "bm25")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["bm25", "passages", "words", "tokens"])
def test_workers_find_what_this_process_finds(
    kind: str, tmp_path: Path, workers: ShardProcesses
) -> None:
    path = built(tmp_path / "r", kind)
    here, there = opened(path, kind), opened(path, kind)
    there.use_workers(workers)
    check_equal(here, there)
    if kind == "bm25":
        assert there.explain("gold river", "d01") == here.explain("gold river", "d01")
        vector = np.arange(3, dtype=np.float32)[None]
        with pytest.raises(DataError, match="sparse"):  # the worker's own words
            there.index.search(vector, 3)
        with pytest.raises(ConfigError, match="alpha"):
            there.run(QUERIES, params={"alpha": -1})
    there.delete(["d03", "d07"])
    there.update([Document("d01", "", "gold gold unheard"), Document("new", "", "unheard stone")])
    here = opened(path, kind)
    check_equal(here, there)
    there.compact()
    check_equal(opened(path, kind), there)
    there.use_workers(None)
    assert not isinstance(there.index.first, RemoteIndex)  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_a_worker_that_is_gone_is_named_and_replaced(
    folder: Path, workers: ShardProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = opened(folder)
    retriever.use_workers(workers)
    expected = answers(opened(folder), k=5)
    assert answers(retriever, k=5) == expected
    process = workers.process_ids[1, 0]
    monkeypatch.setattr(processes, "HUNG", 2 * PATIENCE)  # it is not replaced yet
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(SluiceError, match=r"shard-.*: no answer within"):
        retriever.run(QUERIES, k=5, params={"deadline_ms": 50})

    def late_alone() -> bool:  # the others may be late too, on a busy machine
        run = retriever.run(QUERIES, k=5, params={"partial": "allow", "deadline_ms": 200})
        assert "shard-1" in run.partial
        return run.partial == ("shard-1",) and any(map(len, run.values()))

    until(late_alone)
    monkeypatch.setattr(processes, "PING", 0.1)
    monkeypatch.setattr(processes, "HUNG", 2.0)
    with pytest.raises(SluiceError, match=r"shard-.*: its worker ended \(killed\)"):
        retriever.run(QUERIES, k=5)  # it gave no sign, and was replaced
    monkeypatch.undo()
    until(lambda: not retriever.run(QUERIES, k=5, params={"partial": "allow"}).partial)
    assert answers(retriever, k=5) == expected
    assert workers.process_ids[1, 0] != process


@pytest.mark.thorough
def test_another_worker_answers_for_one_that_is_late_or_gone(folder: Path) -> None:
    expected = answers(opened(folder), k=5)
    with ShardProcesses(workers=1, replicas=2, hedge_ms=20) as workers:
        retriever = opened(folder)
        retriever.use_workers(workers)
        assert answers(retriever, k=5) == expected
        first, second = (workers.process_ids[0, replica] for replica in (0, 1))
        os.kill(first, signal.SIGSTOP)
        assert answers(retriever, k=5) == expected
        os.kill(first, signal.SIGKILL)
        for hedge in (20, None):
            assert answers(retriever, k=5, params={"hedge_ms": hedge}) == expected
    for process in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.thorough
def test_workers_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Retriever.build("bm25", corpus(6), path=tmp_path / "w")
    with ShardProcesses() as workers:
        with pytest.raises(ConfigError, match=r"not in shards.*sluice reshard"):
            whole.use_workers(workers)
        assert not workers.process_ids
    monkeypatch.setattr(processes.process_module, "__name__", "no_such_module")
    with ShardProcesses(workers=1) as workers, pytest.raises(SluiceError, match="exit code 1"):
        workers.wait_for(0, 0)
    for options, message in (
        ({"replicas": 0}, "replicas is 0"),
        ({"hedge_ms": 5}, "hedge_ms: each shard has one worker"),
        ({"partial": "maybe"}, "partial: 'maybe'"),
        ({"deadline_ms": -1}, "deadline_ms: -1"),
        ({"workers": 0}, "workers is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShardProcesses(**options)  # type: ignore[arg-type]


def test_texts_and_matrices_stay_where_they_are(folder: Path) -> None:
    retriever, workers = opened(folder), WorkersHere()
    retriever.use_workers(workers)
    for _ in range(3):
        retriever.search("gold river", 3)
    assert len(workers.sent) == 3 * 4  # each shard was opened and asked three times
    assert max(workers.sent) < 1_000
    assert max(workers.answered) < 500


@pytest.mark.thorough
def test_states_of_a_shard_are_forgotten(tmp_path: Path) -> None:
    path, workers = built(tmp_path / "r", "bm25"), WorkersHere()
    retriever = opened(path)
    retriever.use_workers(workers)
    for turn in range(STATES + 2):
        retriever.add([Document(f"n{turn}", "", "gold")])
        assert f"n{turn}" in {hit.doc_id for hit in retriever.search("gold", 50)}
    states = workers.searcher._states.values()
    assert len(states) == 3
    assert max(map(len, states)) == STATES
    retriever.reshard(2)
    assert retriever.search("gold", 50)
    assert len(states) == 2  # files of folders that are gone are not kept


def test_a_folder_that_takes_the_place_of_another_is_opened(tmp_path: Path) -> None:
    """Its generations have the names of the former one's."""
    workers, found = WorkersHere(), []
    for texts in (corpus(), [*reversed(corpus())]):
        docs = [Document(f"d{n:02}", "", each.text) for n, each in enumerate(texts)]
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        Retriever.build(WordEncoder(), docs, index=FlatIndex(), shards=2, path=tmp_path / "r")
        retriever = opened(tmp_path / "r")
        retriever.use_workers(workers)
        found.append(answers(retriever, k=5))
        assert found[-1] == answers(opened(tmp_path / "r"), k=5)
    assert found[0] != found[1]


def test_a_worker_that_is_lost_while_it_opens_a_shard_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "PAUSE", 0.0)
    workers = WorkersHere()
    workers.gone, waits = {1}, []

    def wait_for(shard: int, replica: int) -> None:
        waits.append(shard)
        if waits.count(1) == 2:
            workers.gone = set()

    monkeypatch.setattr(workers, "wait_for", wait_for)
    retriever = opened(folder)
    retriever.use_workers(workers)
    assert answers(retriever, k=5) == answers(opened(folder), k=5)
    assert waits == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "queries",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        sparse.csr_array(np.eye(3, dtype=np.float32)),
        TokenVectors.of([np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32)], 3),
    ],
)
def test_vectors_arrive_as_they_were_sent(queries: Any) -> None:
    form, arrays = query_arrays(queries)
    message = unpack(pack({"k": np.int64(3), **form}, [*arrays, np.packbits([True])]))
    assert message.values["k"] == 3
    read, others = read_queries(message)
    assert type(read) is type(queries)
    assert read.shape == queries.shape
    for one, other in zip(query_arrays(read)[1], arrays, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
        assert one.flags.writeable
        assert one.flags.aligned
    assert others[0].tolist() == [128]


@pytest.mark.thorough
def test_bytes_that_are_no_message_are_refused() -> None:
    sound = pack({"a": 1}, [np.ones(3, np.float32)])
    for wrong in (b"", sound[:9], sound[:-1], b"\xff" * 40, sound.replace(b"<f4", b"|O8")):
        with pytest.raises(DataError, match="a message between shards and their workers"):
            unpack(wrong)
    assert unpack(sound) == Message({"a": 1}, [pytest.approx(np.ones(3))])


def test_each_module_of_workers_may_be_imported_first() -> None:
    for name in ("crew",):
        code = f"import sluice.retrieval.retrievers.shards.workers.{name}"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
