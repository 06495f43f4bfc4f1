"""Journeys: YAML in, results out, on a tiny BEIR folder and tiny random models."""

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from small_world import write_beir

import sluice.training
from sluice.encoders import CrossEncoder, DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import duration
from sluice.retrieval import Retriever, Run, evaluate, load_dataset, load_pipeline, run, train
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.unseen import unseen_judgements

TRAINER = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


def experiment(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "train": {
            "ft": {
                "encoder": {"type": "dense", "model": str(bert), "document_length": 24},
                "loss": {"type": "info_nce"},
                "negatives": {"type": "mined", "retriever": "bm25", "per_query": 2},
                "evaluate": {"measures": ["nDCG@10"], "every": 2},
                "trainer": TRAINER,
            },
            "ce": {
                "encoder": {"type": "cross_encoder", "model": str(bert), "max_length": 40},
                "loss": {"type": "localized_softmax"},
                "negatives": {"type": "mined", "retriever": "hybrid", "per_query": 3},
                "trainer": TRAINER,
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}},
            "dense": {"encoder": {"type": "dense", "model": "ft"}, "index": {"type": "flat"}},
            "hnsw": {
                "encoder": {"type": "dense", "model": "ft"},
                "index": {"type": "faiss", "factory": "HNSW16", "metric": "cosine"},
            },
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": "ce"}},
        "pipelines": {
            "bm25": "bm25",
            "dense": "dense",
            "hybrid": "bm25 | hnsw",
            "cascade": "hybrid % 20 >> cross(depth=5)",
        },
        "evaluate": {
            "measures": ["nDCG@10", "R@100"], "baseline": "bm25", "latency_queries": 3,
        },
    }  # fmt: skip


def check_unseen(data: Path, results: dict[str, Any], report: str, shown: str) -> None:
    """Check the figures apart for queries whose relevant documents training did not have."""
    train, test = load_dataset(data, "train"), load_dataset(data, "test")
    seen = {d for grades in train.qrels.values() for d, grade in grades.items() if grade}
    rest = [
        query
        for query, grades in test.qrels.items()
        if not seen & {d for d, grade in grades.items() if grade}
    ]
    assert 0 < len(rest) < len(test.qrels)
    for system in results["unseen"]["systems"]:
        saved = Run.load(data.parent / "out" / "runs" / f"{system['name']}.trec.gz")
        values = evaluate(saved, test, ["nDCG@10"]).per_query["nDCG@10"]
        expected = np.mean([values[query] for query in rest])
        assert system["nDCG@10"] == pytest.approx(expected, abs=1e-12)
        assert f"{system['name']} {expected:.4f}" in " ".join(shown.split())
    assert len(results["unseen"]["systems"]) == 4
    assert "## Where training had no relevant document of the query" in report
    few = f"as such; nDCG@10 over the other {len(rest)}"
    assert f"Training saw a relevant document of {len(test.qrels) - len(rest)} queries {few}" in (
        " ".join(shown.split())
    )


@pytest.mark.parametrize("nodes", [[], ["retrievers.bm25"], ["train.own"]])
def test_without_training_on_its_judgements_no_query_is_apart(
    nodes: list[str], tmp_path: Path, bert: Path
) -> None:
    values = experiment(tmp_path, bert)
    values["train"]["own"] = {**values["train"]["ft"], "examples": {"type": "corpus"}}
    config = checked(values, ExperimentConfig)
    test = load_dataset(values["dataset"], "test")
    assert unseen_judgements(config, ["train.ft"], test)
    assert not unseen_judgements(config, nodes, test)
    assert not unseen_judgements(config, ["train.ft"], load_dataset(values["dataset"], "train"))


