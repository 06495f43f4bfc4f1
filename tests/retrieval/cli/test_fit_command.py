"""``sluice fit``: from judged queries to a file that a pipeline or a retriever names."""

import html
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Experiment
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.tuning.depth_fitting import (
    fit_experiment_cut_off,
    fit_experiment_exit,
)
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
from sluice.retrieval.pipelines.fitting.rerank_fit import RerankFit
from sluice.retrieval.retrievers.quality.scores import QualityScores
from sluice.retrieval.stages.adaptive_depth import PredictedDepth
from sluice.retrieval.stages.confidence_exit import VarianceExit, exit_rule

ALLOWED = ("--allow", "small_world:WordEncoder", "--allow", "small_world:LengthScorer")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    config: dict[str, Any] = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "small_world:WordEncoder"}},
        },
        "rerankers": {"long": {"type": "small_world:LengthScorer"}},
        "pipelines": {
            "hybrid": "(bm25 | dense) % 20",
            "full": "hybrid >> long(depth=20)",
            "fast": f"hybrid >> long(depth=20, cut_off='{tmp_path}/cut.json',"
            f" exit='{tmp_path}/exit.json')",
        },
        "evaluate": {"baseline": "full", "latency_queries": 0},
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_fit_then_evaluate(sluice: Call, file: Path, tmp_path: Path) -> None:
    code, _, err = sluice("evaluate", file)
    assert code == 2
    assert "cut.json: no such file; sluice fit makes one" in err
    code, out, _ = sluice("fit", "cut-off", file, "hybrid", "--output", tmp_path / "cut.json")
    assert code == 0
    assert "8 dev queries, mean depth" in out
    assert PredictedDepth.load(tmp_path / "cut.json").extra == 1
    code, out, _ = sluice(
        "fit", "exit", file, "full", "--epsilon", "0.2", "--kind", "softmax",
        "--output", tmp_path / "exit.json",
    )  # fmt: skip
    assert code == 0
    assert "of 8 dev queries exit, loss" in out
    facts = json.loads((tmp_path / "exit.json").read_text())["fitted"]
    assert facts["loss"] <= 0.2
    assert exit_rule(str(tmp_path / "exit.json")).kind == "softmax"
    code, out, err = sluice("evaluate", file)
    assert code == 0, err
    assert "fast" in out


