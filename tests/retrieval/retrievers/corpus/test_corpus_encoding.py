"""Encoding a corpus: each text once, again nothing, the same bits after a kill, several workers."""

import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_encoder import BatchEncoder, DyingEncoder, SparseEncoder, many, vectors_of
from places import SUPPORT
from small_world import documents

from sluice.encoders import DenseEncoder, SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.probes import DOCUMENTS
from sluice.encoders.vectors.cache import cached_keys
from sluice.encoders.vectors.pool import EncodingPool
from sluice.indexing import AutoIndex, FaissIndex, FlatIndex, FunnelIndex, Index, InvertedIndex
from sluice.indexing.storage.rows import DenseRows
from sluice.retrieval import Document, Encoding, Retriever
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import (
    CorpusEncoder,
    EncodedCorpus,
    sampled_rows,
)


def stored(path: Path) -> np.ndarray:
    """The vectors of a flat retriever's index, in row order."""
    opened = Retriever.open(path, encoder=BatchEncoder()).index
    assert isinstance(opened, FlatIndex)
    return opened.documents(np.arange(opened.rows))


def test_again_nothing_is_encoded_and_the_vectors_are_the_same_bits(tmp_path: Path) -> None:
    docs, encoding = many(100), Encoding(shard=16, cache=tmp_path / "cache")
    first, second = BatchEncoder(), BatchEncoder()
    Retriever.build(first, docs, path=tmp_path / "a", encoding=encoding)
    texts = [text for call in first.calls for text in call]
    assert len(texts) == len(set(texts)) == len({each.text for each in docs}) < 100
    assert [len(call) for call in first.calls[:-1]] == [16] * (len(first.calls) - 1)
    Retriever.build(second, docs[::-1], path=tmp_path / "b", encoding=encoding)
    assert second.encoded == 0
    np.testing.assert_array_equal(stored(tmp_path / "a"), stored(tmp_path / "b")[::-1])
    Retriever.build(second, [*docs, Document("new", "", "new")], encoding=encoding)
    assert second.calls == [["new"]]


def test_other_encoders_make_room_and_the_vectors_just_made_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_BYTES", "1")
    encoding = Encoding(cache=tmp_path / "cache")
    for name in "ab":
        encoder = BatchEncoder(name=name)
        Retriever.build(encoder, many(20), encoding=encoding)
        assert [key.fingerprint for key in cached_keys(tmp_path / "cache")] == [encoder.fingerprint]


def test_without_a_cache_nothing_is_left_behind(tmp_path: Path) -> None:
    encoder = BatchEncoder()
    for _ in range(2):
        Retriever.build(encoder, many(30), path=tmp_path / "a", encoding=Encoding(shard=8))
    assert encoder.encoded == 2 * len({each.text for each in many(30)})
    names = {each.name for each in (tmp_path / "a").iterdir()}
    assert names == {".lock", "documents", "encoder", "index", "retriever.json"}


class Failing(BatchEncoder):
    """Fails at its third call."""

    def encode_documents(self, texts: Any) -> np.ndarray:
        if len(self.calls) == 3:
            raise RuntimeError("out of something")
        return super().encode_documents(texts)


def test_a_build_that_failed_goes_on_behind_its_last_shard(tmp_path: Path) -> None:
    path, encoding = tmp_path / "a", Encoding(shard=8)
    Retriever.build(BatchEncoder(), many(50), path=tmp_path / "whole", encoding=encoding)
    failing = Failing()
    with pytest.raises(RuntimeError):
        Retriever.build(failing, many(50), path=path, encoding=encoding)
    assert (path / ".encoding").is_dir()
    failing.calls = []
    Failing.encode_documents, kept = BatchEncoder.encode_documents, Failing.encode_documents
    try:
        Retriever.build(failing, many(50), path=path, encoding=encoding)
    finally:
        Failing.encode_documents = kept
    assert failing.encoded == len({each.text for each in many(50)}) - 24
    assert not (path / ".encoding").exists()
    np.testing.assert_array_equal(stored(path), stored(tmp_path / "whole"))


