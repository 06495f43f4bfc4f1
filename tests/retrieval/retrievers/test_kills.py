"""kill -9 at random moments: the old artefact or the new one opens, and a rerun finishes.

``scripts/adversary kills`` does the same to whole commands, many times.
"""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import SUPPORT
from small_world import documents
from token_functions import token_vectors

from sluice.encoders import BM25Encoder, FunctionEncoder
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.retrieval import Document, Retriever
from sluice.retrieval.retrievers.folder import discard_leftovers, verify_retriever

pytestmark = pytest.mark.thorough

QUERIES = {"a": "gold river", "b": "word31 number word2", "c": "the sluice"}


def states() -> list[dict[str, list[str]]]:
    """Return what the retriever may answer: after a build, an addition, a deletion, a compact."""
    docs, found = documents(), []
    for size in (20, 30):
        retriever = Retriever.build(BM25Encoder(), docs[:size])
        steps = (
            lambda r: None,
            lambda r: r.add(docs[30:]),
            lambda r: r.delete(["d01", "d35"]),
            lambda r: r.compact(),
        )
        for step in steps:
            step(retriever)
            found.append(answers(retriever))
    return found


def answers(retriever: Retriever) -> dict[str, list[str]]:
    return {query: list(ranking.doc_ids) for query, ranking in retriever.run(QUERIES).items()}


def test_a_killed_writer_leaves_a_whole_retriever(tmp_path: Path) -> None:
    allowed = states()
    chance = random.Random(5)
    for _ in range(4):
        command = [sys.executable, str(SUPPORT / "rebuild_loop.py"), str(tmp_path / "r")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=SUPPORT, env=_environment(), text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
        opened = Retriever.open(tmp_path / "r")
        assert answers(opened) in allowed
        verify_retriever(tmp_path / "r")
    rebuilt = Retriever.build(BM25Encoder(), documents()[:30], path=tmp_path / "r")
    assert answers(rebuilt) == allowed[4]


def test_a_killed_writer_of_token_vectors_leaves_a_whole_retriever(tmp_path: Path) -> None:
    docs, chance = documents(), random.Random(11)
    encoder = FunctionEncoder(token_vectors, name="words")
    allowed = []
    for size in (20, 30):
        retriever = Retriever.build(encoder, docs[:size])
        allowed.append(answers(retriever))
        retriever.add(docs[30:])
        allowed.append(answers(retriever))
        retriever.update(
            [Document("d02", text="gold river gold"), Document("new", text="word31 the")]
        )
        allowed.append(answers(retriever))
        retriever.delete(["d01", "d35"])
        allowed.append(answers(retriever))
    for _ in range(3):
        command = [sys.executable, str(SUPPORT / "token_loop.py"), str(tmp_path / "r")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=SUPPORT, env=_environment(), text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
        opened = Retriever.open(tmp_path / "r", encoder=encoder)
        assert answers(opened) in allowed
        verify_retriever(tmp_path / "r")
    rebuilt = Retriever.build(encoder, docs[:30], path=tmp_path / "r")
    assert answers(rebuilt) == allowed[4]


def test_a_killed_update_is_whole_or_never_was(tmp_path: Path) -> None:
    docs, path = documents(), tmp_path / "r"
    Retriever.build(BM25Encoder(b=0.0), docs, path=path)
    chance = random.Random(7)
    for _ in range(3):
        command = [sys.executable, str(SUPPORT / "update_loop.py"), str(path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=SUPPORT, env=_environment(), text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.2))
            process.kill()
        opened = Retriever.open(path)
        verify_retriever(path)
        (turn,) = {
            document.metadata.get("turn")
            for document in opened.store
            if "turn" in document.metadata
        } or {None}
        made = [Document(d.id, d.title, f"{d.text} turn{turn}", {"turn": turn}) for d in docs[::2]]
        expected = [*docs[1::2], *made] if turn is not None else docs
        assert sorted(opened.store) == sorted(expected)
        rebuilt = Retriever.build(BM25Encoder(b=0.0), expected)
        assert opened.run(QUERIES)["b"] == rebuilt.run(QUERIES)["b"]
        assert len(opened.search(f"turn{turn}", 50)) == (0 if turn is None else 20)


def _environment() -> dict[str, str]:
    import os

    root = str(SUPPORT.parents[1])
    return {**os.environ, "PYTHONPATH": f"{root}:{SUPPORT}", "NUMBA_NUM_THREADS": "1"}


@pytest.mark.parametrize("part", ["encoder", "index", "documents"])
def test_a_kill_while_an_unfinished_build_is_discarded_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    path, docs = tmp_path / "r", documents()[:30]
    Retriever.build(BM25Encoder(), docs, path=path)
    (path / "retriever.json").unlink()  # killed before the build was complete
    real = shutil.rmtree

    def killed(folder: Path, **options: bool) -> None:
        if Path(folder) == path / part:
            raise KeyboardInterrupt
        real(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Retriever.build(BM25Encoder(), docs, path=path)
    assert answers(Retriever.build(BM25Encoder(), docs, path=path)) in states()


def test_what_a_kill_after_the_last_step_left_is_removed_unless_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "r"
    built = Retriever.build(BM25Encoder(), documents()[:30], path=path)
    before = answers(built)
    left = [path / ".encoding", path / "encoder-01234567"]
    for folder in left:
        folder.mkdir()
    with writer_lock(path):
        discard_leftovers(path)
        assert all(folder.exists() for folder in left)
    discard_leftovers(path)
    assert not any(folder.exists() for folder in left)
    assert answers(Retriever.open(path)) == before
