"""``fitted(...)`` in an experiment: fitted on dev once, kept, read again, never on the test."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.retrieval import Experiment, Fuse, Rerank, load_dataset, load_pipeline, run
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.experiments.experiment import open_experiment
from sluice.retrieval.experiments.training.tested_queries import untested
from sluice.retrieval.experiments.tuning.depth_fitting import (
    fit_experiment_fusion,
    fit_experiment_rerank,
)
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit
from sluice.retrieval.pipelines.fitting.rerank_fit import RerankFit
from sluice.retrieval.pipelines.operators import Then

OWN = [
    f"small_world:{name}"
    for name in ("WordEncoder", "LengthScorer", "ConstantScorer", "OverlapScorer")
]


def settings(folder: Path, **pipelines: str) -> dict[str, Any]:
    return {
        "dataset": str(folder / "data"),
        "output": str(folder / "out"),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "small_world:WordEncoder", "dim": 16}},
        },
        "rerankers": {
            "long": {"type": "small_world:LengthScorer"},
            "flat": {"type": "small_world:ConstantScorer"},
            "good": {"type": "small_world:OverlapScorer"},
        },
        "pipelines": pipelines
        or {
            "bm25": "bm25",
            "hybrid": "fitted(bm25, dense)",
            "cascade": "hybrid % 30 >> fitted(good, depth=10)",
            "both": "fitted(dense, bm25, measure='RR@10') >> fitted(long, depth=20)",
        },
        "evaluate": {"latency_queries": 0},
    }


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_beir(tmp_path / "data")
    return tmp_path


def test_it_is_fitted_on_dev_kept_and_read(world: Path) -> None:
    table, _ = run(settings(world))
    folder = world / "out" / "fitted"
    assert sorted(p.name for p in folder.iterdir()) == [
        "both.json", "both~2.json", "cascade.json", "hybrid.json",
    ]  # fmt: skip
    hybrid, cascade = (
        FusionFit.load(folder / "hybrid.json"),
        RerankFit.load(folder / "cascade.json"),
    )
    assert hybrid.names == hybrid.parts == ("bm25", "dense")
    assert hybrid.queries == cascade.queries == 8
    assert hybrid.origin["split"] == "dev"
    assert hybrid.origin["pipeline"] == "hybrid"
    assert FusionFit.load(folder / "both.json").measure == "RR@10"
    assert RerankFit.load(folder / "both~2.json").scorer == "long"
    report = (world / "out" / "report.md").read_text()
    assert "## What was fitted" in report
    assert "on 8 judged queries" in report
    results = json.loads((world / "out" / "results.json").read_text())
    shown = {each["name"]: [fit["shown"] for fit in each["fitted"]] for each in results["systems"]}
    assert shown["hybrid"] == [hybrid.shown]
    assert shown["bm25"] == []
    assert len(shown["both"]) == 2
    assert set(table.rows) == {"bm25", "hybrid", "cascade", "both"}


def test_a_probability_is_fitted_on_dev_kept_and_opened(world: Path) -> None:
    own = {
        "raw": "bm25 >> long(depth=10)",
        "sure": "bm25 >> long(depth=10, probability=True)",
        "none": "abstain(sure, threshold=0.99)",
    }
    table, _ = run(settings(world, **own))
    fit = ProbabilityFit.load(world / "out" / "fitted" / "sure.json")
    assert fit.queries == 8
    assert fit.origin["split"] == "dev"
    assert table.rows["sure"]["nDCG@10"] == table.rows["raw"]["nDCG@10"]
    shutil.rmtree(world / "data")
    hits = load_pipeline(world / "out", "sure", allow=OWN).search("gold river", k=3)
    raw = load_pipeline(world / "out", "raw", allow=OWN).search("gold river", k=3)
    assert [hit.doc_id for hit in hits] == [hit.doc_id for hit in raw]
    for hit, other in zip(hits, raw, strict=True):
        chance = 1 / (1 + math.exp(-(fit.scale * other.score + fit.bias)))
        assert hit.score == pytest.approx(chance, abs=1e-6)
    assert load_pipeline(world / "out", "none", allow=OWN).search("gold river", k=3) == []


def test_without_dev_queries_a_probability_is_refused_before_any_work(world: Path) -> None:
    for name in ("dev", "train"):
        (world / "data" / "qrels" / f"{name}.tsv").unlink()
    with pytest.raises(ConfigError, match=r"pipelines\.sure: probability=True .* has 0; give"):
        run(settings(world, sure="bm25 >> long(probability=True)"))
    assert not (world / "out" / "retrievers").exists()


def test_it_is_reused_until_something_it_is_made_of_changes(world: Path) -> None:
    config = settings(world, hybrid="fitted(bm25, dense)", plain="bm25")
    run(config)
    file = world / "out" / "fitted" / "hybrid.json"
    first = file.stat().st_mtime_ns
    run(config)
    assert file.stat().st_mtime_ns == first
    run(settings(world, hybrid="fitted(bm25, dense)", plain="dense"))
    assert file.stat().st_mtime_ns == first
    lines = (world / "data" / "qrels" / "dev.tsv").read_text().splitlines()
    (world / "data" / "qrels" / "dev.tsv").write_text("\n".join(lines[:-2]) + "\n")
    run(config)
    second = file.stat().st_mtime_ns
    assert second > first
    assert FusionFit.load(file).queries == 7
    run({**config, "seed": 14})
    assert file.stat().st_mtime_ns > second


def test_a_saved_output_is_opened_without_the_dataset(world: Path) -> None:
    run(settings(world))
    shutil.rmtree(world / "data")
    fit = FusionFit.load(world / "out" / "fitted" / "hybrid.json")
    stage = load_pipeline(world / "out", "hybrid", allow=OWN)
    kept = [weight for weight in fit.fusion.weights or () if weight > 0]
    if len(kept) > 1:
        assert isinstance(stage, Fuse)
        assert stage.fusion.weights == tuple(kept)
    assert stage.search("gold river", k=3)
    file = world / "out" / "fitted" / "hybrid.json"
    changed = json.loads(file.read_text())
    changed["origin"]["recipe"] = "another"
    file.write_text(json.dumps(changed))
    with pytest.raises(IndexFormatError, match=r"hybrid\.json: was made with other settings"):
        load_pipeline(world / "out", "hybrid", allow=OWN)
    file.unlink()
    with pytest.raises(IndexFormatError, match=r"hybrid\.json: does not exist, and searching fits"):
        open_experiment(world / "out", allow=OWN).stage("hybrid")


def test_a_reranker_that_dev_does_not_support_is_left_out(world: Path) -> None:
    config = settings(
        world,
        first="bm25",
        helps="dense >> fitted(good, depth=30)",
        idle="first >> fitted(flat, depth=30)",
    )
    experiment = Experiment(load(config))
    idle, helps = experiment.stage("idle"), experiment.stage("helps")
    assert idle.name == "bm25"
    assert isinstance(helps, Then)
    assert isinstance(helps.second, Rerank)
    assert helps.second.depth > 0
    assert helps.second.name.startswith("good(depth=")


def load(config: dict[str, Any]) -> Any:
    from sluice.retrieval.config.sections import ExperimentConfig

    return ExperimentConfig.model_validate(config)


def test_without_dev_it_is_the_tenth_of_train_that_is_not_trained_on(world: Path) -> None:
    (world / "data" / "qrels" / "dev.tsv").unlink()
    experiment = Experiment(load(settings(world)))
    from sluice.retrieval.datasets.dataset import training_splits

    train, dev = training_splits(experiment.dataset(None), experiment.config.seed)
    queries = experiment.fits.queries
    assert set(queries.qrels) <= set(dev.queries)
    assert not set(queries.qrels) & set(train.queries)
    assert queries.split == "train, a tenth held out"


def test_dev_without_train_is_used(world: Path) -> None:
    (world / "data" / "qrels" / "train.tsv").unlink()
    assert len(Experiment(load(settings(world))).fits.queries.qrels) == 8


def test_without_judgements_it_says_so_and_takes_the_choice_for_all(
    world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("dev", "train"):
        (world / "data" / "qrels" / f"{split}.tsv").unlink()
    with caplog.at_level(logging.INFO, "sluice"):
        run(settings(world))
    assert "not fitted on judgements" in caplog.text
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("nothing to fit on" in record.getMessage() for record in warnings) == 1
    fit = FusionFit.load(world / "out" / "fitted" / "hybrid.json")
    assert not fit.judged
    assert fit.fusion.weights == (0.4, 0.6)
    assert fit.fusion.normalise == "steep"
    assert fit.value is fit.held_out is fit.gain is None
    cascade = RerankFit.load(world / "out" / "fitted" / "cascade.json")
    assert (cascade.depth, cascade.judged) == (0, False)
    cut = Experiment(load(settings(world, cut="fitted(0.5 * (bm25 % 20), dense % 20)")))
    cut.stage("cut")
    fit = FusionFit.load(world / "out" / "fitted" / "cut.json")
    assert fit.fusion.weights == (0.4, 0.6)  # a cut of BM25 is still by words
    assert "not fitted on judgements" in (world / "out" / "report.md").read_text()


def test_one_dev_query_is_too_few(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = (world / "data" / "qrels" / "dev.tsv").read_text().splitlines()
    (world / "data" / "qrels" / "dev.tsv").write_text("\n".join(lines[:3]) + "\n")
    run(settings(world, hybrid="fitted(bm25, dense)"))
    fit = FusionFit.load(world / "out" / "fitted" / "hybrid.json")
    assert not fit.judged
    assert "1 judged query, and 5 are needed" in fit.why
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert sum("1 judged query to fit on; expected 5 or more" in text for text in warnings) == 1


def test_dev_without_a_relevant_document_is_no_dev(
    world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = world / "data" / "qrels" / "dev.tsv"
    head, *lines = path.read_text().splitlines()
    zeros = ["\t".join([*line.split("\t")[:2], "0"]) for line in lines]
    path.write_text("\n".join([head, *zeros]) + "\n")
    experiment = Experiment(load(settings(world)))
    assert not experiment.fits.queries.qrels
    assert "the judgements of dev name no relevant document" in caplog.text


def test_the_test_is_never_fitted_on(world: Path) -> None:
    with pytest.raises(ConfigError, match="fitted on dev, on which the experiment is evaluated"):
        run({**settings(world), "evaluate": {"split": "dev", "latency_queries": 0}})
    assert not (world / "out" / "retrievers").exists()
    qrels = world / "data" / "qrels"
    shutil.copy(qrels / "test.tsv", qrels / "dev.tsv")
    with pytest.raises(ConfigError, match=r"8 of 8 dev queries .* are queries of test, by text"):
        run(settings(world))
    assert not (world / "out" / "retrievers").exists()


@pytest.mark.parametrize("split", ["dev", "train"])
def test_a_fit_by_command_never_sees_the_test(world: Path, split: str) -> None:
    qrels = world / "data" / "qrels"
    shutil.copy(qrels / "test.tsv", qrels / f"{split}.tsv")
    said = rf"8 of 8 {split} queries \(such as 'q20'\) are queries of test, by text or judgements"
    with pytest.raises(ConfigError, match=said):
        fit_experiment_fusion(settings(world), ["bm25", "dense"], split=split)
    with pytest.raises(ConfigError, match=said):
        fit_experiment_rerank(settings(world, c="bm25 >> long(depth=5)"), "c", split=split)


def test_judgements_of_the_test_under_other_texts_are_its_own(world: Path, tmp_path: Path) -> None:
    opened = load_dataset(str(world / "data"), "test")
    texts = {query: f"{text} once more" for query, text in opened.queries.items()}
    other = Dataset.from_memory((), texts, opened.qrels, split="dev")
    with pytest.raises(ConfigError, match=r"8 of 8 dev queries .* are queries of test, by text or"):
        untested(other, other.qrels, opened.with_split, "test")
    fewer = {query: {**grades, "another": 1} for query, grades in opened.qrels.items()}
    assert untested(other, fewer, opened.with_split, "test") == fewer


@pytest.mark.parametrize("rows", ["q12\td00\n", "q12\td00\tmuch\n", "nobody\td00\t1\n"])
def test_dev_judgements_that_cannot_be_read_are_an_error(world: Path, rows: str) -> None:
    (world / "data" / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    with pytest.raises(DataError, match=r"dev\.tsv"):
        run(settings(world))
    assert not (world / "out" / "retrievers").exists()


def test_a_few_dev_queries_of_the_test_are_left_out(world: Path) -> None:
    data = world / "data"
    queries = [json.loads(line) for line in (data / "queries.jsonl").read_text().splitlines()]
    lines = ["query-id\tcorpus-id\tscore"]
    for number in range(24):
        queries.append({"_id": f"x{number}", "text": f"gold {number} river"})
        lines.append(f"x{number}\td{number:02d}\t1")
    queries[-1]["text"] = f"  {queries[20]['text'].upper()} "  # a test query, under another id
    (data / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (data / "qrels" / "dev.tsv").write_text("\n".join(lines) + "\n")
    kept = Experiment(load(settings(world))).fits.queries.qrels
    assert len(kept) == 23
    assert "x23" not in kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fitted(bm25)", "was given 1 stage in .*; it takes two or more stages"),
        ("fitted(bm25, long)", "was given 1 stage and 1 scorer"),
        ("fitted()", "was given nothing"),
        ("fitted(long)", "begins with a reranker"),
        ("fitted(bm25, dense, mesure='AP')", "takes no 'mesure'.*did you mean 'measure'"),
        ("fitted(bm25, dense, measure='nDGC@10')", "unknown measure"),
        ("fitted(bm25, dense, methods=['weighed'])", "did you mean 'weighted'"),
        ("fitted(bm25, dense, depth=0)", "depth"),
        ("bm25 >> fitted(long, methods=['rrf'])", "belongs to a fusion"),
        ("fitted(bm25, dense, measure='a.b:c')", "expected one of Sluice's own"),
    ],
)
def test_faults_are_found_before_any_work(world: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Experiment(load(settings(world, hybrid=text)))


def test_a_file_of_another_pipeline_is_refused(world: Path) -> None:
    run(settings(world, hybrid="fitted(bm25, dense)"))
    file = world / "out" / "fitted" / "hybrid.json"
    given = f"fused(dense, bm25, fitted='{file}')"
    with pytest.raises(ConfigError, match="fitted to bm25, dense and not to dense, bm25: it is"):
        Experiment(load(settings(world, other=given))).stage("other")
    right = Experiment(load(settings(world, other=f"fused(bm25, dense, fitted='{file}')")))
    assert right.stage("other").search("gold", k=1)


def test_the_file_of_a_reranker_over_another_first_stage_is_refused(world: Path) -> None:
    run(settings(world))
    file = world / "out" / "fitted" / "both~2.json"
    assert RerankFit.load(file).parts == ("bm25", "dense")
    for text in ("bm25 >> long(fitted='{}')", "both % 9 >> long(fitted='{}')"):
        given = settings(world, both="dense", other=text.format(file))
        said = r"fitted over bm25, dense and not over (bm25|dense): it is the file of another pipe"
        with pytest.raises(ConfigError, match=said):
            Experiment(load(given)).stage("other")
    for text in ("(dense | bm25) % 7 >> long(fitted='{}')", "open >> long(fitted='{}')"):
        given = settings(world, open="fitted(bm25, dense)", other=text.format(file))
        experiment = Experiment(load(given))
        parts = experiment.stage("open").leaves
        if text.startswith("open") and parts != {"bm25", "dense"}:
            with pytest.raises(ConfigError, match="it is the file of another pipeline"):
                experiment.stage("other")
        else:
            assert experiment.stage("other").search("gold", k=1)


def test_a_file_goes_with_the_fusion_read_from_a_file_whose_part_has_no_weight(
    world: Path,
) -> None:
    run(settings(world, both="fitted(bm25, dense) >> fitted(good, depth=10)"))
    fusion, rerank = (world / "out" / "fitted" / f"both{end}.json" for end in ("", "~2"))
    facts = json.loads(fusion.read_text())
    facts["fusion"] = {"method": "weighted", "weights": [1.0, 0.0]}
    fusion.write_text(json.dumps(facts))
    facts = json.loads(rerank.read_text())
    rerank.write_text(json.dumps({**facts, "parts": ["bm25"]}))  # what ran: bm25 alone
    text = f"fused(bm25, dense, fitted='{fusion}') >> good(fitted='{rerank}')"
    stage = Experiment(load(settings(world, other=text))).stage("other")
    assert stage.search("gold", k=1)


def test_a_saved_pipeline_keeps_what_was_fitted(world: Path, tmp_path: Path) -> None:
    experiment = Experiment(load(settings(world)))
    stage = experiment.stage("both")
    stage.save(tmp_path / "saved")
    given = {"LengthScorer": experiment.scorer("long")} if "long" in stage.name else {}
    opened = load_pipeline(tmp_path / "saved", allow=OWN, given=given)
    queries = {"q": "gold river", "p": "stone number 7"}
    assert dict(opened.run(queries)) == dict(stage.run(queries))


def test_what_is_left_open_is_not_tuned(world: Path) -> None:
    from sluice.retrieval import jobs

    config = {**settings(world), "tune": {"budget": {"share_of_best": 0.9}}}
    config["tune"]["pipelines"] = ["hybrid % 10"]
    with pytest.raises(ConfigError, match=r"tune\.pipelines: .* leaves open what tuning would"):
        jobs.tune(config)


def test_parts_are_searched_once_for_all_fits(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.retrieval.retrievers.retriever import Retriever

    asked: list[tuple[str, int]] = []
    plain = Retriever.rank

    def counted(self: Any, queries: Any, given: Any = None, k: Any = None) -> Any:
        asked.append((self.name, len(queries)))
        return plain(self, queries, given, k)

    monkeypatch.setattr(Retriever, "rank", counted)
    experiment = Experiment(
        load(
            settings(
                world,
                hybrid="fitted(bm25, dense)",
                other="fitted(dense, bm25, measure='AP')",
                cascade="hybrid >> fitted(good, depth=5)",
            )
        )
    )
    for name in ("hybrid", "other", "cascade"):
        experiment.stage(name)
    assert sorted(asked) == [("bm25", 8), ("dense", 8)]


@pytest.mark.parametrize(("level", "count"), [(1, 8), (2, 0)])
def test_the_datasets_level_decides_what_is_judged(world: Path, level: int, count: int) -> None:
    config = {**settings(world), "dataset": {"name": str(world / "data"), "level": level}}
    queries = Experiment(load(config)).fits.queries
    assert (len(queries.qrels), queries.level) == (count, level)


def test_a_fit_by_command_counts_what_the_datasets_level_says(world: Path) -> None:
    config = settings(world, bm25="bm25", dense="dense")
    fit = fit_experiment_fusion(config, ["bm25", "dense"], measure="RR@10")
    assert fit.measure == "RR@10"
    config["dataset"] = {"name": str(world / "data"), "level": 2}
    fit = fit_experiment_fusion(config, ["bm25", "dense"], measure="RR@10")
    assert (fit.measure, fit.value) == ("RR(rel=2)@10", 0)  # no grade is above 1


def test_fits_over_a_training_dataset_are_of_the_models_of_the_experiment(world: Path) -> None:
    config = settings(world, hybrid="fitted(bm25, dense) >> cross(depth=5)")
    encoder = {"type": "cross_encoder", "model": str(world)}
    negatives = {"type": "mined", "retriever": "bm25", "per_query": 1}
    config["train"] = {"ft": {"encoder": encoder, "loss": "bce", "negatives": negatives}}
    config["rerankers"]["cross"] = {"type": "cross_encoder", "model": "ft"}
    write_beir(world / "other")
    experiment = Experiment(load(config))
    (over,) = experiment.collections([str(world / "other")], world / "work")
    other = over.source.__self__  # type: ignore[attr-defined]
    assert other.fits.needs.keys("train.ft") == experiment.needs.keys("train.ft")