@pytest.mark.thorough
@pytest.mark.parametrize("cached", [True, False])
def test_killed_at_random_moments_the_rerun_has_the_same_bits(cached: bool, tmp_path: Path) -> None:
    """Each vector tells its place in its call: another shard plan would show."""
    whole, texts = tmp_path / "whole", len({each.text for each in many(600)})
    Retriever.build(BatchEncoder(), many(600), path=whole, encoding=Encoding(shard=16))
    path, cache = tmp_path / "killed", tmp_path / "cache"
    chance = random.Random(int(cached))
    for _ in range(3):
        with loop(path, cache if cached else path / ".encoding", 0.05) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
    with loop(path, cache if cached else path / ".encoding", 0.0) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert int(out.rpartition("encoded ")[2]) <= texts - 3 * 16
    np.testing.assert_array_equal(stored(path), stored(whole))


def loop(path: Path, cache: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, str(SUPPORT / "encode_loop.py"), str(path), str(cache), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


@pytest.mark.thorough
def test_two_processes_fill_one_cache_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    both = [loop(tmp_path / name, cache, 0.002) for name in "ab"]
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    np.testing.assert_array_equal(stored(tmp_path / "a"), stored(tmp_path / "b"))
    assert len(cached_keys(cache)) == 1
    third = BatchEncoder()
    Retriever.build(third, many(600), encoding=Encoding(shard=16, cache=cache))
    assert third.encoded == 0


def test_a_damaged_shard_is_encoded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoding = Encoding(shard=8, cache=tmp_path / "cache")
    Retriever.build(BatchEncoder(), many(40), path=tmp_path / "a", encoding=encoding)
    shard = sorted((tmp_path / "cache").glob("*/*.vectors"))[0]
    data = bytearray(shard.read_bytes())
    data[-60] ^= 1
    shard.write_bytes(data)
    encoder = BatchEncoder()
    Retriever.build(encoder, many(40), path=tmp_path / "b", encoding=encoding)
    assert 0 < encoder.encoded <= 8
    assert "encoded again" in caplog.text
    np.testing.assert_array_equal(stored(tmp_path / "a"), stored(tmp_path / "b"))


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("kind", [BatchEncoder, SparseEncoder])
def test_no_document_and_one(kind: type[BatchEncoder], count: int, tmp_path: Path) -> None:
    encoding = Encoding(cache=tmp_path / "cache")
    for _ in range(2):
        retriever = Retriever.build(kind(), many(count), encoding=encoding)
        assert len(retriever) == count
        assert len(retriever.search("text number 0")) == count


@pytest.mark.parametrize("store", ["float16", "int8"])
def test_what_is_searched_is_what_is_stored(
    store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    encoding = Encoding(shard=16, store=store, cache=tmp_path / "cache")
    for name in "ab":
        Retriever.build(BatchEncoder(), many(40), path=tmp_path / name, encoding=encoding)
    assert f"stored as {store}: mean cosine" in caplog.text
    cold, warm = stored(tmp_path / "a"), stored(tmp_path / "b")
    np.testing.assert_array_equal(cold, warm)
    wanted = vectors_of([each.text for each in many(40)], 16)[:, :-2]
    error = np.abs(cold[:, :-2] - wanted).max()
    assert 0 < error < {"float16": 2.0**-11, "int8": 1 / 250}[store]


def test_sparse_vectors_of_a_splade_model_are_cached(masked_bert: Path, tmp_path: Path) -> None:
    encoder = SpladeEncoder.from_pretrained(masked_bert, document_top_k=8)
    docs, encoding = documents(), Encoding(shard=16, cache=tmp_path / "cache")
    cold = Retriever.build(encoder, docs, encoding=encoding)
    queries = {str(number): each.text for number, each in enumerate(docs[:5])}
    texts = [each.full_text for each in docs]
    plain = InvertedIndex()
    for start in range(0, len(texts), 16):
        plain.add(encoder.encode_documents(texts[start : start + 16]))
    encode = encoder.encode_documents

    def of_probes(given: Sequence[str]) -> Any:  # which saving the encoder encodes
        assert tuple(given) == DOCUMENTS
        return encode(given)

    encoder.encode_documents = of_probes  # type: ignore[method-assign]
    warm = Retriever.build(encoder, docs, encoding=encoding, index=InvertedIndex())
    assert cold.run(queries, k=5).to_dict() == warm.run(queries, k=5).to_dict()
    hits = plain.search(encoder.encode_queries(list(queries.values())), 5)
    np.testing.assert_array_equal(
        hits.scores, warm.index.search(encoder.encode_queries(list(queries.values())), 5).scores
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["own", "sparse", "model"])
def test_two_workers_give_what_one_gives(kind: str, bert: Path, texts: list[str]) -> None:
    if kind == "model":
        encoder: Any = DenseEncoder.from_pretrained(bert, document_length=20)
    else:
        encoder = BatchEncoder(24) if kind == "own" else SparseEncoder(24)
    with EncodingPool(encoder, 2) as pool:
        first, again = pool.encode_documents(texts), pool.encode_documents(texts)
        one, none = pool.encode_documents(texts[:1]), pool.encode_documents([])
    assert one.shape[0] == 1
    assert none.shape[0] == 0
    alone = encoder.encode_documents(texts)
    if kind == "sparse":
        first, again, alone = first.toarray(), again.toarray(), alone.toarray()
    np.testing.assert_array_equal(first, again)
    columns = slice(None) if kind == "model" else slice(None, -2)
    np.testing.assert_allclose(first[:, columns], alone[:, columns], atol=1e-6)


@pytest.mark.thorough
def test_a_build_with_workers(tmp_path: Path) -> None:
    for name in "ab":
        encoding = Encoding(shard=16, workers=2)
        Retriever.build(BatchEncoder(), many(50), path=tmp_path / name, encoding=encoding)
    np.testing.assert_array_equal(stored(tmp_path / "a"), stored(tmp_path / "b"))
    wanted = vectors_of([each.text for each in many(50)], 16)
    np.testing.assert_array_equal(stored(tmp_path / "a")[:, :-2], wanted[:, :-2])


@pytest.mark.thorough
def test_a_worker_that_is_killed_is_named_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"killed; most often .* out of memory.*fewer workers"):
        Retriever.build(DyingEncoder(), many(20), path=tmp_path / "a", encoding=Encoding(workers=2))
    assert not (tmp_path / "a" / "retriever.json").exists()


@pytest.mark.thorough
def test_what_fails_in_a_worker_is_said_here() -> None:
    with EncodingPool(BatchEncoder(), 2) as pool, pytest.raises(ModelError, match="AttributeError"):
        pool.encode_documents([1, 2])  # type: ignore[list-item]

    class Local(BatchEncoder):
        pass

    with pytest.raises(ConfigError, match=r"Local; move the class"), EncodingPool(Local(), 2):
        pass


def test_an_encoder_that_saves_another_is_refused() -> None:
    encoder = BatchEncoder()
    encoder.save_pretrained = BatchEncoder(name="b").save_pretrained  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="leaves something out"), EncodingPool(encoder, 1):
        pass


