"""Scores of a teacher in a file: shard by shard, and attached to examples."""

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from places import SUPPORT
from pyarrow import parquet
from small_world import LengthScorer
from training_files import LengthTeacher, scores_in

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.distillation import (
    attach_scores,
    distil,
    parts_of,
    read_facts,
    score_examples,
    taught,
)
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import (
    ModelTeacher,
    RunTeacher,
)
from sluice.training.negatives.false_negatives import JudgedPair
from sluice.training.protocol import Example, Text


def texts(ids: Sequence[tuple[str, str]]) -> list[JudgedPair]:
    return [JudgedPair(query, f"text of {query}", doc, doc * 3) for query, doc in ids]


PAIRS = [(f"q{n}", [f"{'d' * (n + m)}" for m in range(1, 4)]) for n in range(7)]
FLAT = [(query, document) for query, documents in PAIRS for document in documents]


@pytest.mark.parametrize(("kept", "encoded"), [(2**28, 3), (16, 4), (1, 5)])
def test_a_document_of_several_shards_is_encoded_once(
    kept: int, encoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting:
        similarity, fingerprint, dim = "dot", "f", 2

        def __init__(self) -> None:
            self.seen: list[str] = []

        def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
            return np.array([[len(query), 1.0] for query in queries], np.float32)

        def encode_documents(self, documents: Sequence[str]) -> np.ndarray:
            self.seen += documents
            return np.array([[1.0, len(text)] for text in documents], np.float32)

    monkeypatch.setattr(f"{ModelTeacher.__module__}.KEPT", kept)
    model = Counting()
    teacher = ModelTeacher(model, "counting")
    shards = [[("q", "a"), ("q", "b"), ("r", "a")], [("q", "a"), ("r", "c")], [("r", "a")]]
    for shard in shards:
        scores = teacher.scores(texts(shard)).tolist()
        assert scores == [len(f"text of {query}") + 3.0 * len(doc) for query, doc in shard]
    assert sorted(set(model.seen)) == ["aaa", "bbb", "ccc"]
    assert len(model.seen) == encoded


class TestShards:
    def test_every_pair_once_and_who_scored_it(self, tmp_path: Path) -> None:
        made = distil(
            LengthTeacher(), PAIRS, texts, tmp_path / "s.parquet", key="k", facts={"a": 1}, shard=4
        )
        assert scores_in(made.path) == {pair: 3.0 * len(pair[1]) for pair in FLAT}
        assert (made.scored, made.unscored, made.reused) == (len(FLAT), 0, 0)
        facts = read_facts(made.path)
        assert (facts["a"], facts["key"], facts["scored"]) == (1, "k", len(FLAT))
        assert not parts_of(made.path).exists()

    @pytest.mark.parametrize("fails_at", [0, 1, 2, 3])
    def test_a_stop_loses_one_shard_at_most(self, fails_at: int, tmp_path: Path) -> None:
        class Failing(LengthTeacher):
            calls = 0

            def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
                self.calls += 1
                if self.calls == fails_at + 1:
                    raise KeyboardInterrupt
                return super().scores(pairs)

        output = tmp_path / "s.parquet"
        with pytest.raises(KeyboardInterrupt):
            distil(Failing(), PAIRS, texts, output, key="k", facts={}, shard=4)
        assert not output.exists()
        teacher = LengthTeacher()
        made = distil(teacher, PAIRS, texts, output, key="k", facts={}, shard=4)
        assert made.reused == fails_at
        assert teacher.seen == len(FLAT) - 6 * fails_at  # two queries of three pairs each
        whole = distil(
            LengthTeacher(), PAIRS, texts, tmp_path / "w.parquet", key="k", facts={}, shard=4
        )
        assert scores_in(output) == scores_in(whole.path)

    @pytest.mark.thorough
    def test_a_killed_process_goes_on(self, tmp_path: Path) -> None:
        program = """
import os, signal, sys
from pathlib import Path
from test_distillation import FLAT, LengthTeacher, PAIRS, texts
from sluice.retrieval.training_data.teachers.distillation import distil

class Killed(LengthTeacher):
    def scores(self, pairs):
        if self.seen >= 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().scores(pairs)

distil(Killed(), PAIRS, texts, Path(sys.argv[1]), key="k", facts={}, shard=4)
"""
        output = tmp_path / "s.parquet"
        folders = [Path(__file__).parent, SUPPORT, *sys.path]
        done = subprocess.run(
            [sys.executable, "-c", program, str(output)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
            check=False,
            capture_output=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        teacher = LengthTeacher()
        assert distil(teacher, PAIRS, texts, output, key="k", facts={}, shard=4).reused == 1
        assert teacher.seen == len(FLAT) - 6

    def test_the_same_again_does_nothing_and_another_key_all(self, tmp_path: Path) -> None:
        output, teacher = tmp_path / "s.parquet", LengthTeacher()
        first = distil(teacher, PAIRS, texts, output, key="k", facts={})
        assert distil(teacher, PAIRS, texts, output, key="k", facts={}) == first
        assert teacher.seen == len(FLAT)
        distil(teacher, PAIRS, texts, output, key="other", facts={})
        assert teacher.seen == 2 * len(FLAT)

    def test_shards_of_other_settings_are_not_used(self, tmp_path: Path) -> None:
        class Failing(LengthTeacher):
            def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
                if self.seen:
                    raise KeyboardInterrupt
                return super().scores(pairs)

        output = tmp_path / "s.parquet"
        with pytest.raises(KeyboardInterrupt):
            distil(Failing(), PAIRS, texts, output, key="k", facts={}, shard=4)
        made = distil(LengthTeacher(factor=2), PAIRS, texts, output, key="new", facts={}, shard=4)
        assert made.reused == 0
        assert set(scores_in(output).values()) == {6.0 * len(pair[1]) for pair in FLAT}

    def test_somebodys_folder_stays(self, tmp_path: Path) -> None:
        output = tmp_path / "s.parquet"
        (parts_of(output)).mkdir()
        (parts_of(output) / "mine").write_text("x")
        with pytest.raises(ConfigError, match="holds 'mine', which is not one"):
            distil(LengthTeacher(), PAIRS, texts, output, key="k", facts={})
        assert (parts_of(output) / "mine").exists()

    @pytest.mark.parametrize("key", ["k", "other"])
    def test_what_a_kill_at_the_very_end_left_is_removed(self, tmp_path: Path, key: str) -> None:
        output = tmp_path / "s.parquet"
        distil(LengthTeacher(), PAIRS, texts, output, key="k", facts={})
        (parts_of(output) / "documents").mkdir(parents=True)
        (parts_of(output) / "shard-000003.parquet").touch()
        distil(LengthTeacher(), PAIRS, texts, output, key=key, facts={})
        assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]

    def test_pairs_without_a_score_are_left_out(self, tmp_path: Path) -> None:
        run = Run({"q0": {"d": 2.0}, "q3": {"dddd": 1.0}})
        teacher = RunTeacher(run, "run", "f")
        made = distil(teacher, PAIRS, texts, tmp_path / "s.parquet", key="k", facts={})
        assert scores_in(made.path) == {("q0", "d"): 2.0, ("q3", "dddd"): 1.0}
        assert "2 pairs scored, 19 without a score left out" in str(made)
        nothing = RunTeacher(Run({}), "run", "g")
        with pytest.raises(DataError, match="scored none of 21 pairs"):
            distil(nothing, PAIRS, texts, tmp_path / "t.parquet", key="k", facts={})
        assert not (tmp_path / "t.parquet").exists()


class TestTeachers:
    def test_a_bi_encoder_is_a_teacher(self, bert: Path, masked_bert: Path) -> None:
        pairs = [JudgedPair("q", "gold river", n, t) for n, t in (("a", "gold"), ("b", "deep sea"))]
        for folder in (bert, masked_bert):
            teacher = teacher_spec(folder).make(Context())
            from sluice.encoders.model_files.registry import open_encoder

            encoder = open_encoder(folder)
            left = encoder.encode_queries(["gold river"])
            right = encoder.encode_documents(["gold", "deep sea"])
            expected = np.asarray((right @ left.T).ravel())
            np.testing.assert_allclose(teacher.scores(pairs), expected, rtol=1e-5)
            assert teacher.fingerprint == encoder.fingerprint

    def test_scores_that_are_no_numbers(self) -> None:
        class Broken(LengthScorer):
            fingerprint = "x"

            def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
                return [math.inf] * len(pairs)

        with pytest.raises(DataError, match="teacher broken: not finite: 2 of 2 scores"):
            ModelTeacher(Broken(), "broken").scores(texts(FLAT[:2]))
        with pytest.raises(ConfigError, match="can neither score pairs nor encode texts"):
            ModelTeacher(object(), "x")

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("no.parquet", "teacher: no file no.parquet.*sluice teach distil"),
            ({"type": "cross_encodr", "model": "x"}, "did you mean 'cross_encoder'"),
            ({"type": "towers"}, "unknown type 'towers'"),
            ({"type": "bm25", "k": 1}, "did you mean 'k1'"),
            ({"type": "bm25", "fields": {"text": 1.0}}, "training texts have no fields"),
            ("examples", "the scores of the examples are learnt without it"),
            ({"type": "ensemble"}, "teacher.teachers: None"),
            ({"type": "ensemble", "teachers": ["a"], "weight": [1]}, "did you mean 'weights'"),
            ({"type": "ensemble", "teachers": ["a"], "weights": [0]}, "a number above 0 for each"),
            ({"type": "ensemble", "teachers": ["a", "b"], "weights": [1]}, "above 0 for each"),
            ({"type": "ensemble", "teachers": ["a.parquet"]}, "teacher.teachers.0: no file a.parq"),
            ({"type": "ensemble", "teachers": [{"type": "x"}]}, "teacher.teachers.0.type: unknown"),
            ({"type": "ensemble", "teachers": ["a"], "normalise": "minmax"}, "you mean 'min-max'"),
            ({"type": "ensemble", "teachers": ["a"], "normalise": True}, "expected one of min-max"),
            ({"type": "ensemble", "teachers": ["a"], "scale": 0}, "teacher.scale: 0"),
            ({"type": "ensemble", "teachers": ["a"], "scale": "x"}, "teacher.scale: 'x'"),
            ({"type": "ensemble", "teachers": []}, r"teacher.teachers: \[\]"),
        ],
    )
    def test_a_bad_section(self, spec: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            teacher_spec(spec).check()


def example(query: str, *documents: str) -> Example:
    named = tuple(Text(document, document * 2) for document in documents)
    return Example(Text(query, f"about {query}"), named, relevant=frozenset(documents[:1]))


class TestExamples:
    EXAMPLES = (example("q1", "aa", "b"), example("q2", "b", "cc"), example("q1", "d", "b"))

    def test_scored_on_the_spot_and_attached(self, tmp_path: Path) -> None:
        teacher = LengthTeacher()
        made = score_examples(teacher, self.EXAMPLES, tmp_path / "t.parquet")
        assert teacher.seen == made.scored == 5  # (q1, b) once
        found = attach_scores(list(self.EXAMPLES), made.path)
        assert [e.scores for e in found] == [(4, 2), (2, 4), (2, 2)]
        assert [e.documents for e in found] == [e.documents for e in self.EXAMPLES]
        assert self.EXAMPLES[0].scores == ()

    def test_other_texts_are_scored_anew(self, tmp_path: Path) -> None:
        teacher = LengthTeacher()
        score_examples(teacher, self.EXAMPLES, tmp_path / "t.parquet")
        score_examples(teacher, self.EXAMPLES, tmp_path / "t.parquet")
        assert teacher.seen == 5
        score_examples(teacher, [example("q1", "aa", "bb")], tmp_path / "t.parquet")
        assert teacher.seen == 7

    def write(self, path: Path, rows: list[tuple[str, str, float]]) -> Path:
        columns = dict(zip(("query_id", "doc_id", "score"), zip(*rows, strict=True), strict=True))
        parquet.write_table(pa.table({name: list(c) for name, c in columns.items()}), path)
        return path

    def test_missing_pairs_are_nan_and_counted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = self.write(
            tmp_path / "t.parquet", [("q1", "b", 2.5), ("q1", "aa", 1), ("z", "z", 1)]
        )
        with caplog.at_level(logging.WARNING, "sluice"):
            found = attach_scores(list(self.EXAMPLES), path)
        assert found[0].scores == (1, 2.5)
        assert np.isnan(found[1].scores).all()
        assert "no score for 3 of 5 training pairs (60.0 %)" in caplog.text
        assert "2 of 3 examples have fewer than two" in caplog.text

    def test_a_file_of_other_pairs_is_refused(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "t.parquet", [("z", "z", 1.0)])
        with pytest.raises(DataError, match="a score for none of the 5 training pairs"):
            attach_scores(list(self.EXAMPLES), path)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"query_id": ["a"], "doc_id": ["b"]}, "no column 'score'"),
            ({"query_id": ["a"], "doc_id": [None], "score": [1.0]}, "a null in column 'doc_id'"),
            ({"query_id": ["a"], "doc_id": ["b"], "score": ["x"]}, "not readable"),
        ],
    )
    def test_a_bad_file(self, columns: dict[str, list[Any]], message: str, tmp_path: Path) -> None:
        parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=message):
            attach_scores(list(self.EXAMPLES), tmp_path / "t.parquet")

    def test_a_component_scores_into_the_work_folder(self, pair_bert: Path, tmp_path: Path) -> None:
        spec = {"type": "cross_encoder", "model": "mine"}
        found = taught(
            list(self.EXAMPLES), spec, work_path=tmp_path, model=lambda name: str(pair_bert)
        )
        from sluice.encoders import CrossEncoder

        cross = CrossEncoder.from_pretrained(pair_bert)
        expected = cross.score([("about q1", "aaaa"), ("about q1", "bb")])
        np.testing.assert_allclose(found[0].scores, expected, rtol=1e-5)
        again = taught(list(self.EXAMPLES), str(tmp_path / "teacher.parquet"), work_path=tmp_path)
        assert [e.scores for e in again] == [e.scores for e in found]


def test_parts_of_one_document_are_scored_apart(tmp_path: Path) -> None:
    examples = [
        Example(Text("q1", "one"), (Text("d", "gold"),)),
        Example(Text("q2", "two"), (Text("d", "a longer part"),)),
    ]
    made = score_examples(LengthTeacher(), examples, tmp_path / "s.parquet")
    assert scores_in(made.path) == {("q1", "d"): 4.0, ("q2", "d"): 13.0}
