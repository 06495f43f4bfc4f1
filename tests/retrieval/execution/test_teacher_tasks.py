"""Teachers' scores by tasks: the same file as one process writes, also after real kills."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_process import OtherProcess
from places import SUPPORT
from small_world import write_beir
from struck_scorer import StruckScorer, score, texts

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ModelError
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.execution import ProcessExecutor
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.distil_dataset import distil_dataset
from sluice.retrieval.training_data.teachers.distillation import distil, parts_of
from sluice.retrieval.training_data.teachers.scoring_tasks import Shards, stays_here
from sluice.retrieval.training_data.teachers.teachers import (
    Ensemble,
    ModelTeacher,
    RunTeacher,
    Teacher,
)

Call = Callable[..., tuple[int, str, str]]
PAIRS = [(f"q{n}", [f"d{m}" for m in range(4)]) for n in range(6)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return score(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.thorough
def test_a_killed_worker_costs_a_try_and_no_bit(
    tmp_path: Path, undisturbed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert score(tmp_path, "itself", ProcessExecutor(2)) == undisturbed
    assert caplog.text.count("its worker is lost (it was killed)") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark", "scores.parquet"]


@pytest.mark.thorough
def test_a_killed_driver_is_continued_to_the_same_bits(tmp_path: Path, undisturbed: bytes) -> None:
    command = [sys.executable, str(SUPPORT / "struck_scorer.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, timeout=600, check=False)
    assert done.returncode == -9
    assert (tmp_path / "mark").exists()
    assert parts_of(tmp_path / "scores.parquet").exists()
    assert score(tmp_path) == undisturbed


class Asked:
    """A judge of one's own: only this process has it."""

    needs_texts, name, fingerprint = True, "asked", "asked"

    def scores(self, pairs: Any) -> Any:
        return np.ones(len(pairs))


def mixed() -> Ensemble:
    words = [pair.document for _, docs in PAIRS for pair in texts([("q", d) for d in docs])]
    run = Run({query: {doc: float(len(query) + place) for place, doc in enumerate(docs[1:])}
               for query, docs in PAIRS}, name="run")  # fmt: skip
    members: list[Teacher] = [
        ModelTeacher(StruckScorer(), "struck"),
        ModelTeacher(BM25Encoder().fit(words), "bm25"),
        RunTeacher(run, "run", "of the file"),
    ]
    return Ensemble(members, [1.0, 2.0, 0.5], normalise="z-score", scale=3.0)


def scored(folder: Path, teacher: Teacher, **options: Any) -> bytes:
    output = folder / "s.parquet"
    made = distil(teacher, PAIRS, texts, output, key="k", facts={}, shard=5, **options)
    assert made.scored > 0
    return output.read_bytes()


def test_an_ensemble_is_opened_again_member_by_member(tmp_path: Path) -> None:
    executor = OtherProcess()
    for name in ("alone", "shared"):
        (tmp_path / name).mkdir()
    alone = scored(tmp_path / "alone", mixed())
    assert scored(tmp_path / "shared", mixed(), executor=executor) == alone
    assert executor.kinds == ["score"] * 3


def test_what_only_this_process_can_ask_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = OtherProcess()
    run = RunTeacher(Run({"q0": {"d0": 1.0}}), "run", "f")
    scored(tmp_path, Asked(), executor=executor)
    assert "distil: asked is a language model or an object, which one process asks" in caplog.text
    assert "executor: other shares out other work" in caplog.text
    assert executor.kinds == []
    assert "looked up" in stays_here(run)
    assert "looked up" in stays_here(Ensemble([run, run]))
    assert not stays_here(mixed())
    assert stays_here(Ensemble([mixed(), Asked()])).startswith("asked")


def test_a_teacher_that_comes_back_changed_is_refused(tmp_path: Path) -> None:
    class Changed(ModelTeacher):
        @property
        def fingerprint(self) -> str:
            return "another fingerprint"

    with pytest.raises(ModelError, match="struck saved and reopened has the fingerprint"):
        scored(tmp_path, Changed(StruckScorer(), "struck"), executor=OtherProcess())


def test_shards_are_read_again_in_any_order() -> None:
    shards = Shards(PAIRS, 5)
    assert shards.sizes == [8, 8, 8]
    whole = [(query, doc) for query, docs in PAIRS for doc in docs]
    assert [pair for n in range(3) for pair in shards.ids(n)] == whole
    assert [shards.ids(n)[0] for n in (2, 0, 1, 1)] == [whole[16], whole[0], whole[8], whole[8]]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    folder = write_beir(tmp_path / "world")
    ranked = {query: {f"d{n:02d}": 20.0 - n for n in range(9)}
              for query in load_dataset(folder, "train").queries}  # fmt: skip
    Run(ranked).save(tmp_path / "run.trec")
    return folder


def test_a_cross_encoder_is_opened_again(tmp_path: Path, world: Path, pair_bert: Path) -> None:
    arguments = [str(pair_bert)], str(world), str(tmp_path / "run.trec")
    one = distil_dataset(*arguments, tmp_path / "a.parquet", shard=20)
    other = distil_dataset(*arguments, tmp_path / "b.parquet", shard=20, executor=OtherProcess())
    assert one.path.read_bytes() == other.path.read_bytes()


@pytest.mark.thorough
def test_the_command_plans_shares_out_and_writes_the_same(
    tmp_path: Path, world: Path, sluice: Call
) -> None:
    words = ["teach", "distil", world, "--teacher", "bm25", "--candidates",
             tmp_path / "run.trec", "--shard", 20, "--output"]  # fmt: skip
    assert sluice(*words, tmp_path / "a.parquet")[0] == 0
    one = ["--executor", "{type: processes, workers: 1}"]
    code, out, err = sluice(*words, tmp_path / "b.parquet", *one, "--plan")
    assert (code, out.partition(", 1 done; about ")[0]) == (0, "distil: 6 tasks"), err
    assert not (tmp_path / "b.parquet").exists()
    code, out, _ = sluice(*words, tmp_path / "b.parquet")
    assert code == 0
    assert "(1 of the shards reused)" in out
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "a.parquet").read_bytes()
    _, out, _ = sluice(*words, tmp_path / "b.parquet", *one, "--plan")
    assert out == "nothing is left to do\n"
    code, _, err = sluice(*words, tmp_path / "c.parquet", "--executor", "procesess")
    assert code == 2
    assert "executor.type: unknown type 'procesess'" in err