class Learning(BatchEncoder):
    """Is another encoder after its second call."""

    @property
    def fingerprint(self) -> str:
        return super().fingerprint + str(len(self.calls) >= 2)


def test_an_encoder_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    encoding = Encoding(shard=8, cache=tmp_path / "cache")
    with pytest.raises(ModelError, match="changed while it encoded the corpus"):
        Retriever.build(Learning(), many(40), encoding=encoding)
    assert len(list((tmp_path / "cache").glob("*/*.vectors"))) == 1


def test_chunks_samples_and_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.retrieval.retrievers.corpus.vectors.corpus_vectors.CHUNK", 16)
    texts = [each.text for each in many(50)]
    read: list[int] = []

    def inputs_of(rows: np.ndarray) -> list[str]:
        read.append(len(rows))
        return [texts[row] for row in rows]

    encoder = BatchEncoder()
    with CorpusEncoder(encoder, tmp_path, Encoding(shard=10)) as corpus:
        hashes, rows = corpus.plan(iter(texts))
        found = corpus.encode(hashes, rows, inputs_of)
        assert max(read) == 10  # never the whole corpus
        assert isinstance(found, EncodedCorpus)
        assert len(found) == 50
        chunks = list(found)
        assert [len(chunk) for chunk in chunks] == [16, 16, 16, 2]
        again = np.concatenate(list(found))
        np.testing.assert_array_equal(np.concatenate(chunks), again)
        np.testing.assert_array_equal(found.sample(99, 1), again)
        sample = found.sample(7, 3)
        np.testing.assert_array_equal(sample, again[sampled_rows(50, 7, 3)])
        np.testing.assert_array_equal(sample, found.sample(7, 3))