def test_an_experiment_from_yaml_to_results(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Any]] = []  # encoders of the hybrid that negatives are mined with
    held, let_go, fit = [], Retriever.let_go, sluice.training.fit

    def closing(retriever: Retriever, **options: Any) -> None:
        loaded.append(weakref.ref(retriever.encoder))
        let_go(retriever, **options)

    def fitted(*parts: Any, **options: Any) -> Any:
        gc.collect()
        held.append([each() is not None for each in loaded])
        return fit(*parts, **options)

    monkeypatch.setattr(Retriever, "let_go", closing)
    monkeypatch.setattr("sluice.training.fit", fitted)
    config = experiment(tmp_path, bert)
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    table, made = run(file)
    output = tmp_path / "out"
    results = json.loads((output / "results.json").read_text())
    assert [s["name"] for s in results["systems"]] == ["bm25", "dense", "hybrid", "cascade"]
    for system in results["systems"]:
        assert set(system["measures"]) == {"nDCG@10", "R@100"}
        assert system["latency_ms"]["p50"] > 0
        assert system["index_bytes"] > 0
        assert system["documents"] == 40
        saved = Run.load(output / "runs" / f"{system['name']}.trec.gz")
        assert len(saved) == 8
    assert results["origin"]["config"]["seed"] == 13
    report = (output / "report.md").read_text()
    check_unseen(tmp_path / "data", results, report, str(table))
    assert "| cascade |" in report
    names = ["retrievers.bm25", "train.ft", "retrievers.dense", "retrievers.hnsw", "train.ce"]
    assert {part["part"] for part in results["parts"]} == set(names)
    for part in results["parts"]:
        assert part["seconds"] > 0
        assert 10**7 < part["peak_memory_bytes"] < 10**12
        assert f"| {part['part']} | {duration(part['seconds'])} | " in report
    assert "cascade" in str(table)
    lines = (output / "training" / "ft" / "metrics.jsonl").read_text().splitlines()
    assert any("train_loss" in json.loads(line) for line in lines)
    assert not list((output / "training").rglob("checkpoint-*"))
    # what searches only is not in memory while a model is trained
    assert held == [[False], [False] * 4]  # bm25; bm25, dense, hnsw
    # what is made is not made again
    stamps = {p: p.stat().st_mtime_ns for p in output.rglob("model.safetensors")}
    _, again = run(file)
    assert stamps == {p: p.stat().st_mtime_ns for p in output.rglob("model.safetensors")}
    assert (
        json.loads((output / "results.json").read_text())["systems"][3]["measures"]
        == (results["systems"][3]["measures"])
    )
    assert json.loads((output / "results.json").read_text())["parts"] == results["parts"]
    # and the pipeline opens from the folder alone
    queries = made.dataset("test").queries
    assert dict(load_pipeline(output, "cascade").run(queries)) == dict(
        again.stage("cascade").run(queries)
    )


def test_a_changed_setting_makes_only_what_follows_from_it(tmp_path: Path, bert: Path) -> None:
    config = experiment(tmp_path, bert)
    for name in ("ce",):
        config["train"].pop(name)
    config["rerankers"], config["pipelines"] = {}, {"bm25": "bm25", "dense": "dense"}
    run(config)
    heads = {n: tmp_path / "out" / "retrievers" / n / "retriever.json" for n in ("bm25", "dense")}
    before = {name: path.stat().st_mtime_ns for name, path in heads.items()}
    config["train"]["ft"]["trainer"] = {**TRAINER, "max_steps": 2}
    run(config)
    after = {name: path.stat().st_mtime_ns for name, path in heads.items()}
    assert after["bm25"] == before["bm25"]
    assert after["dense"] > before["dense"]


def test_training_alone_gives_a_folder_that_loads(tmp_path: Path, bert: Path) -> None:
    data = str(write_beir(tmp_path / "data"))
    lists = {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}
    common = {
        "dataset": data,
        "negatives": {"type": "mined", "retriever": lists, "per_query": 2},
        "trainer": TRAINER,
    }
    dense = train(
        {
            **common, "output": str(tmp_path / "dense"),
            "encoder": {"type": "dense", "model": str(bert)}, "loss": {"type": "info_nce"},
        }
    )  # fmt: skip
    assert dense == tmp_path / "dense" / "model"
    assert DenseEncoder.from_pretrained(dense).encode_queries(["gold"]).shape == (1, 32)
    assert json.loads((dense / "manifest.json").read_text())["steps"] == 3
    cross = train(
        {
            **common, "output": str(tmp_path / "cross"),
            "encoder": {"type": "cross_encoder", "model": str(bert)}, "loss": {"type": "bce"},
            "evaluate": {"measures": ["RR@10"], "every": 2},
        }
    )  # fmt: skip
    assert len(CrossEncoder.from_pretrained(cross).score([("gold", "river")])) == 1


