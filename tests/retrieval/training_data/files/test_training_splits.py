"""Which split a training run learns from, and which one evaluates it meanwhile."""

import json
from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.training_data.files.corpus_examples import splits_of

DOCUMENTS = [Document(f"d{n}", "", f"text {n}") for n in range(4)]
VALUES = {
    "dataset": "x", "output": "x", "encoder": {"type": "dense", "model": "m"}, "loss": "info_nce",
}  # fmt: skip


def data(queries: int) -> Dataset:
    """A train split of so many queries, without a dev split."""
    texts = {f"q{n}": f"query {n}" for n in range(queries)}
    qrels = {query: {"d0": 1} for query in texts}
    return Dataset.from_memory(DOCUMENTS, texts, qrels, split="train")


def test_files_need_no_second_query_where_nothing_is_evaluated() -> None:
    config = checked({**VALUES, "examples": "pairs.csv"}, TrainConfig)
    train, _ = splits_of(config, data(1), 13)
    assert (train.split, list(train.queries)) == ("train", ["q0"])


def test_a_dev_split_is_held_out_where_it_can_be() -> None:
    config = checked({**VALUES, "examples": "pairs.csv"}, TrainConfig)
    train, dev = splits_of(config, data(20), 13)
    assert (len(train.queries), len(dev.queries)) == (18, 2)


@pytest.mark.parametrize("more", [{"examples": "a.csv", "evaluate": {}}, {}])
def test_one_query_cannot_be_trained_on_and_evaluated(more: dict) -> None:
    train, dev = splits_of(checked({**VALUES, **more}, TrainConfig), data(1), 13)
    with pytest.raises(DataError, match="holding out a dev split"):
        _ = [train.queries, dev.queries]


def test_an_experiment_with_one_training_query_and_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", {"d0": "gold"}), ("queries", {"q0": "what", "q1": "where"})):
        lines = [json.dumps({"_id": key, "title": "", "text": t}) for key, t in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    for split, query in (("train", "q0"), ("test", "q1")):
        header = "query-id\tcorpus-id\tscore\n"
        (folder / "qrels" / f"{split}.tsv").write_text(f"{header}{query}\td0\t1\n")
    (tmp_path / "a.csv").write_text("query,positive\nq,p\n")
    training = {key: VALUES[key] for key in ("encoder", "loss")}
    config = {
        "dataset": str(folder),
        "output": str(tmp_path / "out"),
        "train": {"ft": {**training, "examples": str(tmp_path / "a.csv")}},
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "ft"}}},
    }
    Experiment(checked(config, ExperimentConfig)).refuse_tested()