def test_an_index_is_trained_on_a_sample_of_the_whole_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[np.ndarray] = []
    train = FaissIndex.train

    def noted(self: FaissIndex, sample: Any) -> None:
        trained.append(sample)
        train(self, sample)

    monkeypatch.setattr(FaissIndex, "train", noted)
    monkeypatch.setattr("sluice.retrieval.retrievers.corpus.vectors.corpus_vectors.CHUNK", 64)
    for vectors in (None, stream(400)):
        trained.clear()
        Retriever.build(
            BatchEncoder(), many(400, repeated=1_000), index=FaissIndex("IVF4,Flat"),
            vectors=vectors, encoding=Encoding(shard=64),
        )  # fmt: skip
        assert len(trained) == 1
        assert len(trained[0]) >= 4 * 39


@pytest.mark.parametrize("given", [False, True])
def test_an_index_that_chooses_asks_the_queries_it_is_given(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    choose = AutoIndex.choose

    def noted(self: AutoIndex, vectors: Any, queries: Any = None, **options: Any) -> Any:
        asked.append(queries)
        assert options["work"].is_dir()
        return choose(self, vectors, queries, **options)

    monkeypatch.setattr(AutoIndex, "choose", noted)
    queries = {str(n): f"query {n}" for n in range(500)} if given else None
    recipe: Any = AutoIndex()
    retriever = Retriever.build(BatchEncoder(), many(50), index=recipe, queries=queries)
    assert [None if each is None else len(each) for each in asked] == [400 if given else None]
    assert isinstance(retriever.index, FlatIndex)
    assert "auto" in retriever.index.notes


def stream(count: int) -> Iterator[np.ndarray]:
    texts = [each.text for each in many(count, repeated=1_000)]
    for start in range(0, count, 64):
        yield vectors_of(texts[start : start + 64], 16)


def test_a_flat_index_is_filled_from_files(tmp_path: Path) -> None:
    rows, plain = DenseRows(), DenseRows()
    rows.spool(tmp_path / "spool")
    (tmp_path / "out").mkdir()
    for start in range(0, 40, 8):
        vectors = vectors_of([str(n) for n in range(start, start + 8)], 16)
        rows.append(vectors)
        plain.append(vectors)
    facts = rows.write(tmp_path / "out")
    assert not list((tmp_path / "spool").iterdir())
    (tmp_path / "spool").rmdir()
    rows.append(vectors)  # an index that was saved may still be added to
    opened = DenseRows.read(tmp_path / "out", facts)
    np.testing.assert_array_equal(opened.gather(np.arange(40))[0], plain.gather(np.arange(40))[0])


@pytest.mark.parametrize(
    "index",
    [FaissIndex("IVF64,Flat"), FaissIndex("IVF2,PQ7"), FunnelIndex(400)],
)
def test_an_index_that_cannot_hold_the_vectors_is_refused_before_any_encoding(
    index: Index, tmp_path: Path
) -> None:
    encoder = BatchEncoder()
    corpus = [Document(str(n), "", f"text {n}") for n in range(20)]
    with pytest.raises((ConfigError, DataError)):
        Retriever.build(encoder, corpus, index=index, path=tmp_path / "r")
    assert encoder.encoded == 0
