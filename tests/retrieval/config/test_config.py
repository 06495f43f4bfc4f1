"""Configs: every fault is named by file, key, value and the nearest valid name."""

import json
from pathlib import Path

import pytest
import yaml
from click_logs import CLICK, write_log
from places import ROOT

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    TrainConfig,
    TrainingSection,
    TuneConfig,
    checked,
    load_config,
    load_values,
)
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.suites.suite import is_suite
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.experiments.tuning.experiment import check_tuning

GOOD = {
    "dataset": "pydocs",
    "train": {
        "ft": {
            "encoder": {"type": "dense", "model": "some/model"},
            "loss": {"type": "info_nce", "temperature": 0.05},
            "negatives": {"type": "mined", "retriever": "bm25", "per_query": 2},
            "trainer": {"learning_rate": 3.0e-5},
        }
    },
    "retrievers": {
        "bm25": {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}},
        "dense": {"encoder": {"type": "dense", "model": "ft"}, "index": {"type": "flat"}},
    },
    "rerankers": {"cross": {"type": "cross_encoder", "model": "some/model"}},
    "pipelines": {"bm25": "bm25", "cascade": "(bm25 | dense) % 50 >> cross(depth=10)"},
    "evaluate": {"measures": ["nDCG@10"], "baseline": "bm25"},
}


def changed(path: str, value: object) -> dict:
    """GOOD with one value replaced (or removed, for None)."""
    config = json.loads(json.dumps(GOOD))
    *parents, last = path.split("/")
    place = config
    for parent in parents:
        place = place[parent]
    place.pop(last, None)
    if value is not None:
        place[last] = value
    return config


def opened(tmp_path: Path, config: object, overrides: list[str] | None = None) -> Experiment:
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return Experiment(load_config(file, ExperimentConfig, overrides or []), file=file)


