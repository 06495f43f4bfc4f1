"""The cache of pair scores: exact, shared, bounded, whole after kills, and never a pair twice."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_world import ConstantScorer, LengthScorer, WordEncoder, documents
from tiny_models import save_model

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.retrieval import Rerank, Retriever
from sluice.retrieval.experiments.checks import _AnyScorer
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.tracing import tracing
from sluice.retrieval.stages.rerankers.score_cache import BLOCK, Cached, ScoreCache, cached

PAIRS = [("q1", "a"), ("q1", "b"), ("q2", "a"), ("q2", "c" * 1000)]
SCORES = np.array([0.1, -1e-30, 3.4e38, 7.0], np.float32)


class Counting:
    """Scores by a hash of the pair and remembers what it was asked."""

    fingerprint = "counting"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        self.asked += pairs
        return np.array([len(q) * 0.1 + len(d) * 0.37 for q, d in pairs], np.float32)


def test_scores_come_back_exactly_and_unknown_ones_are_nan(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    assert np.isnan(cache.get("s", PAIRS)).all()
    cache.put("s", PAIRS, SCORES)
    found = cache.get("s", [*PAIRS[::-1], ("q1", "c"), ("q3", "a"), PAIRS[0]])
    assert found.dtype == np.float32
    assert np.array_equal(found[[0, 1, 2, 3, 6]], SCORES[[3, 2, 1, 0, 0]])
    assert np.isnan(found[4:6]).all()
    assert np.isnan(cache.get("other", PAIRS)).all()
    assert len(cache) == 4
    cache.close()
    assert (tmp_path / "scores.sqlite").exists()
    assert np.array_equal(ScoreCache(tmp_path / "scores.sqlite").get("s", PAIRS), SCORES)


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    assert cache.get("s", []).shape == (0,)
    cache.put("s", [], [])
    assert len(cache) == 0
    scorer = Counting()
    assert Cached(scorer, cache).score([]).shape == (0,)
    assert scorer.asked == []


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=12),
    st.lists(st.integers(0, 11), max_size=3),
)
def test_cached_is_the_scorer_and_asks_it_once_for_a_pair(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], cuts: list[int]
) -> None:
    plain, scorer = Counting(), Counting()
    cache = ScoreCache(tmp_path_factory.mktemp("c"))
    made = Cached(scorer, cache)
    for cut in [*cuts, len(pairs), 0]:
        assert np.array_equal(made.score(pairs[:cut]), plain.score(pairs[:cut]))
    assert made.score(pairs).tolist() == plain.score(pairs).tolist()
    assert sorted(scorer.asked) == sorted(set(pairs))
    assert made.misses == len(set(pairs))
    cache.close()


def test_hits_and_misses_are_counted_and_noted(tmp_path: Path) -> None:
    dense = Retriever.build(WordEncoder(), documents(), name="dense")
    scorer = Counting()
    names = {"dense": lambda: dense, "cross": lambda: scorer}
    file = tmp_path / "deep" / "scores.sqlite"
    stage = parse(f"dense >> cached(cross, file={str(file)!r}, depth=5)", names)
    with tracing() as first:
        run = stage.run({"a": "gold river", "b": "stone"})
    with tracing() as second:
        assert stage.run({"a": "gold river", "b": "stone"}) == run
    plain = (dense >> Rerank(Counting(), depth=5)).run({"a": "gold river", "b": "stone"})
    assert run == plain
    facts = [trace[0].inner[1].facts for trace in (first, second)]
    assert [f["cache misses"] for f in facts] == [10, 0]
    assert [f["cache hits"] for f in facts] == [0, 10]
    timed = parse(f"dense >> cached(cross, file={str(file)!r}, deadline_ms=9e9)", names)
    with tracing() as spans:
        timed.run({"a": "gold river"})
    facts = spans[0].inner[1].facts
    assert facts["cache hits"] + facts["cache misses"] == facts["pairs"]["a"] > 16


def test_checking_an_expression_makes_no_file(tmp_path: Path) -> None:
    file = tmp_path / "scores.sqlite"
    stage = parse(f"cached(cross, file={str(file)!r})", {"cross": _AnyScorer})
    assert stage.needs_candidates
    assert not file.exists()
    for wrong in ("", ", file=''", ", file='x', max_bytes=5", ", file='x', size=1"):
        with pytest.raises(ConfigError):
            parse(f"cached(cross{wrong})", {"cross": _AnyScorer})
    nested = parse(f"cached(cached(cross, file='x'), file={str(file)!r})", {"cross": Counting})
    assert isinstance(nested.scorer.scorer, Cached)
    with pytest.raises(ConfigError, match="is a stage"):
        parse("cached(cached(cross, file='x', depth=5), file='y')", {"cross": Counting})


def test_what_cannot_be_cached_is_refused(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)

    class OfLists:
        def score_lists(self, *_: object) -> dict[str, list[float]]:
            return {}

    with pytest.raises(ConfigError, match="scores lists"):
        Cached(OfLists(), cache)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no score\(pairs\)"):
        Cached(object(), cache)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no fingerprint"):
        Cached(ConstantScorer(), cache).score(PAIRS)
    assert Cached(ConstantScorer(), cache, name="v1").score(PAIRS).tolist() == [1.0] * 4
    named = Cached(LengthScorer(), cache, name="v1")  # another class under the same name
    assert named.score(PAIRS).tolist() == [1.0, 1.0, 1.0, 1000.0]


@pytest.mark.parametrize("made", [[1.0, float("nan"), 1.0, 1.0], [1.0, 2.0], [[1.0]] * 4])
def test_scores_that_are_none_are_not_kept(tmp_path: Path, made: list[float]) -> None:
    class Broken:
        fingerprint = "broken"

        def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
            return made

    cache = ScoreCache(tmp_path)
    with pytest.raises(DataError, match="Broken"):
        Cached(Broken(), cache).score(PAIRS)
    with pytest.raises(DataError):
        cache.put("s", PAIRS, made)
    assert len(cache) == 0


def test_another_or_changed_model_finds_nothing(tmp_path: Path) -> None:
    import torch

    from sluice.encoders import CrossEncoder

    folder = save_model(tmp_path / "model", "ForSequenceClassification", num_labels=1)
    cache = ScoreCache(tmp_path)
    pairs = [("the river", "gold in the river"), ("the river", "stone")]
    model = CrossEncoder.from_pretrained(folder)
    made = Cached(model, cache)
    first = made.score(pairs)
    assert made.score(pairs).tolist() == first.tolist()
    assert (made.hits, made.misses) == (2, 2)
    again = Cached(CrossEncoder.from_pretrained(folder), cache)
    assert again.score(pairs).tolist() == first.tolist()
    assert again.misses == 0
    half = Cached(CrossEncoder.from_pretrained(folder, dtype="bfloat16"), cache)
    short = Cached(CrossEncoder.from_pretrained(folder, max_length=6), cache)
    half.score(pairs), short.score(pairs)
    assert half.misses == short.misses == 2
    with torch.no_grad():
        model.model.classifier.bias.add_(1.0)
    assert np.allclose(made.score(pairs), first + 1.0)
    assert made.misses == 4


def test_the_first_of_two_scores_stays(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path)
    cache.put("s", PAIRS, SCORES)
    cache.put("s", PAIRS[:1], [9.0])
    assert np.array_equal(cache.get("s", PAIRS), SCORES)


def test_the_file_stays_within_its_bound_and_what_is_used_stays(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path, max_bytes=200_000)
    kept = [("kept", f"document {n}") for n in range(100)]
    cache.put("s", kept, np.arange(100))
    for number in range(60):
        pairs = [(f"q{number}", f"document {n}") for n in range(500)]
        cache.put("s", pairs, np.full(500, number))
        assert np.array_equal(cache.get("s", kept), np.arange(100))
        assert np.array_equal(cache.get("s", pairs), np.full(500, number))
    assert np.isnan(cache.get("s", [("q0", "document 1")])).all()
    cache.close()
    assert cache.path.stat().st_size <= 200_000
    smaller = ScoreCache(tmp_path, max_bytes=100_000)
    smaller.put("s", [("new", "d")], [1.0])
    smaller.get("s", kept)
    smaller.close()
    assert cache.path.stat().st_size <= 100_000
    assert smaller.get("s", [("new", "d")])[0] == 1.0
    with pytest.raises(ConfigError, match="max_bytes"):
        ScoreCache(tmp_path, max_bytes=10)


def test_damaged_foreign_and_newer_files_say_what_to_do(tmp_path: Path) -> None:
    def made(name: str) -> Path:
        cache = ScoreCache(tmp_path / name)
        cache.put("s", [(f"q{n}", f"d{m}") for n in range(50) for m in range(50)], np.ones(2500))
        cache.close()
        return cache.path

    cut = made("cut")
    cut.write_bytes(cut.read_bytes()[: 5 * 4096 + 100])
    overwritten = made("overwritten")
    overwritten.write_bytes(b"x" * 9000)
    for path in (cut, overwritten):
        with pytest.raises(IndexFormatError, match="delete it"):
            ScoreCache(path).get("s", [(f"q{n}", "d1") for n in range(50)])
    flipped = made("flipped")
    with sqlite3.connect(flipped) as database:
        database.execute("UPDATE contents SET scores = zeroblob(length(scores)) WHERE id = 3")
    database.close()
    with pytest.raises(IndexFormatError, match="delete it"):
        ScoreCache(flipped).get("s", [(f"q{n}", "d1") for n in range(50)])
    newer = made("newer")
    with sqlite3.connect(newer) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(IndexFormatError, match="format 9"):
        ScoreCache(newer).get("s", PAIRS)
    with sqlite3.connect(tmp_path / "foreign") as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = (tmp_path / "foreign").read_bytes()
    with pytest.raises(IndexFormatError, match="another program"):
        ScoreCache(tmp_path / "foreign").get("s", PAIRS)
    assert (tmp_path / "foreign").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        ScoreCache(tmp_path / "file" / "below").get("s", PAIRS)


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache, wrong = ScoreCache(tmp_path), list[str]()

    def work(number: int) -> None:
        for turn in range(10):
            pairs = [(f"q{turn}", f"d{n}") for n in range(number, number + 20)]
            cache.put("s", pairs, np.arange(number, number + 20))
            if not np.array_equal(cache.get("s", pairs), np.arange(number, number + 20)):
                wrong.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


LOOP = """
import sys
import numpy as np
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
path, worker, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cache = ScoreCache(path)
for turn in range(turns):
    pairs = [(f"q{worker} {turn}", f"d{n}") for n in range(200)]
    cache.put("s", pairs, np.arange(200) + turn)
    if turn == 0:
        print("begun", flush=True)
    back = cache.get("s", [(f"q{other} {turn}", f"d{n}") for other in range(3) for n in range(200)])
    back = back.reshape(3, 200)
    for row in back:
        assert np.isnan(row).all() or np.array_equal(row, np.arange(200) + turn), row
    assert not np.isnan(back[worker]).any()
