"""What is made again and what is not: by settings, by the files they name, by changed documents."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.retrieval import Retriever, index, load_pipeline, run, train
from sluice.retrieval.config.file_keys import Keys, path_contents
from sluice.retrieval.config.sections import ExperimentConfig, RetrieverSection, checked
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.reuse import Dependencies

TRAINER = {"max_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}
BM25 = {"encoder": {"type": "bm25"}}


def config(tmp_path: Path, **parts: Any) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": BM25},
        "evaluate": {"latency_queries": 0},
        **parts,
    }


def training(model: object, lists: object = "bm25") -> dict[str, Any]:
    return {
        "encoder": {"type": "dense", "model": str(model)},
        "loss": {"type": "info_nce"},
        "negatives": {"type": "mined", "retriever": lists, "per_query": 1},
        "trainer": TRAINER,
    }


def keys(values: dict[str, Any], node: str) -> Keys:
    return Dependencies(checked(values, ExperimentConfig)).keys(node)


def touched(file: Path) -> None:
    """Make a file one second younger, its bytes the same."""
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_settings_that_came_later_leave_earlier_models_as_they_are() -> None:
    def recipe(**evaluate: Any) -> str:
        section = {
            "encoder": {"type": "dense", "model": "x"}, "loss": {"type": "info_nce"},
            "evaluate": {"every": 2, **evaluate}, "trainer": {"max_steps": 1},
        }  # fmt: skip
        values = {"dataset": "scifact", "retrievers": {"bm25": BM25}, "train": {"ft": section}}
        return Dependencies(checked(values, ExperimentConfig)).recipe("train.ft")

    usual = recipe()
    assert usual == "63b52c85acc75898963ed7a9b596347b", "of 20 November, before there were shares"
    assert usual == recipe(shares=[], margin=1.0)
    assert len({usual, recipe(shares=[0.5]), recipe(margin=0)}) == 3


@pytest.mark.parametrize(
    ("kind", "asking"),
    [
        ("http_rerank", {"timeout_s": 5, "retries": 0, "backoff_s": 2, "batch_size": 8, "price": 1,
                         "concurrency": 2, "requests_per_minute": 9, "api_key_file": "key"}),
        ("http", {"timeout_s": 5, "retries": 0, "backoff_s": 2, "concurrency": 2}),
    ],
)  # fmt: skip
def test_how_a_server_is_asked_decides_no_recipe(kind: str, asking: dict[str, Any]) -> None:
    def recipe(**options: Any) -> str:
        reranker = {"type": kind, "url": "http://127.0.0.1:9/v1", "model": "m", **options}
        values = {"dataset": "scifact", "retrievers": {"bm25": BM25}, "rerankers": {"r": reranker}}
        return Dependencies(checked(values, ExperimentConfig)).recipe("rerankers.r")

    usual = recipe()
    for name, value in asking.items():
        assert recipe(**{name: value}) == usual, name
    assert len({usual, recipe(model="n"), recipe(url="http://127.0.0.1:9/v2")}) == 3


def test_a_name_and_a_mapping_of_it_have_one_key(tmp_path: Path) -> None:
    values = config(tmp_path)
    name = values["dataset"]
    plain = keys(values, "retrievers.bm25")
    for same in ({"name": name}, {"name": name, "ignore_identical_ids": "auto"}):
        assert keys({**values, "dataset": same}, "retrievers.bm25") == plain
    assert keys({**values, "seed": 14}, "retrievers.bm25").recipe != plain.recipe


@pytest.mark.parametrize(
    ("file", "retriever", "model"),
    [
        ("corpus.jsonl", True, True),
        ("queries.jsonl", False, True),
        ("qrels/train.tsv", False, True),
        ("qrels/dev.tsv", False, True),
        ("qrels/test.tsv", False, False),
    ],
)
def test_keys_follow_the_files_that_matter(
    tmp_path: Path, file: str, retriever: bool, model: bool
) -> None:
    values = config(tmp_path, train={"ft": training(tmp_path / "m", [])})
    values["train"]["ft"]["negatives"] = None
    dense = {"type": "dense", "model": str(tmp_path / "m")}
    for chosen in ("auto", "query_graph"):  # by queries, and linked by them
        values["retrievers"][chosen] = {"encoder": dense, "index": {"type": chosen}}
    nodes = {"retrievers.bm25": retriever, "train.ft": model}
    nodes |= {"retrievers.auto": retriever or model, "retrievers.query_graph": retriever or model}
    before = {node: keys(values, node) for node in nodes}
    touched(tmp_path / "data" / file)
    for node, changes in nodes.items():
        after = keys(values, node)
        assert after.recipe == before[node].recipe
        assert (after.key != before[node].key) == changes


def test_keys_follow_models_runs_and_retriever_folders(tmp_path: Path) -> None:
    model, lists = tmp_path / "m" / "config.json", tmp_path / "lists.trec"
    folder = Retriever.build(DocumentCounter(), [Document("a", "", "x")], path=tmp_path / "r").path
    model.parent.mkdir()
    model.write_text("{}")
    lists.write_text("q1 Q0 d1 1 0.5 t\n")
    values = config(
        tmp_path,
        train={
            "run": training(model.parent, str(lists)),
            "folder": training("some/model", str(folder)),
        },
        retrievers={"dense": {"encoder": {"type": "dense", "model": str(model.parent)}}},
        rerankers={"cross": {"type": "cross_encoder", "model": "run"}},
    )
    nodes = ["train.run", "train.folder", "retrievers.dense", "rerankers.cross"]

    def changed(file: Path) -> list[str]:
        before = {node: keys(values, node).key for node in nodes}
        touched(file)
        return [node for node in nodes if keys(values, node).key != before[node]]

    assert changed(model) == ["train.run", "retrievers.dense", "rerankers.cross"]
    assert changed(lists) == ["train.run", "rerankers.cross"]
    assert changed(folder / "retriever.json") == ["train.folder"]
    assert path_contents("some/model") is None
    assert path_contents(None) is None


class DocumentCounter:
    """An encoder of one dimension."""

    fingerprint = "one"

    def encode_documents(self, texts: list[str]) -> Any:
        import numpy as np

        return np.ones((len(texts), 1), np.float32)

    encode_queries = encode_documents

    def save_pretrained(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)


def test_an_inline_retriever_depends_on_the_model_it_names(tmp_path: Path) -> None:
    inline = {"encoder": {"type": "dense", "model": "a"}}
    values = config(
        tmp_path, train={"a": training("x/one", "bm25"), "b": training("x/two", inline)}
    )
    needs = Dependencies(checked(values, ExperimentConfig))
    assert list(needs.needs("train.b")) == ["train.a"]
    section = checked(inline, RetrieverSection)
    before = keys(values, "train.b"), needs.keys_of(section)
    values["train"]["a"]["trainer"] = {**TRAINER, "max_steps": 2}
    after = Dependencies(checked(values, ExperimentConfig)).keys_of(section)
    assert keys(values, "train.b").recipe != before[0].recipe
    assert after.recipe != before[1].recipe


def test_pydocs_is_keyed_by_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**config(tmp_path), "dataset": "pydocs"}
    before = keys(values, "retrievers.bm25")
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    assert keys(values, "retrievers.bm25").key != before.key


def test_a_changed_corpus_is_indexed_again(tmp_path: Path) -> None:
    values = config(tmp_path)
    assert len(index(values)[0]) == 40
    write_beir(tmp_path / "data", 30)
    assert len(index(values)[0]) == 30


def test_other_settings_are_indexed_again(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [
        {},
        {"index": {"type": "inverted", "fidelity": "u8", "order": "bisection", "top_terms": 100}},
        {"index": {"type": "inverted", "fidelity": "u8"}},
        {"encoder": {"type": "bm25", "fields": {"title": 1.0, "text": 1.0}}},
        {"encoder": {"type": "bm25", "fields": {"title": 2.0, "text": 1.0}}},
    ]
    for part in parts:
        values = config(tmp_path, retrievers={"bm25": {**BM25, **part}})
        first, second = (index(values)[0].head for _ in range(2))
        assert first == second
        assert first.index_generation == f"g{parts.index(part) + 1:06d}"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"index": {"type": "inverted", "fidelity": "u9"}}, r"bm25\.index: fidelity: 'u9'"),
        ({"index": {"type": "inverted", "block_size": 48}}, r"bm25\.index: block_size: 48"),
        (
            {"encoder": {"type": "bm25", "fields": {"title": 0}}},
            r"bm25\.encoder: bm25\.fields\.",
        ),
    ],
)
def test_bad_settings_are_found_before_any_work(
    tmp_path: Path, part: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^retrievers\.{message}"):
        index(config(tmp_path, retrievers={"bm25": {**BM25, **part}}))
    assert not (tmp_path / "out").exists()


def test_an_index_of_an_earlier_format_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = config(tmp_path)
    folder = index(values)[0].path / "index"
    for manifest in (folder / "manifest.json", folder / "g000001" / "manifest.json"):
        facts = json.loads(manifest.read_text())
        del facts["index"]["segments"]
        manifest.write_text(json.dumps(facts))
    (made,) = index(values)
    assert "an earlier Sluice" in caplog.text
    assert "; rebuilding" in caplog.text
    assert len(made.search("gold")) > 0


def test_searching_makes_nothing(tmp_path: Path, bert: Path) -> None:
    values = config(
        tmp_path,
        train={"ft": training(bert)},
        retrievers={"bm25": BM25, "dense": {"encoder": {"type": "dense", "model": "ft"}}},
    )
    run(values)
    output = tmp_path / "out"
    shutil.rmtree(tmp_path / "data")
    assert load_pipeline(output, "dense").search("gold")
    head = output / "retrievers" / "dense" / "retriever.json"
    noted = json.loads(head.read_text())
    noted["origin"]["config"]["recipe"] = "another"
    head.write_text(json.dumps(noted))
    with pytest.raises(IndexFormatError, match=r"dense: was made with other settings.*sluice run"):
        load_pipeline(output, "dense")
    shutil.rmtree(head.parent)
    with pytest.raises(IndexFormatError, match=r"dense: does not exist.*sluice run"):
        load_pipeline(output, "dense")
    settings = yaml.safe_load((output / "experiment.yaml").read_text())
    settings["rerankers"] = {"cross": {"type": "cross_encoder", "model": "ft"}}
    settings["pipelines"] = {"c": "bm25 >> cross"}
    shutil.rmtree(output / "models")
    (output / "experiment.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(IndexFormatError, match=r"models/ft: does not exist.*sluice run"):
        load_pipeline(output, "c")
    assert not (output / "models").exists()


def test_the_settings_are_written_once_the_job_is_done(tmp_path: Path) -> None:
    values = config(tmp_path, retrievers={"bm25": BM25, "other": BM25})
    settings = tmp_path / "out" / "experiment.yaml"
    broken = {**values, "evaluate": {"split": "tset"}}
    with pytest.raises(SluiceError, match="tset"):
        run(broken)
    assert not settings.exists()
    run(values)
    before = settings.read_bytes()
    with pytest.raises(SluiceError, match="tset"):
        run(broken)
    assert settings.read_bytes() == before


def test_indexing_one_retriever_leaves_the_others_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = config(tmp_path, retrievers={"bm25": BM25, "other": BM25})
    run(values)
    other = {"encoder": {"type": "bm25", "k1": 2.0}}
    index({**values, "retrievers": {"bm25": other, "other": other}}, only=["bm25"])
    saved = yaml.safe_load((tmp_path / "out" / "experiment.yaml").read_text())
    assert saved["retrievers"]["bm25"]["encoder"] == other["encoder"]
    assert saved["retrievers"]["other"]["encoder"] == BM25["encoder"]
    for name in ("bm25", "other"):
        assert load_pipeline(tmp_path / "out", name).search("gold")
    index({**values, "seed": 14}, only=["bm25"])
    assert "describes another dataset or seed" in caplog.text
    assert yaml.safe_load((tmp_path / "out" / "experiment.yaml").read_text()) == saved


def test_a_model_that_was_trained_on_the_test_is_refused(tmp_path: Path, bert: Path) -> None:
    values = config(
        tmp_path,
        train={"ft": training(bert)},
        retrievers={"bm25": BM25, "dense": {"encoder": {"type": "dense", "model": "ft"}}},
    )
    _, made = run(values)
    qrels = tmp_path / "data" / "qrels"
    (qrels / "test.tsv").write_bytes((qrels / "train.tsv").read_bytes())
    with pytest.raises(ConfigError, match="training on the test is refused"):
        type(made)(checked(values, ExperimentConfig)).model("ft")
    with pytest.raises(ConfigError, match="training on the test is refused"):
        run(values)  # the retriever is whole too


def test_a_run_is_reused_whose_model_learnt_from_another_retrievers_lists(
    tmp_path: Path, bert: Path
) -> None:
    values = config(tmp_path, train={"ft": training(bert)})
    values["retrievers"]["dense"] = {"encoder": {"type": "dense", "model": "ft"}}
    run(values)
    files = {name: tmp_path / "out" / "runs" / f"{name}.json" for name in ("bm25", "dense")}
    before = {name: file.stat().st_mtime_ns for name, file in files.items()}
    run(values)
    assert {name: file.stat().st_mtime_ns for name, file in files.items()} == before


def test_a_training_alone_follows_its_files(tmp_path: Path, bert: Path) -> None:
    model = tmp_path / "bert"
    shutil.copytree(bert, model)
    job = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        **training(model, BM25),
    }
    manifest = train(job) / "manifest.json"
    before = manifest.stat().st_mtime_ns
    assert train(job) / "manifest.json" == manifest
    assert manifest.stat().st_mtime_ns == before
    touched(model / "config.json")
    train(job)
    assert manifest.stat().st_mtime_ns != before
    assert DenseEncoder.from_pretrained(manifest.parent).encode_queries(["gold"]).shape == (1, 32)


def test_a_server_may_run_a_model_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder's contents, or its training, decide the vectors, though trust asks of no model."""
    monkeypatch.chdir(tmp_path)
    write_beir(tmp_path / "data", 2)
    (tmp_path / "served").write_text("x")
    server = {"type": "http", "url": "http://localhost:1/v1"}
    config = checked(
        {
            "dataset": "data",
            "output": "out",
            "train": {"ft": {"encoder": {"type": "dense", "model": "m"}, "loss": "info_nce"}},
            "retrievers": {
                "file": {"encoder": {**server, "model": "served"}},
                "trained": {"encoder": {**server, "model": "ft"}},
            },
        },
        ExperimentConfig,
    )
    before = Dependencies(config).keys("retrievers.file").key
    (tmp_path / "served").write_text("another")
    assert Dependencies(config).keys("retrievers.file").key != before
    assert list(Dependencies(config).needs("retrievers.trained")) == ["train.ft"]
