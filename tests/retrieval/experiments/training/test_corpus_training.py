"""Training on a corpus without judgements: what is held out, and what chooses the model."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_world import LengthScorer, documents, write_beir

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import Run, load_dataset, run, train
from sluice.retrieval.config.sections import DevSection, TrainConfig, checked
from sluice.retrieval.datasets.dataset import training_splits
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation
from sluice.retrieval.experiments.training.summary import training_summary
from sluice.retrieval.training_data.own_pairs import training_data

BM25 = {"encoder": {"type": "bm25"}}
TAUGHT = {"type": "corpus", "retriever": BM25, "candidates": 2, "scale": 5.0}


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    data = write_beir(tmp_path / "data")
    for split in ("train", "dev"):
        (data / "qrels" / f"{split}.tsv").unlink()
    return {
        "dataset": str(data),
        "output": str(tmp_path / "out"),
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": "info_nce",
        "examples": "corpus",
        "evaluate": {"every": 2},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1},
    }


@pytest.mark.thorough
def test_pairs_of_held_out_documents_are_measured_and_the_start_is_kept(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture, bert: Path
) -> None:
    better = {"max_steps": 12, "learning_rate": 1e-3, "per_device_train_batch_size": 16}
    config |= {"trainer": better, "evaluate": {"every": 4}}
    with caplog.at_level(logging.INFO, "sluice"):
        folder = train(config)
    said = re.search(r"no judged dev queries: (\d+) pairs from 4 documents .* show", caplog.text)
    assert said is not None
    facts = read_json(folder / "manifest.json")["summary"]
    assert facts["judged_by"] == (
        f"{said[1]} queries made from held-out documents of data, without judgements"
    )
    assert facts["held_out"] == int(said[1])
    texts = ["gold river", "about stone"]
    start = DenseEncoder.from_pretrained(bert).encode_documents(texts)
    assert np.array_equal(open_encoder(folder).encode_documents(texts), start)
    values = read_json(folder.parent / "training" / "kept.json")
    assert values["1.0"][0] > values["0.0"][0]  # they like the trained weights better
    assert "training: no judgement says that it helped: the gain of +" in caplog.text
    assert "on dev: no judgement, the start is kept" in training_summary(folder)
    assert f"judged by {facts['judged_by']}" in training_summary(folder)
    every = re.search(r"data: (\d+) pairs from the corpus", caplog.text)
    assert every is not None
    assert facts["examples"] == int(every[1]) - int(said[1])
    # the first of the tested queries' words stand in the documents, in another order
    assert facts["overlap"]["queries"] == 8
    assert "of 8 tested queries none is in a training text" in training_summary(folder)
    asked = train({**config, "evaluate": {"every": 4, "by": "examples", "margin": 0}})
    assert not np.array_equal(open_encoder(asked).encode_documents(texts), start)


@pytest.mark.parametrize("kind", ["corpus", "ict", "bfs"])
def test_no_pair_of_a_held_out_document_is_trained_on(
    config: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    data = write_beir(tmp_path / "more", count=40)
    lines = [
        {"_id": d.id, "title": f"About {d.id}", "text": f"{d.text} one. And {d.id} is another one."}
        for d in documents(40)
    ]
    (data / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = checked({**config, "examples": kind, "evaluate": {"by": "examples"}}, TrainConfig)
    dataset = load_dataset(data, None)
    made = training_data(section, dataset, 13)
    assert made.held_out
    assert len(made.left_out) == 4
    judged = {doc for grades in made.dev.qrels.values() for doc in grades}
    assert judged == made.left_out
    assert [d.id for d in made.dev.corpus] == [d.id for d in dataset.corpus]
    if kind == "corpus":
        assert {d for e in made.examples for d in e.relevant}.isdisjoint(made.left_out)
    assert training_data(section, dataset, 13).left_out == made.left_out
    assert training_data(section, dataset, 14).left_out != made.left_out


def test_later_epochs_leave_the_held_out_documents_out(config: dict[str, Any]) -> None:
    trainer = {"num_train_epochs": 2, "per_device_train_batch_size": 16, "logging_steps": 1}
    folder = train({**config, "examples": {"type": "bfs"}, "trainer": trainer})
    (kept,) = (folder.parent / "training").glob("examples-*.jsonl")
    trained = {doc for line in kept.read_text().splitlines() for doc in json.loads(line)[3]}
    section = checked({**config, "examples": {"type": "bfs"}}, TrainConfig)
    left_out = training_data(section, load_dataset(config["dataset"], None), 13).left_out
    assert left_out
    assert trained.isdisjoint(left_out)


@pytest.mark.thorough
def test_a_pipeline_filters_and_teaches_in_an_experiment(
    config: dict[str, Any], tmp_path: Path, bert: Path
) -> None:
    section = {key: value for key, value in config.items() if key not in ("dataset", "output")}
    section |= {
        "examples": {"type": "corpus", "retriever": "hybrid", "consistency": 5, "candidates": 2},
        "loss": {"type": "kl_div"},
    }
    experiment = {
        "dataset": config["dataset"], "output": config["output"], "train": {"ft": section},
        "retrievers": {
            "bm25": BM25, "start": {"encoder": {"type": "dense", "model": str(bert)}},
            "dense": {"encoder": {"type": "dense", "model": "ft"}},
        },
        "pipelines": {"hybrid": "bm25 | start", "dense": "dense"},
        "evaluate": {"latency_queries": 0},
    }  # fmt: skip
    run(experiment)
    manifest = tmp_path / "out" / "models" / "ft" / "manifest.json"
    facts = read_json(manifest)["summary"]
    assert 0 < facts["examples"] < 72  # some are not found
    assert facts["source"] == "corpus over data"
    made = manifest.stat().st_mtime_ns
    run(experiment)
    assert manifest.stat().st_mtime_ns == made
    experiment["pipelines"]["hybrid"] = "bm25"
    run(experiment)  # what filters the pairs is part of the recipe
    assert manifest.stat().st_mtime_ns != made


def test_judgements_choose_where_there_are_any(config: dict[str, Any], tmp_path: Path) -> None:
    data = write_beir(tmp_path / "judged")
    folder = train({**config, "dataset": str(data)})
    facts = read_json(folder / "manifest.json")["summary"]
    assert facts["judged_by"] == "judgements of 8 queries of judged"
    again = train({**config, "dataset": str(data), "evaluate": {"every": 2, "by": "examples"}})
    facts = read_json(again / "manifest.json")["summary"]
    assert "made from held-out documents of judged, without judgements" in facts["judged_by"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": None, "evaluate": {"by": "examples"}}, "evaluate.by: examples: none has"),
        ({"encoder": {"type": "splade", "model": "m"}, "loss": "masked_language",
          "examples": "texts", "evaluate": {"by": "examples"}}, "evaluate.by: examples: none has"),
        ({"evaluate": {"by": "test"}}, "evaluate.by: 'test'; expected"),
        ({"examples": {"type": "corpus", "retriever": "bm25"}}, "examples.retriever: 'bm25' does"),
        ({"examples": {"type": "corpus", "retriever": "self"}}, "examples.retriever: 'self'; exp"),
        ({"examples": {"type": "corpus", "retriever": {"encoder": {"type": "bm"}}}},
         "examples.retriever.encoder.type: unknown type 'bm'"),
        ({"loss": "kl_div"}, "examples.candidates: missing: kl_div learns from a teacher's scores"),
        ({"examples": TAUGHT}, "examples.scale: is of the list's scores, which info_nce does not"),
        ({"examples": TAUGHT, "loss": "kl_div", "teacher": "m"}, "scores, that the teacher's repl"),
        ({"evaluate": {"by": "judgements"}}, "no split 'dev'"),
    ],
)  # fmt: skip
def test_bad_settings(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        train({**config, **changes})


# dev queries


def judged(folder: Path, rows: list[str]) -> Path:
    data = write_beir(folder)
    text = "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
    (data / "qrels" / "dev.tsv").write_text(text)
    return data


@pytest.fixture
def supervised(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "examples"}


def test_dev_without_a_relevant_document_is_refused(
    supervised: dict[str, Any], tmp_path: Path, sluice: Call
) -> None:
    data = judged(tmp_path / "a", ["q12\td00\t0", "q13\td01\t0"])
    message = "evaluate: a: none of its 2 dev queries has a relevant document in .*dev.tsv"
    with pytest.raises(DataError, match=message):
        train({**supervised, "dataset": str(data)})
    assert not (tmp_path / "out" / "training").exists()
    (tmp_path / "x.yaml").write_text(json.dumps({**supervised, "dataset": str(data)}))
    code, _, err = sluice("train", tmp_path / "x.yaml")
    assert (code, "so every model scores 0" in err) == (2, True)


@pytest.mark.parametrize(
    ("measure", "level", "message"),
    [
        ("P(rel=2)@5", 1, r"relevant document \(of grade 2 or more, for P\(rel=2\)@5\) in .*d"),
        ("RR@10", 2, r"relevant document \(of grade 2 or more, for RR\(rel=2\)@10\) in .*dev"),
        ("nDCG@10", 2, ""),
    ],
)
def test_the_level_of_the_measure_decides_what_is_relevant_on_dev(
    supervised: dict[str, Any], tmp_path: Path, measure: str, level: int, message: str
) -> None:
    data = judged(tmp_path / "a", ["q12\td00\t1", "q13\td01\t1"])
    supervised["dataset"] = {"name": str(data), "level": level}
    supervised["evaluate"] = {"every": 2, "measures": [measure]}
    if message:
        with pytest.raises(DataError, match=message):
            train(supervised)
    else:
        assert read_json(train(supervised) / "manifest.json")["summary"]["dev"] is not None


def test_dev_is_measured_at_the_level_of_the_dataset(
    supervised: dict[str, Any], tmp_path: Path
) -> None:
    rows = ["q12\td00\t1", "q12\td01\t2", "q13\td01\t2"]
    data = load_dataset({"name": str(judged(tmp_path / "a", rows)), "level": 2}, "dev")
    section = checked({"measures": ["R@40", "R(rel=1)@40", "nDCG@10"]}, DevSection)
    candidates = Run({"q12": {"d00": 2.0}, "q13": {"d01": 1.0}})
    measured = dev_evaluation(data, section, seed=1, candidates=candidates)(LengthScorer())
    assert measured == pytest.approx({"R@40": 0.5, "nDCG@10": measured["nDCG@10"]})
    assert training_splits(data, 1)[1].level == 2


def test_a_cross_encoder_with_corpus_candidates_reranks_what_searched_them(
    supervised: dict[str, Any], tmp_path: Path, pair_bert: Path
) -> None:
    supervised |= {
        "dataset": str(judged(tmp_path / "a", ["q12\td00\t1", "q13\td01\t1"])),
        "encoder": {"type": "cross_encoder", "model": str(pair_bert)},
        "loss": "bce",
    }
    facts = read_json(
        train({**supervised, "examples": {"type": "corpus", "retriever": BM25, "candidates": 2}})
        / "manifest.json"
    )["summary"]
    assert facts["dev"] is not None
    assert facts["judged_by"] == "judgements of 2 queries of a"
    with pytest.raises(ConfigError, match=r"reranks what a retriever finds; give negatives or ex"):
        train({**supervised, "examples": "corpus"})


def test_dev_documents_of_another_corpus_are_refused(
    supervised: dict[str, Any], tmp_path: Path
) -> None:
    data = judged(tmp_path / "a", ["q12\tx00\t1", "q13\tx01\t1"])
    with pytest.raises(
        DataError, match=r"none of the 2 documents .* \(such as 'x00'\) is in the c"
    ):
        train({**supervised, "dataset": str(data)})


def test_a_single_dev_query_is_warned_of(
    supervised: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = judged(tmp_path / "a", ["q12\td00\t1", "q13\td01\t0"])
    train({**supervised, "dataset": str(data)})
    assert caplog.text.count("evaluate: a: a single dev query (q12) chooses the model") == 1


def test_dev_equal_to_test_is_refused(supervised: dict[str, Any], tmp_path: Path) -> None:
    data = write_beir(tmp_path / "a")
    (data / "qrels" / "dev.tsv").write_text((data / "qrels" / "test.tsv").read_text())
    message = (
        r"^dataset: choosing a model by the test is refused: 8 of 8 tested queries \(such as "
        r"'q20'\) are among the dev queries, by text; use separate splits"
    )
    with pytest.raises(ConfigError, match=message):
        train({**supervised, "dataset": str(data)})
    trained = {k: v for k, v in supervised.items() if k not in ("dataset", "output")}
    experiment = {
        "dataset": str(data), "output": supervised["output"], "train": {"ft": trained},
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "ft"}}},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        run(experiment)
    assert not (tmp_path / "out" / "training").exists()


def test_with_sparsity_pairs_of_the_corpus_choose_no_checkpoint(
    config: dict[str, Any], masked_bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config["encoder"] = {"type": "splade", "model": str(masked_bert)}
    config["sparsity"] = {"document": {"type": "flops", "weight": 1e-3}}
    folder = train(config)
    assert "the last weights are kept, since the start has another number of terms" in caplog.text
    assert "on dev: no judgement, the last weights are kept" in training_summary(folder)
    assert read_json(folder / "manifest.json")["best_step"] == 2


def test_a_page_that_all_link_to_cannot_be_held_out(config: dict[str, Any], tmp_path: Path) -> None:
    texts = {f"d{n}": f"Item number {n} is about the great hub page." for n in range(4)}
    rows = [{"_id": "hub", "title": "Great Hub Page", "text": "This is the place."}]
    rows += [{"_id": name, "title": "", "text": text} for name, text in texts.items()]
    folder = tmp_path / "star"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config |= {"dataset": str(folder), "examples": "wlp"}
    said = "held out for dev \\(such as 'hub'\\), and none is left to train on"
    with pytest.raises(DataError, match=said):  # one of five is held out: by these seeds the hub
        for seed in range(20):
            section = checked({**config, "seed": seed}, TrainConfig)
            training_data(section, load_dataset(str(folder), None), seed)
