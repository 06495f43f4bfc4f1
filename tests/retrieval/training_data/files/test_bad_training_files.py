"""Training files and sections that are refused, with file and line."""

from pathlib import Path
from typing import Any

import pytest
from training_files import BGE, TEVATRON, lines, read

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.training_data.example_sources import (
    check_examples,
    refuse_unlearnable,
)
from sluice.retrieval.training_data.files.formats import FORMATS

BAD = [
    ("a.jsonl", '{"query": "q", "pos": []}\n', r":1: no positive; every row needs"),
    ("a.jsonl", '{"query": "q", "pos": ["p"], "neg": ["n", " "]}\n', r":1: neg\[1\] is empty"),
    ("a.jsonl", '{"query": "q", "pos": ["p"]}\n{"query": "q"', r":2: not JSON"),
    ("a.jsonl", '{"query": "q", "pos": ["p"]}\n\n{"query": ""}', r":3: the query is|:3: query is"),
    ("a.jsonl", '{"query": "q", "pos": ["p"], "neg": [1]}', r":1: neg\[0\] is 1, expected a text"),
    ("a.jsonl", '{"query": "q", "pos": ["p"], "pos_scores": [1, 2]}', r":1: 2 pos_scores for 1"),
    ("a.jsonl", '{"query": "q", "pos": ["p"], "pos_scores": ["x"]}', r"'x', expected a finite"),
    ("a.jsonl", '{"query": "q", "pos": ["p"], "pos_ids": ["a", "b"]}', r":1: 2 ids for 1 texts"),
    ("a.jsonl", '{"some": "q", "a": "b", "c": "d"}', r":1: unknown format \(fields some, a, c\)"),
    ("a.jsonl", '{"id": "x7", "text": "some text"}', r":1: unknown format \(fields id, text\)"),
    ("a.jsonl", "", r"a.jsonl: empty"),
    ("a.tsv", "a b\tc d\te f\na b\tc d\n", r":2: 2 fields, but 3 in the first"),
    ("a.tsv", "a b\t\te f\n", r":1: the positive is empty"),
    ("a.csv", 'anchor,positive\nq,"p\n', r"not valid csv"),
    ("a.csv", "1,2\n", r":1: begins with '1'; expected a header"),
    ("a.csv", "anchor,positive,label\nq,p,many\n", r":2: score is 'many'"),
    ("a.csv", 'anchor,positive,negative\nq,p," "\n', r":2: negative is empty"),
    ("a.csv", "id,name,place,when\n1,a,b,c\n", r":2: unknown format .*say which column is which"),
    ("a.csv", "How is gold found?,In a sluice.\n", r":1: begins with 'How is .*expected a header"),
    ("a.tsv", "7\t9\n", r":1: 2 fields without a header; expected a first line"),
    ("a.parquet", "no", r"not readable as Parquet"),
    ("a.xlsx", "no", r"a file of examples is .jsonl, .csv, .tsv or .parquet"),
]


class TestBadFiles:
    @pytest.mark.parametrize(("name", "text", "message"), BAD)
    def test_the_error_names_file_and_line(
        self, name: str, text: str, message: str, tmp_path: Path, dataset: Dataset
    ) -> None:
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message) as raised:
            read(tmp_path / name, dataset)
        assert str(raised.value).startswith(str(tmp_path / name))

    @pytest.mark.parametrize(("name", "comma"), [("a.csv", b","), ("a.tsv", b"\t")])
    def test_bytes_that_are_not_utf8(
        self, name: str, comma: bytes, tmp_path: Path, dataset: Dataset
    ) -> None:
        (tmp_path / name).write_bytes(b"anchor,positive\nq\xff,p\n".replace(b",", comma))
        with pytest.raises(DataError, match=r":2: byte 1 of the line is not UTF-8"):
            read(tmp_path / name, dataset)

    def test_a_row_of_another_format_later(self, tmp_path: Path, dataset: Dataset) -> None:
        with pytest.raises(DataError, match=r":2: no positives: fields are query_id"):
            read(lines(tmp_path / "a.jsonl", [BGE, TEVATRON]), dataset)

    def test_a_file_of_another_collection(self, tmp_path: Path, dataset: Dataset) -> None:
        (tmp_path / "a.tsv").write_text("1\t2\t3\n", encoding="utf-8")
        with pytest.raises(DataError, match="none of the 1 rows names a query and a positive"):
            read(tmp_path / "a.tsv", dataset)

    def test_blank_documents_of_the_dataset_have_no_text(self, tmp_path: Path) -> None:
        data = Dataset.from_memory(
            [Document("a", "", ""), Document("b", "", "b")], {"q": "q"}, {"q": {"a": 1}},
            split="train",
        )  # fmt: skip
        (tmp_path / "a.tsv").write_text("q\ta\tb\n", encoding="utf-8")
        with pytest.raises(DataError, match="has texts for"):
            read(tmp_path / "a.tsv", data)

    def test_nothing_to_beat_is_refused(self, tmp_path: Path, dataset: Dataset) -> None:
        pairs = read(lines(tmp_path / "a.jsonl", [{"query": "q", "pos": ["p"]}]), dataset)
        with pytest.raises(DataError, match="no example has a negative; a cross"):
            refuse_unlearnable(pairs, "a cross-encoder learns from each query's own documents")


class TestConfig:
    def training(self, **changes: Any) -> TrainConfig:
        values = {
            "dataset": "pydocs",
            "output": "runs/x",
            "encoder": {"type": "dense", "model": "m"},
            "loss": {"type": "info_nce"},
        }
        return checked({**values, **changes}, TrainConfig)

    def test_a_section_is_checked_before_any_work(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "rows.jsonl", [BGE])
        check_training(self.training(examples={"file": str(path), "per_query": 3}), "")

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"file": "rows.jsonl", "formt": "bge"}, r"examples.formt: .*did you mean 'format'"),
            ({"file": "no.jsonl"}, r"examples.file: no file no.jsonl"),
            ({"file": "no.jsonl", "format": "bgee"}, r"format: 'bgee'; known: .*did you mean"),
            ({"file": [], "format": "bge"}, r"file: an empty list"),
            ({"file": "x", "per_query": -1}, r"per_query: -1"),
            ({"file": "x", "rows": 0}, r"rows: 0"),
            ({"type": "fil", "file": "x"}, r"unknown type 'fil'.*did you mean 'file'"),
            ({}, r"needs 'file'"),
        ],
    )
    def test_a_bad_section(self, spec: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            check_training(self.training(examples=spec), "")

    def test_every_format_is_documented(self) -> None:
        from sluice.retrieval.training_data.files.examples import FileExamples

        for name in FORMATS:
            assert f"``{name}``" in (FileExamples.__doc__ or "")

    def test_a_near_file_is_named(self, tmp_path: Path) -> None:
        lines(tmp_path / "train.jsonl", [BGE])
        with pytest.raises(ConfigError, match=r"did you mean 'train.jsonl'"):
            check_examples({"file": str(tmp_path / "trian.jsonl")}, "examples")