def test_an_exit_by_the_variance_of_the_query(sluice: Call, file: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(file.read_text())
    config["retrievers"]["dense"] = {"encoder": {"type": "small_world:UnsureEncoder"}}
    exits = tmp_path / "exit.json"
    config["pipelines"]["fast"] = f"hybrid >> long(exit='{exits}')"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    code, out, err = sluice(
        "fit", "exit", file, "full", "--epsilon", "1", "--kind", "variance", "--output", exits
    )
    assert code == 0, err
    assert "100.0% of 8 dev queries exit" in out
    assert isinstance(exit_rule(str(exits)), VarianceExit)
    code, out, err = sluice("evaluate", file)
    assert code == 0, err
    assert "fast" in out
    code, _, err = sluice("evaluate", file, f"pipelines.fast=bm25 >> long(exit='{exits}')")
    assert code == 2
    assert "pipelines.fast: exit by variance: no encoder of bm25 has" in err
    words = ("fit", "exit", file, "full", "pipelines.full=bm25 >> long(depth=5)")
    code, _, err = sluice(*words, "--kind", "variance", "--output", tmp_path / "none.json")
    assert code == 2
    assert "exit: variance: no encoder of bm25" in err
    assert not (tmp_path / "none.json").exists()
    (tmp_path / "foreign.txt").write_text("zzz\nwater and sluice\n")
    words = ("--unanswerable", tmp_path / "foreign.txt", "--kind", "variance", "--output")
    code, out, err = sluice("fit", "no-answer", file, "dense", *words, tmp_path / "no.json")
    assert code == 0, err
    assert "variance 0." in out or "variance 1." in out
    pipeline = f"pipelines.fast=abstain(dense, fitted='{tmp_path}/no.json')"
    code, _, err = sluice("config", "check", file, pipeline, "--fast")
    assert code == 0, err
    code, _, err = sluice("config", "check", file, pipeline.replace("(dense", "(bm25"), "--fast")
    assert (code, "pipelines.fast: abstain by variance: no encoder of bm25 has" in err) == (2, True)
    code, _, err = sluice("fit", "no-answer", file, "bm25", *words, tmp_path / "none.json")
    assert (code, "abstain: variance: no encoder of bm25" in err) == (2, True)
    assert not (tmp_path / "none.json").exists()


def test_faults(sluice: Call, file: Path, tmp_path: Path) -> None:
    assert "--output" in sluice("fit", "cut-off", file, "hybrid")[2]
    target = ("--output", tmp_path / "x.json")
    assert "did you mean 'hybrid'" in sluice("fit", "cut-off", file, "hybrod", *target)[2]
    assert "does not end in a reranker" in sluice("fit", "exit", file, "hybrid", *target)[2]
    assert "never the test" in sluice(
        "fit", "exit", file, "full", "--split", "test", *target
    )[2]  # fmt: skip
    for split, tested in (("dev", "dev"), ("dev", "validation"), ("train", "train")):
        fitting = ("fit", "cut-off", file, "bm25", "--split", split, *target)
        assert "fitting on the test" in sluice(*fitting, f"evaluate.split={tested}")[2]
    assert not (tmp_path / "x.json").exists()


def test_the_dev_queries_held_out_of_a_train_that_is_tested_are_refused(
    sluice: Call, file: Path, tmp_path: Path
) -> None:
    for qrels in (tmp_path / "data" / "qrels").glob("dev*"):
        qrels.unlink()
    words = ("fit", "cut-off", file, "bm25", "--output", tmp_path / "x.json")
    assert sluice(*words)[0] == 0
    assert "dev is part of train" in sluice(*words, "evaluate.split=train")[2]


def test_from_python(file: Path) -> None:
    config = yaml.safe_load(file.read_text())
    rule, report = fit_experiment_cut_off(config, "bm25", split="train", n=5, success=1.0)
    assert report.queries == 12
    assert report.success == 1.0
    assert rule.most <= 5
    assert fit_experiment_exit(config, "full", epsilon=0.0).exited == 0
    with pytest.raises(ConfigError, match="no pipeline"):
        fit_experiment_exit(config, "nothing")


def test_a_grade_below_the_level_of_the_dataset_is_not_relevant(file: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(file.read_text())
    config["dataset"] = {"name": config["dataset"], "level": 2}
    qrels = tmp_path / "data" / "qrels" / "dev.tsv"
    lines = qrels.read_text().splitlines()
    targets = [f"{line[:-1]}2" for line in lines[1::2]][:3]  # of three queries
    qrels.write_text("\n".join([lines[0], *targets, *lines[7:]]) + "\n")
    judged = [line.split("\t") for line in targets]
    _, report = fit_experiment_cut_off(config, "bm25", n=5)
    assert report.queries == len(judged)
    del config["pipelines"]["fast"]
    experiment = Experiment(checked(config, ExperimentConfig))
    dev = experiment.dataset("dev")
    run = experiment.stage("full").run({query: dev.queries[query] for query in dev.qrels})
    first = [run[query].doc_ids[0] == document for query, document, _ in judged]
    full = fit_experiment_exit(config, "full", measure="P@1", epsilon=0.0).full
    assert full == pytest.approx(sum(first) / len(dev.qrels))


def test_quality_by_head_and_baseline(sluice: Call, file: Path, tmp_path: Path) -> None:
    from sluice.retrieval import index

    config = yaml.safe_load(file.read_text())
    (dense,) = index({**config, "pipelines": {}, "evaluate": {}}, only=["dense"])
    data, path = tmp_path / "data", tmp_path / "q.parquet"
    code, out, err = sluice("fit", "quality", data, "--by", "length", "--output", path)
    assert code == 0, err
    assert "quality of 40 documents by length" in out
    assert len(QualityScores.load(path)) == 40
    assert "needs --retriever" in sluice("fit", "quality", data, "--output", path)[2]
    assert "needs --model" in sluice("fit", "quality", data, "--by", "norm", "--output", path)[2]
    assert (
        "did you mean 'length'"
        in sluice("fit", "quality", data, "--by", "lenght", "--output", path)[2]
    )
    assert dense.path.exists()


def test_quality_head_of_a_dense_retriever(sluice: Call, tmp_path: Path, bert: Path) -> None:
    from sluice.encoders import DenseEncoder
    from sluice.indexing import FlatIndex
    from sluice.retrieval import Retriever, load_dataset

    data, path = write_beir(tmp_path / "data"), tmp_path / "q.parquet"
    corpus = load_dataset(data, None).corpus
    encoder = DenseEncoder.from_pretrained(bert)
    Retriever.build(encoder, corpus, index=FlatIndex(), path=tmp_path / "r")
    code, out, err = sluice(
        "fit", "quality", data, "--retriever", tmp_path / "r", "--loss", "pairwise",
        "--output", path, "--save-head", tmp_path / "head.safetensors",
    )  # fmt: skip
    assert code == 0, err
    assert "by head" in out
    assert QualityScores.load(path).facts["labels"] == "share"
    assert (tmp_path / "head.safetensors").exists()
    scores = QualityScores.load(path)
    head = ("fit", "quality", data, "--head", tmp_path / "head.safetensors")
    by_vectors, by_model = tmp_path / "vectors.parquet", tmp_path / "model.parquet"
    assert sluice(*head, "--retriever", tmp_path / "r", "--output", by_vectors)[0] == 0
    assert QualityScores.load(by_vectors).scores.tolist() == scores.scores.tolist()
    code, _, err = sluice(*head, "--model", bert, "--output", by_model)
    assert code == 0, err
    assert QualityScores.load(by_model).scores == pytest.approx(scores.scores, abs=1e-4)
    for words, message in (
        ((*head, "--output", path), "needs --retriever, whose vectors are scored, or --model"),
        ((*head, "--loss", "bce", "--output", path), "--loss: is for fitting, not for --head"),
        ((*head[:3], "--by", "itn", *head[3:], "--output", path), "--head: is for --by head"),
    ):
        code, _, err = sluice(*words)
        assert (code, message in err) == (2, True), err


def test_fit_a_reranker_then_use_the_file(sluice: Call, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "long.json"
    code, out, err = sluice("fit", "rerank", file, "full", "--depth", "10", "--output", target)
    assert code == 0, err
    assert "on 8 judged queries: nDCG@10" in out
    assert f"in a pipeline: long(fitted='{target}')" in out
    fit = RerankFit.load(target)
    assert fit.queries == 8
    assert fit.depth <= 10
    assert fit.scorer == "long"
    config = yaml.safe_load(file.read_text())
    config["evaluate"] = {}
    config["pipelines"] = {"read": f"hybrid >> long(fitted='{target}')", "hybrid": "bm25 | dense"}
    stage = Experiment(checked(config, ExperimentConfig)).stage("read")
    assert stage.name.endswith(fit.shown) or fit.depth == 0
    opened = ("pipelines.full=hybrid >> fitted(long, depth=10)",)
    code, again, err = sluice("fit", "rerank", file, "full", "--output", target, *opened)
    assert code == 0, err
    assert out.splitlines()[0] == again.splitlines()[0]
    for words, message in [
        (("hybrid",), "does not end in a reranker to fit"),
        (("fast", "pipelines.fast=hybrid >> long(exit=0.4)"), "has rules of its depth"),
        (("full", "--split", "test"), "never the test"),
        (("full", "evaluate.split=dev"), "fitting on the test"),
    ]:
        code, _, err = sluice("fit", "rerank", file, *words, "--output", target)
        assert code == 2
        assert message in err


def test_a_fusion_file_knows_its_parts(sluice: Call, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "fusion.json"
    code, out, err = sluice("fit", "fusion", file, "bm25", "dense", "--output", target)
    assert code == 0, err
    assert "held out" in out
    assert FusionFit.load(target).parts == ("bm25", "dense")
    swapped = f"pipelines.fast=fused(dense, bm25, fitted='{target}')"
    code, _, err = sluice("evaluate", file, swapped)
    assert code == 2
    assert "it is the file of another pipeline; fit it again" in err


def test_a_fusion_file_knows_a_pipeline_by_its_name(
    sluice: Call, file: Path, tmp_path: Path
) -> None:
    target, own = tmp_path / "fusion.json", "pipelines.own=weighted(bm25, dense)"
    code, _, err = sluice("fit", "fusion", file, "bm25", "own", own, "--output", target)
    assert code == 0, err
    fit = FusionFit.load(target)
    assert fit.names == ("bm25", "own")
    assert fit.parts != fit.names
    assert fit.origin["pipelines"] == ["bm25", "own"]
    assert fit.origin["split"] == "dev"
    both = f"pipelines.both=weighted(bm25, own, fitted='{target}')"
    code, _, err = sluice("run", file, own, both, "pipelines.fast=bm25")
    assert code == 0, err


def test_a_reranker_refuses_the_file_of_another(sluice: Call, file: Path, tmp_path: Path) -> None:
    target = tmp_path / "long.json"
    code, _, err = sluice("fit", "rerank", file, "full", "--depth", "10", "--output", target)
    assert code == 0, err
    assert RerankFit.load(target).origin["pipeline"] == "full"
    other = f"pipelines.full=hybrid >> other(fitted='{target}')"
    scorer = "rerankers.other={type: small_world:LengthScorer}"
    code, _, err = sluice("evaluate", file, scorer, other, "pipelines.fast=bm25")
    assert code == 2
    assert "was fitted for long and not for other: it is the file of another pipeline" in err
    again = f"pipelines.full=hybrid >> long(fitted='{target}')"
    code, _, err = sluice("fit", "rerank", file, "full", again, "--output", target)
    assert code == 0, err


def test_the_report_shows_what_was_fitted(sluice: Call, file: Path, tmp_path: Path) -> None:
    changes = (
        "pipelines.hybrid=fitted(bm25, dense)", "pipelines.fast=bm25 >> fitted(long, depth=7)",
    )  # fmt: skip
    code, _, err = sluice("run", file, *changes)
    assert code == 0, err
    fit = FusionFit.load(tmp_path / "out" / "fitted" / "hybrid.json")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"fitted(bm25, dense) = {fit.shown}" in html.unescape(page)
    explained = sluice("explain", tmp_path / "out", "gold river", "--pipeline", "hybrid", *ALLOWED)
    assert explained[0] == 0, explained[2]
