"""What does not go together in a training is refused before work; what does, works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_training import MINED, short_training
from small_world import documents

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import run, train
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

LIVE = {"type": "live", "depth": 8}
SHORT = {"max_steps": 2, "per_device_train_batch_size": 4}


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return short_training(tmp_path, bert, trainer=SHORT)


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, str]:
    """Return a training file of texts that the corpus has under other ids."""
    lines = [
        json.dumps(
            {"query": " ".join(d.text.split()[:3]), "pos": [d.text], "neg": [documents()[0].text]}
        )
        for d in documents()[1:9]
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    return {"type": "file", "file": str(file)}


def scores(path: Path, values: list[float]) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [(f"q{q}", f"d{d:02d}") for q in range(12) for d in range(40)]
    table = {
        "query_id": [query for query, _ in rows],
        "doc_id": [document for _, document in rows],
        "score": [values[place % len(values)] for place in range(len(rows))],
    }
    parquet.write_table(pa.table(table), path)
    return str(path)


@pytest.mark.parametrize("sampling", ["random", "cyclic"])
def test_a_mode_that_draws_may_be_refreshed(config: dict[str, Any], sampling: str) -> None:
    negatives = {**MINED, "mode": "window", "refresh": "epoch", "sampling": sampling}
    trained = checked({**config, "negatives": negatives}, TrainConfig)
    if sampling == "random":
        check_training(trained, "")
    else:
        with pytest.raises(ConfigError, match="would mine the same"):
            check_training(trained, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"teacher": "./nowhere", "loss": {"type": "kl_div"}}, "teacher: no model folder"),
        ({"negatives": {**MINED, "judge": "self"}}, "cannot judge itself"),
        ({"negatives": {**MINED, "judge": ["/nowhere/a", "b"]}}, "no model folder or run file"),
    ],
)
def test_models_that_are_not_there_leave_nothing_behind(
    config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train({**config, "negatives": MINED, **options})
    assert not Path(config["output"]).exists()


def test_all_frozen(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="freeze: every parameter is frozen"):
        train({**config, "freeze": {"layers": 2, "embeddings": True}})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_named(
    config: dict[str, Any], tmp_path: Path, bad: float
) -> None:
    teacher = scores(tmp_path / "scores.parquet", [1.0, 0.5, bad])
    options = {"loss": {"type": "margin_mse"}, "negatives": MINED, "teacher": teacher}
    with pytest.raises(DataError, match=f"row 2: the score is {bad}, expected a finite"):
        train({**config, **options})


def test_another_file_than_scores_is_refused_before_mining(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "scores.parquet").write_text("no parquet")
    options = {"negatives": MINED, "teacher": str(tmp_path / "scores.parquet")}
    with pytest.raises(DataError, match="not readable as parquet"):
        train({**config, **options, "loss": {"type": "margin_mse"}})
    assert not Path(config["output"]).exists()


def test_a_bad_training_file_is_found_before_a_corpus_is_indexed(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"query": "a", "pos": []}\n')
    examples = {"type": "file", "file": str(tmp_path / "bad.jsonl")}
    with pytest.raises(DataError, match=r"bad\.jsonl:1: no positive"):
        train({**config, "examples": examples, "negatives": MINED})
    assert not (Path(config["output"]) / "retrievers").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"negatives": MINED},
        {"evaluate": {"every": 1, "documents": 10}},
        {"negatives": {**MINED, "retriever": "self", "refresh": 1}},
    ],
    ids=["alone", "mined", "evaluated", "refreshed"],
)
def test_examples_need_no_train_split(
    config: dict[str, Any], rows: dict[str, str], options: dict[str, Any]
) -> None:
    (Path(config["dataset"]) / "qrels" / "train.tsv").unlink()
    with pytest.raises(DataError, match="no split 'train'"):
        train(config)
    assert open_encoder(train({**config, "examples": rows, **options})).dim == 32


def test_an_experiment_over_a_corpus_without_train_split(
    config: dict[str, Any], rows: dict[str, str]
) -> None:
    (Path(config["dataset"]) / "qrels" / "train.tsv").unlink()
    section = {key: config[key] for key in ("encoder", "loss", "trainer")}
    table, _ = run(
        {
            "dataset": config["dataset"], "output": config["output"],
            "train": {"ft": {**section, "examples": rows}},
            "retrievers": {"dense": {"encoder": {"type": "dense", "model": "ft"}}},
            "evaluate": {"latency_queries": 0},
        }
    )  # fmt: skip
    assert "dense" in str(table)


def test_live_candidates_of_a_file_by_ids_and_by_text(
    config: dict[str, Any], rows: dict[str, str], tmp_path: Path
) -> None:
    live = {**config, "loss": {"type": "adore"}, "negatives": LIVE}
    with pytest.raises(DataError, match="none of 8 queries"):
        train({**live, "examples": rows})
    (Path(config["dataset"]) / "qrels" / "train.tsv").unlink()
    file = tmp_path / "ids.tsv"  # relevance that only the file knows
    file.write_text("".join(f"q{n}\td{3 * n:02d}\td{3 * n + 1:02d}\n" for n in range(8)))
    folder = train({**live, "examples": {"type": "file", "file": str(file)}})
    assert open_encoder(folder).dim == 32


def test_what_only_tells_does_not_train_again(config: dict[str, Any]) -> None:
    folder = train(config)
    made = read_json(folder / "manifest.json")
    told = {**config["trainer"], "logging_steps": 1, "disable_tqdm": True}
    train({**config, "trainer": told})
    assert read_json(folder / "manifest.json") == made
    train({**config, "trainer": {**told, "max_steps": 3}})
    assert read_json(folder / "manifest.json") != made