def test_a_good_config_passes(tmp_path: Path) -> None:
    experiment = opened(tmp_path, GOOD, ["output=elsewhere", "train.ft.trainer.max_steps=7"])
    assert experiment.config.output == "elsewhere"
    assert experiment.config.train["ft"].trainer == {"learning_rate": 3.0e-5, "max_steps": 7}
    assert experiment.systems == ["bm25", "cascade"]
    with pytest.raises(ConfigError, match="known: bm25, cascade, dense; did you mean 'bm25'"):
        experiment.stage("bm52")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("datset", "x", "datset: unknown key.*did you mean 'dataset'"),
        ("dataset", None, r"dataset: missing \(required\)$"),
        ("dataset", 3, "dataset: 3; expected a text or keys and values$"),
        ("seed", "x", "seed: 'x'; expected a whole number$"),
        ("retrievers/bm25", 3, "retrievers.bm25: 3; expected keys and values$"),
        ("retrievers/bm25/encoder", 3, r"encoder: 3; expected a type's name or \{type: name, ...}"),
        ("retrievers/bm25/encoding", {"batch": 3}, "retrievers.bm25.encoding.batch: unknown key"),
        ("evaluate/alpha", 2.0, "evaluate.alpha: 2.0; expected a number below 1.0$"),
        ("evaluate/mesures", [], "evaluate.mesures: unknown key.*did you mean 'measures'"),
        ("evaluate/baseline", "bm52", "no pipeline 'bm52'.*did you mean 'bm25'"),
        ("evaluate/test", "ttest", "evaluate.test: 'ttest'"),
        ("evaluate/measures", ["nDGC@10"], "evaluate.measures.*nDGC@10.*nDCG"),
        ("train/ft/loss/temprature", 0.1, r"loss.temprature: unknown key; info_nce takes .*"
         "did you mean 'temperature'"),
        ("train/ft/loss/temperature", "hot", "train.ft.loss.temperature: 'hot'"),
        ("train/ft/loss/type", "info_nec", "unknown type 'info_nec'.*did you mean 'info_nce'"),
        ("train/ft/loss", "MultipleNegativesRankingLoss", "here it is called info_nce$"),
        ("train/ft/loss/type", "MarginMSELoss", "'MarginMSELoss'; here it is called margin_mse$"),
        ("train/ft/loss", "CachedMultipleNegativesRankingLoss", "it is called info_nce, and grad"),
        ("train/ft/loss", "CosineSimilarityLoss", "the nearest here is bixse, for pairs labelled"),
        ("train/ft/loss", "TripletLoss", "the nearest here is info_nce with negatives: own"),
        ("train/ft/loss", "DistributedContrastiveLoss", "here it is called info_nce$"),
        ("train/ft/encoder/type", "bm25", "train.ft.encoder"),
        ("train/ft/encoder/pooling", "men", "train.ft.encoder.pooling: 'men'"),
        ("train/ft/negatives/retriever", None, "needs 'retriever'"),
        ("train/ft/negatives/per_qery", 3, "did you mean 'per_query'"),
        ("train/ft/negatives/type", "random", "expected 'mined'"),
        ("train/ft/trainer/learning_rat", 3, "did you mean 'learning_rate'"),
        ("train/ft/trainer/learning_rate", "0,5", "'0,5'; expected a number"),
        ("retrievers/bm25/encoder/k", 3, "bm25.encoder.k: unknown key; bm25 takes k1, b"),
        ("retrievers/bm25/index/type", "inverter", "did you mean 'inverted'"),
        ("retrievers/dense/index", "hnsw", r"HNSW is \{type: faiss, factory: HNSW32\}$"),
        ("retrievers/dense/index/type", "inverted", r"retrievers\.dense\.index\.type: inverted "
         "holds sparse vectors; a dense encoder takes flat, faiss, auto$"),
        ("retrievers/bm25/index/type", "flat", r"retrievers\.bm25\.index\.type: flat holds dense "
         "vectors; a bm25 encoder takes inverted$"),
        ("retrievers/bm25/indx", {}, "did you mean 'index'"),
        ("rerankers/cross/type", "dense", "rerankers.cross.type: unknown type 'dense'"),
        ("rerankers/bm25", {"type": "cross_encoder", "model": "x"}, "has that name too"),
        ("pipelines/cascade", "(bm25 | dnse) % 5", "unknown name 'dnse'.*did you mean 'dense'"),
        ("pipelines/cascade", "bm25 >>", "not a pipeline"),
        ("pipelines/x", "cross", "pipelines.x: 'cross' begins with a reranker"),
        ("pipelines/x", "bm25 | cross % 5", "pipelines.x: .* begins with a reranker"),
        ("pipelines/x", "bm25 >> cross(dept=5)", "pipelines.x: cross takes .*'depth'"),
        ("pipelines/x", "bm25 >> cross(depth=-1)", "pipelines.x: depth"),
        ("pipelines/x", "bm25 >> cross(interpolate='a')", "pipelines.x: "),
        ("pipelines/x", "bm25 % 0", "pipelines.x: .*cut"),
        ("pipelines/x", "rrf(bm25, dense, weights=[1])", "pipelines.x: .*1 weights for 2 stages"),
        ("pipelines/x", "rrf(bm25, dense, weights='ab')", r"pipelines.x: .*list of numbers"),
        ("pipelines/x", "rrf(bm25, dense, rank_constant=0)", "pipelines.x: .*rank_constant=0"),
        ("pipelines/x", "weighted(bm25, dense, normalise='minmax')", "did you mean 'min-max'"),
        ("pipelines/x", " | ".join(["bm25"] * 4000), "pipelines.x: "),
        ("pipelines/x", "(" * 5000 + "bm25" + ")" * 5000, "pipelines.x: "),
        ("pipelines/x", "bm25\0", "pipelines.x: .*not a pipeline"),
        ("pipelines/..", "bm25", r"pipelines\.\.\.: a name is a letter"),
        ("retrievers/a b", {"encoder": {"type": "bm25"}}, "retrievers.a b: a name is"),
        ("rerankers/é", {"type": "cross_encoder", "model": "x"}, "rerankers.é: a name is"),
        ("train/ft/negatives/retriever", "bm52", "ft.negatives.retriever: .*did you mean 'bm25'"),
        ("train/ft/negatives/retriever", [7], r"ft.negatives.retriever\[0\]: 7; expected"),
        ("train/ft/negatives/retriever", "", "ft.negatives.retriever: ''"),
        ("train/ft/negatives/retriever", {"encoder": 7}, "retriever: encoder: 7; expected"),
        ("train/ft/negatives/retriever", {"encoder": {"type": "bm52"}}, "retriever.encoder.type"),
        ("train/ft/negatives/depth", 0, "ft.negatives.depth is 0"),
        ("train/ft/trainer/report_to", "wandbb", "train.ft.trainer.report_to: wandbb"),
        ("train/ft/trainer/report_to", ["swanlab"], "report_to: swanlab is not installed: pip "
         "install swanlab$"),
        ("train/ft/trainer/learning_rate", -1.0, "trainer.learning_rate: -1.0; expected .*above"),
        ("train/ft/trainer/learning_rate", float("nan"), "trainer.learning_rate: nan"),
        ("train/ft/trainer/optim", "adamx", r"ft.trainer.optim: .adamx., expected lamb"),
        ("train/ft/trainer/per_device_train_batch_size", 0, "batch_size: 0; expected 1 or more"),
        ("train/ft/loss", {"type": "bce"}, "ft.loss: bce trains cross_encoder; a dense "
         "encoder takes info_nce, kl_div, .* and 27 more: sluice config list --all$"),
        ("train/ft/loss", {"type": "localized_softmax"}, "ft.loss: localized_softmax trains"),
        ("train/ft/loss/temperature", -1.0, "temperature: -1.0"),
        ("train/ft/sparsity", {"query": {"type": "l1", "weight": 1.0}}, "sparsity: is for splade"),
        ("train/ft/encoder/start", True, "only splade encoders take a start"),
        (
            "retrievers/bm25/encoder",
            {"type": "splade", "model": "m", "start": True},
            r"retrievers.bm25.encoder.start: works only under train:",
        ),
    ],
)  # fmt: skip
def test_faults_are_named(tmp_path: Path, path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        opened(tmp_path, changed(path, value))
    assert str(caught.value).startswith(f"{tmp_path / 'x.yaml'}: ")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not valid YAML"),
        ("- a", "expected keys and values"),
        ("", "empty; `sluice config init`"),
        ("[" * 5000, "not valid YAML"),
        ("seed: 2020-13-45", "not valid YAML.*month"),
        (b"dataset: \xff", "UTF-8"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        load_config(file, ExperimentConfig)
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'bad\.yaml'"):
        load_config(tmp_path / "bd.yaml", ExperimentConfig)


@pytest.mark.parametrize(
    ("encoder", "loss", "trainer"),
    [
        ("cross_encoder", {"type": "bce"}, {}),
        ("splade", {"type": "info_nce"}, {"per_device_train_batch_size": 1}),
    ],
)
def test_trainings_without_anything_to_beat_are_refused(
    encoder: str, loss: dict, trainer: dict
) -> None:
    job = {"encoder": {"type": encoder, "model": "x"}, "loss": loss, "trainer": trainer}
    with pytest.raises(ConfigError, match=r"train.a.negatives: missing.*nothing would be learnt"):
        check_training(checked(job, TrainingSection), "train.a")
    mined = {"type": "mined", "retriever": "bm25"}
    check_training(checked({**job, "negatives": mined}, TrainingSection), "train.a")


def test_overrides_that_yaml_cannot_read_are_text(tmp_path: Path) -> None:
    for text in ("2020-13-45", "[" * 5000):
        with pytest.raises(ConfigError, match="seed: "):
            opened(tmp_path, GOOD, [f"seed={text}"])


@pytest.mark.parametrize("override", ["novalue", "dataset.x.y=1", "=3"])
def test_bad_overrides_are_named(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        opened(tmp_path, GOOD, [override])


def test_a_circle_is_named(tmp_path: Path) -> None:
    config = changed("train/ft/negatives/retriever", "dense")
    config["output"] = str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"needs itself: .*train.ft"):
        opened(tmp_path, config).retriever("dense")


def test_every_config_in_the_project_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "clicks.jsonl", [CLICK])  # that production-hybrid.yaml learns from
    monkeypatch.chdir(tmp_path)
    folder = ROOT / "configs"
    files = sorted(folder.glob("*.yaml"))
    assert files
    for file in files:
        if file.name.startswith("train-"):
            check_training(load_config(file, TrainConfig), "")
        elif file.name.startswith("tune"):
            tuning = load_config(file, TuneConfig)
            check_experiment(tuning)
            check_tuning(tuning)
        elif is_suite(load_values(file)["dataset"]):
            for dataset in load_values(file)["dataset"]:
                check_experiment(load_config(file, ExperimentConfig, [f"dataset={dataset}"]))
        else:
            check_experiment(load_config(file, ExperimentConfig))


def test_training_configs_are_short() -> None:
    folder = ROOT / "configs"
    for file in folder.glob("train-*.yaml"):
        lines = file.read_text(encoding="utf-8").splitlines()
        settings = [line for line in lines if line.strip() and not line.startswith("#")]
        assert len(settings) <= 15, file
