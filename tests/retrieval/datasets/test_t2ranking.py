"""T2Ranking's published layout: passages, queries, grades, pairs for retrieval, and damage."""

from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval import evaluate, load_dataset
from sluice.retrieval.config.file_keys import corpus_contents, training_contents
from sluice.retrieval.runs.run import Run

GRADES = {"10": {"0": 3, "1": 1}, "11": {"2": 2, "0": 0}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As in the repository: tables with a line of names, texts with quotes in them."""
    data = tmp_path / "T2Ranking" / "data"
    data.mkdir(parents=True)
    (data / "collection.tsv").write_text(
        'pid\ttext\n0\t一个 "引号\n1\t蒜蓉\t虾\n2\t天气\n', "utf-8"
    )
    for split in ("train", "dev", "test"):
        (data / f"queries.{split}.tsv").write_text("qid\ttext\n10\t怎么做\n11\t天气如何\n", "utf-8")
    lines = [f"{q}\t0\t{d}\t{g}\n" for q, own in GRADES.items() for d, g in own.items()]
    for split in ("train", "dev"):
        (data / f"qrels.{split}.tsv").write_text("qid\t-\tpid\trel\n" + "".join(lines), "utf-8")
        (data / f"qrels.retrieval.{split}.tsv").write_text("qid\tpid\n10\t0\n11\t2\n", "utf-8")
    return data


def test_the_layout(folder: Path) -> None:
    for name in (folder, folder.parent):
        dev = load_dataset(str(name), "dev")
        assert dev.splits == ["dev", "retrieval.dev", "retrieval.train", "train"]
        texts = [(document.id, document.text) for document in dev.corpus]
        assert texts == [("0", '一个 "引号'), ("1", "蒜蓉\t虾"), ("2", "天气")]
        assert dev.qrels == GRADES
        assert dict(dev.queries) == {"10": "怎么做", "11": "天气如何"}
        pairs = load_dataset(str(name), "retrieval.dev")
        assert pairs.qrels == {"10": {"0": 1}, "11": {"2": 1}}
        assert dict(pairs.queries) == dict(dev.queries)


def test_grades_of_two_and_more_are_relevant_with_level_2(folder: Path) -> None:
    strict = load_dataset({"name": str(folder), "split": "dev", "level": 2})
    run = Run({"10": {"1": 2.0, "0": 1.0}, "11": {"0": 2.0, "2": 1.0}})
    scores = evaluate(run, strict, ["RR@10", "nDCG@10"])
    assert scores.mean["RR(rel=2)@10"] == 0.5  # at rank 2 for both
    loose = evaluate(run, load_dataset(str(folder), "dev"), ["RR@10"])
    assert loose.mean["RR@10"] == 0.75


def test_changed_files_are_other_data(folder: Path) -> None:
    before = corpus_contents(str(folder)), training_contents(str(folder))
    (folder / "queries.train.tsv").write_text("qid\ttext\n10\tanother\n", "utf-8")
    after = corpus_contents(str(folder)), training_contents(str(folder))
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    (folder / "collection.tsv").write_text("pid\ttext\n0\tx\n", "utf-8")
    assert corpus_contents(str(folder)) != before[0]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("collection.tsv", "pid\ttext\n0 one\n", r"collection.tsv:2: expected pid, passage"),
        ("collection.tsv", "", r"collection.tsv: empty"),
        ("collection.tsv", "pid\ttext\n0\ta\n0\tb\n", r"collection.tsv:3: id '0' again"),
        ("queries.dev.tsv", "qid\ttext\n10\t\n", r"queries.dev.tsv:2: expected qid, query"),
        ("qrels.dev.tsv", "qid\t-\tpid\trel\n10\t0\t0\tx\n", r"qrels.dev.tsv:2: grade 'x'"),
    ],
)
def test_damage_is_named(file: str, text: str, message: str, folder: Path) -> None:
    (folder / file).write_text(text, "utf-8")
    with pytest.raises(DataError, match=message):
        dataset = load_dataset(str(folder), "dev")
        _ = dataset.qrels, dict(dataset.queries), list(dataset.corpus)