def test_a_reranker_that_compares_states_is_trained_kept_and_used(
    tmp_path: Path, bert: Path
) -> None:
    encoder = {"type": "cross_encoder", "model": str(bert), "head": "similarity", "max_length": 40}
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "train": {
            "ce": {
                "encoder": encoder,
                "loss": "localized_softmax",
                "negatives": {
                    "type": "mined",
                    "retriever": "bm25",
                    "mode": "naive",
                    "per_query": 2,
                },
                "freeze": {"layers": 1, "embeddings": True},
                "head_learning_rate": 1e-2,
                "evaluate": {"measures": ["RR@10"], "every": 2, "shares": [0.5]},
                "trainer": TRAINER,
            }
        },
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}},
        "rerankers": {"cross": {"type": "cross_encoder", "model": "ce"}},
        "pipelines": {"bm25": "bm25", "cascade": "bm25 >> cross(depth=5)"},
    }
    run(config)
    folder = tmp_path / "out" / "models" / "ce"
    history = json.loads((folder / "manifest.json").read_text())
    assert history["best_step"] is not None
    card = (folder / "README.md").read_text()
    assert "With sentence-transformers, equally" in card
    assert "trust_remote_code=True" in card
    query = "gold in the river"
    by_name = load_pipeline(tmp_path / "out", "cascade").search(query, k=5)
    trained = CrossEncoder.from_pretrained(folder)
    assert trained.similarity_head is not None
    assert trained.max_length == 40
    expected = trained.score([(query, f"{hit.title} {hit.text}".strip()) for hit in by_name])
    np.testing.assert_allclose([hit.score for hit in by_name], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("written", "name"), [("ndcg@10", "nDCG@10"), ("ndcg_cut_10", "nDCG@10"), ("mrr@10", "RR@10")]
)
def test_the_measure_that_chooses_the_model_may_be_spelled_as_in_other_tools(
    tmp_path: Path, bert: Path, written: str, name: str
) -> None:
    folder = train(
        {
            "dataset": str(write_beir(tmp_path / "data")),
            "output": str(tmp_path / "out"),
            "encoder": {"type": "dense", "model": str(bert), "document_length": 24},
            "loss": {"type": "info_nce"},
            "evaluate": {"measures": [written, "R@5"], "every": 1, "patience": 2, "margin": 0},
            "trainer": TRAINER,
        }
    )
    lines = (tmp_path / "out" / "training" / "metrics.jsonl").read_text().splitlines()
    values = [row[f"eval_{name}"] for row in map(json.loads, lines) if f"eval_{name}" in row]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["best_value"] == pytest.approx(max(values))
    assert manifest["best_step"] is not None


def test_splade_trains_with_a_regulariser(tmp_path: Path, masked_bert: Path) -> None:
    from sentence_transformers import SparseEncoder

    folder = train(
        {
            "dataset": str(write_beir(tmp_path / "data")),
            "output": str(tmp_path / "out"),
            "encoder": {"type": "splade", "model": str(masked_bert)},
            "loss": {"type": "info_nce", "similarity": "dot"},
            "sparsity": {
                "query": {"type": "l1", "weight": 1.0e-3},
                "document": {"type": "flops", "weight": 1.0e-3},
            },
            "trainer": TRAINER,
        }
    )
    assert SparseEncoder(str(folder), device="cpu").encode(["gold"]).shape[0] == 1


def test_training_on_what_is_tested_is_refused(tmp_path: Path, bert: Path) -> None:
    data = write_beir(tmp_path / "data")
    job = {
        "dataset": {"name": str(data), "split": "test"},
        "output": str(tmp_path / "out"),
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": {"type": "info_nce"},
        "trainer": TRAINER,
    }
    with pytest.raises(ConfigError, match="training on the test is refused"):
        train(job)
    config = experiment(tmp_path, bert)
    config["evaluate"]["split"] = "train"
    with pytest.raises(ConfigError, match="training on the test is refused"):
        run(config)
    (data / "qrels" / "test.tsv").write_bytes((data / "qrels" / "train.tsv").read_bytes())
    config["evaluate"]["split"] = "test"
    with pytest.raises(ConfigError, match="training on the test is refused"):
        Experiment(checked(config, ExperimentConfig)).model("ft")
    assert not (tmp_path / "out" / "models").exists()