cache.close()
"""


@pytest.mark.thorough
def test_processes_share_a_file_and_kills_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, str(path), str(worker), turns],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for worker, turns in enumerate(["30", "30", "1000000"])
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    time.sleep(0.2)
    started[2].send_signal(signal.SIGKILL)
    for process in started:
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [0, 0, -signal.SIGKILL]
    cache = ScoreCache(path)
    pairs = [("q0 29", f"d{n}") for n in range(200)]
    assert np.array_equal(cache.get("s", pairs), np.arange(200) + 29)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    database.close()


def test_what_was_scored_before_an_error_is_kept(tmp_path: Path) -> None:
    class Stopping(Counting):
        def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
            if self.asked:
                raise KeyboardInterrupt
            return super().score(pairs)

    pairs = [("q", f"d{n}") for n in range(BLOCK + 5)]
    stopping = cached(Stopping(), file=str(tmp_path / "s"))
    with pytest.raises(KeyboardInterrupt):
        stopping.score(pairs)
    assert len(stopping.cache) == BLOCK


def test_a_batch_of_another_type_and_a_missing_table_are_damage(tmp_path: Path) -> None:
    file = tmp_path / "scores.sqlite"
    cache = ScoreCache(file)
    cache.put("scorer", PAIRS, SCORES)
    cache.close()
    for statement in ("UPDATE contents SET documents = 3", "DROP TABLE contents"):
        database = sqlite3.connect(file)
        database.execute(statement)
        database.commit()
        database.close()
        with pytest.raises(IndexFormatError, match="delete it"):
            ScoreCache(file).get("scorer", PAIRS)
