"""Training files of every format, and the settings of their section."""

import csv
import gzip
import logging
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet
from small_world import documents, write_beir
from training_files import BGE, TEVATRON, lines, plain, read

from sluice.retrieval.datasets.dataset import Dataset, load_dataset, training_splits
from sluice.retrieval.training_data.example_sources import (
    file_examples,
)
from sluice.retrieval.training_data.examples import dataset_of_examples, with_negatives
from sluice.retrieval.training_data.files.formats import rows_of

WORLD = documents(40)


class TestFormats:
    def test_bge_with_and_without_scores(self, tmp_path: Path, dataset: Dataset) -> None:
        scored = {**BGE, "pos_scores": [3], "neg_scores": [1.5, -1]}
        made = read(lines(tmp_path / "a.jsonl", [BGE, {**scored, "query": "r"}]), dataset)
        assert plain(made[0]) == ("q", ["yes", "no", "never"], [1, 0, 0], [])
        assert plain(made[1]) == ("r", ["yes", "no", "never"], [1, 0, 0], [3, 1.5, -1])

    def test_scores_of_one_side_leave_the_other_without(
        self, tmp_path: Path, dataset: Dataset
    ) -> None:
        (made,) = read(lines(tmp_path / "a.jsonl", [{**BGE, "neg_scores": [1, 2]}]), dataset)
        assert math.isnan(made.scores[0])
        assert made.scores[1:] == (1, 2)

    def test_our_own_mined_file_keeps_its_ids(self, tmp_path: Path, dataset: Dataset) -> None:
        row = {
            "query_id": "q1", "query": "what is gold", "pos": ["g"], "neg": ["s", "d10's"],
            "pos_ids": ["d00"], "neg_ids": ["d02", "d10"],
        }  # fmt: skip
        (made,) = read(lines(tmp_path / "a.jsonl", [row]), dataset)
        assert [document.id for document in made.documents] == ["d00", "d02"]
        assert made.relevant == {"d00", "d10"}  # d10: the dataset's judgement of the same query

    def test_ids_of_another_collection_bring_no_judgements(
        self, tmp_path: Path, dataset: Dataset
    ) -> None:
        row = {**BGE, "query_id": "q1", "pos_ids": ["a"], "neg_ids": ["d00", "d10"]}
        (made,) = read(lines(tmp_path / "a.jsonl", [row]), dataset)
        assert made.relevant == {"a"}

    def test_columns_of_every_kind_of_file(self, tmp_path: Path, dataset: Dataset) -> None:
        rows = [
            {"anchor": "q, one", "positive": 'a "b"', "negative_1": "x\ny", "negative_2": "z"},
            {"anchor": "r", "positive": "p", "negative_1": "u", "negative_2": "v"},
        ]
        lines(tmp_path / "a.jsonl", rows)
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        expected = [plain(made) for made in read(tmp_path / "a.jsonl", dataset)]
        assert expected[0] == ("q, one", ['a "b"', "x\ny", "z"], [1, 0, 0], [])
        for name in ("a.parquet", "a.csv"):
            assert [plain(made) for made in read(tmp_path / name, dataset)] == expected

    def test_tsv_with_a_header_takes_quotation_marks_as_they_are(
        self, tmp_path: Path, dataset: Dataset
    ) -> None:
        text = 'anchor\tpositive\tnegative\n"q\tp\tn"\n'
        (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
        (made,) = read(tmp_path / "a.tsv", dataset)
        assert plain(made) == ('"q', ["p", 'n"'], [1, 0], [])

    @pytest.mark.parametrize(
        ("label", "scores"),
        [(1.5, [0, -1.5]), ([1.5], [0, -1.5]), ([4.0, 2.5], [4.0, 2.5]), ("[4, 2.5]", [4, 2.5])],
    )
    def test_margins_become_scores(
        self, label: Any, scores: list[float], tmp_path: Path, dataset: Dataset
    ) -> None:
        row = {"query": "q", "positive": "p", "negative": "n", "label": label}
        (made,) = read(lines(tmp_path / "a.jsonl", [row]), dataset)
        assert list(made.scores) == scores
        assert made.scores[0] - made.scores[1] == 1.5

    def test_triples_of_texts_gzipped(self, tmp_path: Path, dataset: Dataset) -> None:
        with gzip.open(tmp_path / "a.tsv.gz", "wt", encoding="utf-8") as stream:
            stream.write("a query\tthe answer\tnot it\nanother one\tyes it is\tno it is not\n")
        made = read(tmp_path / "a.tsv.gz", dataset)
        assert [plain(example)[1] for example in made] == [
            ["the answer", "not it"],
            ["yes it is", "no it is not"],
        ]

    def test_triples_of_ids(self, tmp_path: Path, dataset: Dataset) -> None:
        (tmp_path / "a.tsv").write_text("q1\td00\td01\nq2\td03\td04\n", encoding="utf-8")
        first, second = read(tmp_path / "a.tsv", dataset)
        assert first.query == ("q1", "what is gold")
        assert first.documents[1] == ("d01", WORLD[1].full_text)
        assert first.relevant == {"d00", "d10"}
        assert second.documents[0].id == "d03"

    def test_scored_triples_of_ids(self, tmp_path: Path, dataset: Dataset) -> None:
        (tmp_path / "a.tsv").write_text("7.5\t-2\tq1\td00\td01\n", encoding="utf-8")
        (made,) = read(tmp_path / "a.tsv", dataset)
        assert made.scores == (7.5, -2)

    def test_tevatron(self, tmp_path: Path, dataset: Dataset) -> None:
        (made,) = read(lines(tmp_path / "a.jsonl", [TEVATRON]), dataset)
        assert plain(made)[1] == ["Tall tree", "low", "sea"]
        assert [document.id for document in made.documents] == ["p", "n", "7"]
        ids = {
            "query_id": 9, "query_text": "a number", "positive_document_ids": ["d05"],
            "negative_document_ids": ["d06"],
        }  # fmt: skip
        (made,) = read(lines(tmp_path / "b.jsonl", [ids]), dataset)
        assert plain(made)[1] == [WORLD[5].full_text, WORLD[6].full_text]

    def test_msmarco_hard_negatives(self, tmp_path: Path, dataset: Dataset) -> None:
        rows = [
            {"qid": "q1", "pos": ["d00"], "neg": {"bm25": ["d01", "d02"], "dense": ["d02", "d03"]}},
            {
                "qid": "q2",
                "pos": [{"pid": "d03", "ce-score": 9.0}],
                "neg": {"bm25": [{"pid": "d04", "ce-score": -3}, {"pid": "d06", "ce-score": 1}]},
            },
        ]
        first, second = read(lines(tmp_path / "a.jsonl", rows), dataset)
        assert [document.id for document in first.documents] == ["d00", "d01", "d02", "d03"]
        assert first.scores == ()
        assert second.scores == (9, -3, 1)

    def test_graded_rows_of_a_query_are_one_example(self, tmp_path: Path, dataset: Dataset) -> None:
        rows = [
            {"query": "q", "document": "low", "grade": 0.2},
            {"query": "r", "document": "only", "grade": 0},
            {"query": "q", "document": "none", "grade": 0},
            {"query": "q", "document": "high", "grade": 1},
        ]
        (made,) = read(lines(tmp_path / "a.jsonl", rows), dataset)
        assert plain(made) == ("q", ["high", "low", "none"], [1, 0.2, 0], [])
        ids = [{"query_id": "q1", "doc_id": f"d0{n}", "score": n} for n in (1, 2)]
        (made,) = read(lines(tmp_path / "b.jsonl", ids), dataset)
        assert made.labels == (2, 1)
        listed = {"query": "q", "docs": ["a", "b"], "labels": [0, 1]}
        (made,) = read(lines(tmp_path / "c.jsonl", [listed]), dataset)
        assert plain(made) == ("q", ["b", "a"], [1, 0], [])

    def test_pairs_with_a_score_are_graded(self, tmp_path: Path, dataset: Dataset) -> None:
        (tmp_path / "a.csv").write_text("anchor,positive,score\nq,a,0.25\nq,b,1\n")
        (made,) = read(tmp_path / "a.csv", dataset)
        assert plain(made) == ("q", ["b", "a"], [1, 0.25], [])

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(
        rows=st.lists(
            st.tuples(
                st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
                st.lists(
                    st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
                    min_size=1,
                    max_size=3,
                ),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_any_text_comes_through(
        self, rows: list[tuple[str, list[str]]], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "a.jsonl"
        lines(path, [{"query": query, "pos": texts, "neg": []} for query, texts in rows])
        name, found = rows_of(path)
        assert name == "bge"
        assert [(r.query.text, [d.document.text for d in r.documents]) for r in found] == rows


class TestSettings:
    ROWS = ({"query": "q", "pos": ["a", "b"], "neg": [f"n{i}" for i in range(6)]},)

    def test_each_positive_or_all_together(self, tmp_path: Path, dataset: Dataset) -> None:
        path = lines(tmp_path / "a.jsonl", self.ROWS)
        each = read(path, dataset, per_query=1)
        assert [plain(made)[1] for made in each] == [["a", "n0"], ["b", "n0"]]
        assert each[0].relevant == each[1].relevant == {d.documents[0].id for d in each}
        (both,) = read(path, dataset, per_query=2, positives="together")
        assert plain(both)[1:3] == (["a", "b", "n0", "n1"], [1, 1, 0, 0])

    def test_random_negatives_depend_on_the_seed_alone(
        self, tmp_path: Path, dataset: Dataset
    ) -> None:
        path = lines(tmp_path / "a.jsonl", [{**self.ROWS[0], "query": f"q{n}"} for n in range(9)])
        spec = {"file": str(path), "per_query": 2, "sampling": "random"}
        first, again, other = (file_examples(spec, dataset, seed) for seed in (1, 1, 2))
        assert first == again != other
        assert all(len(made.documents) == 3 for made in first)

    def test_fewer_negatives_than_asked_are_kept_and_said(
        self, tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "sluice"):
            (made,) = read(lines(tmp_path / "a.jsonl", [BGE]), dataset, per_query=5)
        assert len(made.documents) == 3
        assert "fewer negatives than per_query: 5 in 1 of 1 rows" in caplog.text

    def test_known_positives_are_no_negatives(
        self, tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = [
            {"query": "q", "pos": ["a"], "neg": ["b", " A ", "n"]},
            {"query": "q", "pos": ["b"], "neg": ["n"]},
        ]
        with caplog.at_level(logging.WARNING, "sluice"):
            first, _ = read(lines(tmp_path / "a.jsonl", rows), dataset)
        assert plain(first)[1] == ["a", "n"]
        assert "known positives of their query, by id or text: 2" in caplog.text

    def test_scores_that_are_no_teachers(self, tmp_path: Path, dataset: Dataset) -> None:
        row = {**BGE, "pos_scores": [3], "neg_scores": [1, 2]}
        (made,) = read(lines(tmp_path / "a.jsonl", [row]), dataset, scores=False)
        assert made.scores == ()

    def test_mined_negatives_behind_the_files_own(self, tmp_path: Path, dataset: Dataset) -> None:
        text = "q1\td00\td01\nq2\td03\td04\n"
        (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
        examples = read(tmp_path / "a.tsv", dataset)
        asked = dataset_of_examples(examples, dataset)
        assert asked.queries == {"q1": "what is gold", "q2": "where is water"}
        assert asked.qrels == {"q1": {"d00": 1, "d10": 1}, "q2": {"d03": 1}}
        assert [d.id for d in asked.corpus] == [d.id for d in WORLD]
        texts = {**{d.id: d.full_text for d in WORLD}, "copy": WORLD[0].full_text.upper()}
        mined = {"q1": ["d00", "d01", "d10", "copy", "d02", "lost"], "other": ["d09"]}
        first, second = with_negatives(examples, mined, texts)
        assert [document.id for document in first.documents] == ["d00", "d01", "d02"]
        assert first.labels == (1, 0, 0)
        assert second == examples[1]

    def test_several_files_and_a_limit(self, tmp_path: Path, dataset: Dataset) -> None:
        paths = [lines(tmp_path / f"{n}.jsonl", [{**BGE, "query": n}] * 2) for n in "ab"]
        spec = {"file": [str(path) for path in paths], "rows": 3}
        assert [made.query.text for made in file_examples(spec, dataset, 1)] == ["a", "a", "b"]

    def test_dev_and_test_queries_are_not_trained_on(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        data = load_dataset(write_beir(tmp_path / "world"), "test")
        train, dev = training_splits(load_dataset(tmp_path / "world", None), 13)
        texts = [*list(data.queries.values())[:2], *list(dev.queries.values())[:1]]
        rows = [{**BGE, "query": f"  {text.upper()}"} for text in texts] + [BGE]
        with caplog.at_level(logging.WARNING, "sluice"):
            made = read(lines(tmp_path / "a.jsonl", rows), train)
        assert [example.query.text for example in made] == ["q"]
        assert "3 of 4 rows" in caplog.text

    def test_ids_without_text_are_left_out_and_counted(
        self, tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = "q1\td00\td01\nq1\tdx\td01\nqx\td00\td01\nq1\td00\tdy\n"
        (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
        with caplog.at_level(logging.WARNING, "sluice"):
            made = read(tmp_path / "a.tsv", dataset)
        assert [len(example.documents) for example in made] == [2, 1]
        assert "no text for 3 of 6 ids" in caplog.text
        assert "left out 2 of 4 rows" in caplog.text