def asked_again(data: Path, texts: dict[str, str], rows: int) -> None:
    """Give a BEIR folder ``rows`` more test queries, and these with the texts of train's."""
    with (data / "queries.jsonl").open("a") as stream:
        for name in range(rows):
            stream.write(json.dumps({"_id": f"more{name}", "text": f"of its own {name}"}) + "\n")
        for name, text in texts.items():
            stream.write(json.dumps({"_id": name, "text": text}) + "\n")
    with (data / "qrels" / "test.tsv").open("a") as stream:
        for name in (*(f"more{number}" for number in range(rows)), *texts):
            stream.write(f"{name}\td0\t1\n")


def train_query(data: Path) -> str:
    first = json.loads((data / "queries.jsonl").read_text().splitlines()[0])
    assert first["_id"] == "q0"
    return str(first["text"])


@pytest.mark.parametrize("written", ["{}", "  {} ", "{}\u00a0", "upper"])
def test_a_tested_query_under_another_id_is_found_however_it_is_written(
    tmp_path: Path, bert: Path, written: str
) -> None:
    config = experiment(tmp_path, bert)
    data = Path(config["dataset"])
    text = train_query(data)
    given = text.upper() if written == "upper" else written.format(text.replace(" ", "  "))
    asked_again(data, {"other": given}, rows=0)
    with pytest.raises(ConfigError, match=r"test is refused: 1 of 9 tested queries .*'other'"):
        Experiment(checked(config, ExperimentConfig)).refuse_tested()


def test_a_collection_may_ask_a_few_queries_in_both_splits(
    tmp_path: Path, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = experiment(tmp_path, bert)
    data = Path(config["dataset"])
    asked_again(data, {"other": train_query(data)}, rows=11)
    Experiment(checked(config, ExperimentConfig)).refuse_tested()
    assert "1 of 20 tested queries (such as 'other') have the text of a train query" in caplog.text
    caplog.clear()
    # the very query, id and text, is a split that overlaps: refused however many it is one of
    with (data / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q0\td0\t1\n")
    asked_again(data, {}, rows=0)
    with pytest.raises(ConfigError, match="training on the test is refused"):
        Experiment(checked(config, ExperimentConfig)).refuse_tested()


def test_blank_queries_are_not_the_same_query(tmp_path: Path, bert: Path) -> None:
    config = experiment(tmp_path, bert)
    data = Path(config["dataset"])
    asked_again(data, {"blank": " ", "empty": ""}, rows=0)
    with (data / "qrels" / "train.tsv").open("a") as stream:
        stream.write("nothing\td0\t1\n")
    with (data / "queries.jsonl").open("a") as stream:
        stream.write(json.dumps({"_id": "nothing", "text": "  "}) + "\n")
    Experiment(checked(config, ExperimentConfig)).refuse_tested()


def test_a_class_of_your_own_works_from_your_yaml_and_not_from_a_folder(tmp_path: Path) -> None:
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"own": {"encoder": {"type": "small_world:WordEncoder", "dim": 32}}},
        "pipelines": {"own": "own % 5"},
        "evaluate": {"latency_queries": 0},
    }
    for _ in range(2):  # built, then opened
        table, _ = run(config)
        assert table.rows["own"]["nDCG@10"] > 0
    with pytest.raises(ConfigError, match="never runs code that it names"):
        load_pipeline(tmp_path / "out", "own")
    shutil.rmtree(tmp_path / "data")  # a pipeline opens without its dataset, wherever it lies
    (tmp_path / "out").rename(tmp_path / "moved")
    stage = load_pipeline(tmp_path / "moved", "own", allow=["small_world:WordEncoder"])
    assert len(stage.search("gold", k=10)) == 5


def test_a_training_that_starts_anew_removes_its_own_files_only(tmp_path: Path, bert: Path) -> None:
    job = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": {"type": "info_nce"},
        "trainer": {**TRAINER, "save_steps": 1},
    }
    train(job)
    mine = tmp_path / "out" / "training" / "thesis.tex"
    mine.write_text("mine")
    first = (tmp_path / "out" / "training" / "metrics.jsonl").read_text()
    train({**job, "seed": 14})
    assert mine.read_text() == "mine"
    assert (tmp_path / "out" / "training" / "metrics.jsonl").read_text() != first
