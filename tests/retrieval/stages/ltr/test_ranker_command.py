"""The command that trains a ranker: folders, pipelines, folds without leaks, wrong configs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from small_world import write_beir

CONFIG = """
dataset: {data}
output: {out}
retrievers:
  bm25: {{encoder: {{type: bm25}}}}
  words: {{encoder: {{type: "small_world:WordEncoder"}}}}
pipelines:
  hybrid: (bm25 | words) % 15
  blend: hybrid >> ltr(bm25, words, model='{out}/ranker', depth=15)
ranker: {{stages: [bm25, words], candidates: hybrid, depth: 15, model: linear}}
evaluate: {{measures: [nDCG@10], latency_queries: 0}}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ltr")
    file = folder / "ltr.yaml"
    file.write_text(CONFIG.format(data=write_beir(folder / "world"), out=folder / "out"))
    return file


def test_the_command_trains_and_the_pipeline_evaluates(config: Path, sluice: Call) -> None:
    code, out, err = sluice("fit", "ranker", config)
    assert code == 0, err
    assert "ranker: trained on" in out
    assert "weight" in out
    noted = json.loads((config.parent / "out" / "ranker" / "ranker.json").read_text())
    assert noted["facts"]["split"] == "train"
    assert noted["parts"]["bm25"] is None
    assert noted["parts"]["words"]
    code, out, err = sluice("evaluate", config)
    assert code == 0, err
    assert "blend" in out


def test_the_command_cross_validates(config: Path, sluice: Call) -> None:
    code, out, err = sluice("fit", "ranker", config, "--folds", 3)
    assert code == 0, err
    assert "ltr - words:" in out
    assert "p = " in out
    found = json.loads((config.parent / "out" / "folds.json").read_text())
    assert {system["name"] for system in found["systems"]} == {"ltr", "hybrid", "bm25", "words"}
    assert sluice("fit", "ranker", config, "--folds", 2)[0] == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ranker.split=test", "training on the test is refused"),
        ("ranker.candidates=hybird", "hybird"),
        ("ranker.model=forest", "forest"),
        ("ranker.features=[words.*, nothing]", "'nothing' matches no feature"),
        ("ranker=null", "ranker: missing"),
    ],
)
def test_wrong_configs_are_refused(config: Path, sluice: Call, override: str, message: str) -> None:
    code, _, err = sluice("fit", "ranker", config, override)
    assert code == 2
    assert message in err


def test_a_fold_s_ranker_sees_no_judgement_of_the_fold(config: Path) -> None:
    """Other judgements of a fold's queries change neither its features nor its scores."""
    from sluice.retrieval.config.sections import ExperimentConfig, load_config
    from sluice.retrieval.experiments.experiment import Experiment
    from sluice.retrieval.experiments.tuning.ranker_training import (
        _blended,
        _block,
        candidates_of,
        ranker_parts,
    )

    experiment = Experiment(load_config(config, ExperimentConfig))
    parts = ranker_parts(experiment)
    dataset = experiment.dataset("train")
    heads = candidates_of(parts, dataset)
    names = list(heads)
    members = [names[place::3] for place in range(3)]
    blocks = [_block(parts, dataset, {q: heads[q] for q in own}) for own in members]
    found, _ = _blended(parts, heads, members, blocks)
    changed = replace(blocks[0], grades=np.roll(blocks[0].grades, 3), ideals=blocks[0].ideals + 1)
    other, _ = _blended(parts, heads, members, [changed, *blocks[1:]])
    assert all(found[query] == other[query] for query in members[0])
    assert any(found[query] != other[query] for query in names)


def test_training_is_not_stopped_by_queries_that_are_tested(config: Path) -> None:
    from sluice.retrieval.config.sections import ExperimentConfig, load_config
    from sluice.retrieval.experiments.experiment import Experiment
    from sluice.retrieval.experiments.tuning.ranker_training import _splits

    on_dev = load_config(config, ExperimentConfig, ["evaluate.split=validation"])
    usual = Experiment(load_config(config, ExperimentConfig))
    train, dev = _splits(Experiment(on_dev), "train")
    assert set(train.queries) | set(dev.queries) == set(usual.dataset("train").queries)
    assert train.queries
    assert dev.queries
    assert set(_splits(usual, "train")[1].queries) == set(usual.dataset("dev").queries)
    assert all(part.queries for part in _splits(usual, "dev"))  # of fewer than ten


def test_a_ranker_does_not_learn_from_tested_queries(tmp_path: Path, sluice: Call) -> None:
    file, data = tmp_path / "ltr.yaml", write_beir(tmp_path / "world")
    file.write_text(CONFIG.format(data=data, out=tmp_path / "out"))
    shutil.copy(data / "qrels" / "test.tsv", data / "qrels" / "train.tsv")
    code, _, err = sluice("fit", "ranker", file)
    assert (code, "8 of 8 train queries (such as 'q20') are queries of test" in err) == (2, True)
    assert not (tmp_path / "out" / "retrievers").exists()
