"""A dataset's positives and candidates, scored by a teacher."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import write_beir
from training_files import LengthTeacher, scores_in

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.retrieval.training_data.teachers.distil_dataset import distil_dataset
from sluice.retrieval.training_data.teachers.distillation import (
    attach_scores,
    parts_of,
    read_facts,
    score_examples,
)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write_beir(tmp_path / "world")


@pytest.fixture
def run(world: Path, tmp_path: Path) -> Path:
    """A run of the train queries: documents d00 to d19, best first."""
    queries = load_dataset(world, "train").queries
    ranked = {query: {f"d{n:02d}": 20.0 - n for n in range(20)} for query in queries}
    Run(ranked, name="run").save(tmp_path / "run.trec")
    return tmp_path / "run.trec"


class TestDataset:
    def test_positives_and_candidates_to_a_depth(
        self, world: Path, run: Path, pair_bert: Path, tmp_path: Path
    ) -> None:
        made = distil_dataset(
            [str(pair_bert)], str(world), str(run), tmp_path / "s.parquet", depth=3, shard=5
        )
        data = load_dataset(world, "train")
        expected = {
            (query, doc)
            for query in data.queries
            for doc in [
                *(doc for doc, grade in data.qrels[query].items() if grade > 0),
                "d00", "d01", "d02",
            ]
        }  # fmt: skip
        scores = scores_in(made.path)
        assert scores.keys() == expected
        from sluice.encoders import CrossEncoder

        query, doc = sorted(expected)[0]
        text = next(d.full_text for d in data.corpus if d.id == doc)
        alone = CrossEncoder.from_pretrained(pair_bert).score([(data.queries[query], text)])
        np.testing.assert_allclose(scores[query, doc], alone[0], rtol=1e-4)
        facts = read_facts(made.path)
        assert facts["teachers"][0]["name"] == str(pair_bert)
        assert (facts["dataset"], facts["split"], facts["depth"]) == ("world", "train", 3)
        assert not parts_of(made.path).exists()

    def test_a_run_as_teacher_needs_no_texts(self, world: Path, run: Path, tmp_path: Path) -> None:
        made = distil_dataset([str(run)], str(world), str(run), tmp_path / "s.parquet", depth=2)
        scores = scores_in(made.path)
        assert {score for (_, doc), score in scores.items() if doc == "d01"} == {19.0}
        assert made.unscored  # positives that the run does not have

    def test_a_training_file_as_candidates(self, world: Path, run: Path, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"query": "deep", "pos": ["a"], "neg": ["bb", "ccc"]}) + "\n")
        with pytest.raises(DataError, match="scored none of 3 pairs"):
            distil_dataset([str(run)], str(world), str(path), tmp_path / "s.parquet")
        examples = file_examples({"file": str(path)}, load_dataset(world, "train"), 1)
        made = score_examples(LengthTeacher(), examples, tmp_path / "s.parquet")
        assert attach_scores(examples, made.path)[0].scores == (1, 2, 3)

    def test_the_command(
        self, sluice: Call, world: Path, run: Path, pair_bert: Path, tmp_path: Path
    ) -> None:
        output = tmp_path / "s.parquet"
        words = [
            "teach", "distil", world, "--teacher", pair_bert, "--teacher", run,
            "--weight", 2, "--weight", 1, "--normalise", "min-max", "--scale", 30,
            "--candidates", run, "--depth", 4, "--output", output,
        ]  # fmt: skip
        code, out, err = sluice(*words)
        assert code == 0, err
        assert f"{output}: 55 pairs scored, 8 without a score left out" in out
        facts = read_facts(output)
        assert facts["weights"] == [2.0, 1.0]
        assert (facts["normalise"], facts["scale"]) == ("min-max", 30.0)
        for query in {query for query, _ in scores_in(output)}:
            own = [score for (each, _), score in scores_in(output).items() if each == query]
            assert 0 <= min(own) <= max(own) <= 30

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--weight", 1, "--weight", 2], "--weight: given 2 times for 1 teachers"),
            (["--depth", 0], "depth 0"),
            (["--candidates", "nowhere"], "no file or folder nowhere"),
            (["--split", "tests"], "did you mean 'test'"),
            (["--split", "test"], "lists for none of the 8 queries"),
        ],
    )
    def test_bad_input_ends_in_exit_code_2(
        self, words: list[Any], message: str, sluice: Call, world: Path, run: Path, tmp_path: Path
    ) -> None:
        output = tmp_path / "s.parquet"
        usual = ["--teacher", run, "--candidates", run, "--output", output]
        code, _, err = sluice("teach", "distil", world, *usual, *words)
        assert code == 2
        assert message in err
        assert not output.exists()
