"""Every problem of a config is found at once, and none that is not one."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click_logs import CLICK, write_log
from command_line import Call
from places import ROOT

from sluice.retrieval import Retriever
from sluice.retrieval.config.sections import load_values
from sluice.retrieval.planning.problems import problems

NEEDS_A_MODEL = {"index-splade", "train-dense-distil"}  # of another config
GOOD: dict[str, Any] = {
    "dataset": "DATASET",
    "train": {
        "ft": {
            "encoder": {"type": "dense", "model": "MODEL"},
            "loss": "info_nce",
            "negatives": {"type": "mined", "retriever": "bm25"},
        }
    },
    "retrievers": {"bm25": "bm25", "dense": {"encoder": {"type": "dense", "model": "ft"}}},
    "rerankers": {"cross": {"type": "cross_encoder", "model": "MODEL"}},
    "pipelines": {"bm25": "bm25", "hybrid": "bm25 | dense", "cascade": "hybrid >> cross"},
    "evaluate": {"baseline": "bm25"},
}


@pytest.fixture
def good(beir: Path, tmp_path: Path) -> dict[str, Any]:
    """A config without problems: its models are folders that exist, which is all that is asked."""
    (tmp_path / "model").mkdir()
    values = copy.deepcopy(GOOD)
    values["dataset"] = str(beir)
    values["train"]["ft"]["encoder"]["model"] = str(tmp_path / "model")
    values["rerankers"]["cross"]["model"] = str(tmp_path / "model")
    return values


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = ["cats and dogs", "birds fly south", "fish swim"]
    (folder / "corpus.jsonl").write_text(
        "".join(f'{{"_id": "d{n}", "title": "", "text": "{t}"}}\n' for n, t in enumerate(texts))
    )
    (folder / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{n}", "text": "{w}"}}\n' for n, w in enumerate(("dogs", "birds")))
    )
    for split, query, document in (("train", "q0", "d0"), ("test", "q1", "d1")):
        text = f"query-id\tcorpus-id\tscore\n{query}\t{document}\t1\n"
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        *parents, last = path.split("/")
        place = values
        for parent in parents:
            place = place[parent]
        place[last] = value
    return values


def test_a_good_config_has_none(good: dict[str, Any]) -> None:
    assert problems(good) == []
    assert problems({**good, "dataset": [good["dataset"], {"name": good["dataset"]}]}) == []


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"datset": "x"}, ["datset: unknown key"]),
        (
            {
                "seed": "x",
                "retrievers/bm25": {"enocder": "bm25"},
                "retrievers/dense/index": {"type": "hnsw"},
                "pipelines/hybrid": "bm25 | dens",
                "evaluate/baseline": "bm52",
            },
            [
                "seed: 'x'; expected a whole number",
                "retrievers.bm25.encoder: missing (required)",
                "retrievers.bm25.enocder: unknown key",
                "pipelines.hybrid: unknown name 'dens'",
                "evaluate.baseline: no pipeline 'bm52'",
                "retrievers.dense.index.type: unknown type 'hnsw'; HNSW is",
            ],
        ),
        (
            {
                "retrievers/bm25": {"encoder": {"type": "bm-25"}, "index": {"type": "flat"}},
                "train/ft/loss": {"type": "info_nce", "temprature": 1},
                "train/ft/trainer": {"learning_rate": "2e-5", "max_step": 3},
                "train/ft/negatives": {"type": "mined", "retriever": "bm", "mode": "naiv"},
                "evaluate/measures": ["nDGC@10", "R@100", "recal@5"],
            },
            [
                "evaluate.measures: unknown measure 'nDGC@10'",
                "evaluate.measures: unknown measure 'recal@5'",
                "retrievers.bm25.encoder.type: unknown type 'bm-25'",
                "train.ft.negatives.mode: 'naiv'",
                "train.ft.trainer.learning_rate: '2e-5'",
                "train.ft.trainer.max_step: ",
                "train.ft.loss.temprature: ",
                "train.ft.negatives.retriever: ",
            ],
        ),
        (
            {"rerankers/cross": {"type": "cross_encoder"}, "pipelines/two": "cross", "output": 3},
            ["output: 3", "rerankers.cross: cross_encoder needs", "pipelines.two: 'cross' begins"],
        ),
        (
            {"dataset": "/nowhere", "retrievers/x y": "bm25"},
            ["dataset: ", "retrievers.x y: a name"],
        ),
        (
            {"dataset": ["/nowhere", "/nor/here"], "evaluate/alpha": 3},
            ["dataset[0]: ", "dataset[1]: ", "evaluate.alpha: 3"],
        ),
        ({"evaluate/split": "dev"}, ["evaluate.split: the dataset has test, train, not 'dev'"]),
        (
            {"retrievers/dense/encoder": {"type": "dense", "model": "./no/such"}},
            ["retrievers.dense.encoder.model: ./no/such: no such model folder"],
        ),
        (
            {
                "retrievers/dense": {
                    "encoder": {"type": "dense", "model": "./no/such", "poolin": "mean"},
                    "index": "flatt",
                    "passages": {"length": 0},
                },
                "retrievers/bm25": {"encoder": "bm52", "index": "invrted"},
                "train/ft/encoder/model": "./nor/this",
                "train/ft/loss": "infonce",
                "rerankers/cross": {"type": "cross_encoder", "model": "./nor/that", "x": 1},
            },
            [
                "retrievers.dense.encoder.poolin: ",
                "retrievers.dense.encoder.model: ./no/such: no such model folder",
                "retrievers.dense.index.type: unknown type 'flatt'",
                "retrievers.dense.passages.length: ",
                "retrievers.bm25.encoder.type: unknown type 'bm52'",
                "retrievers.bm25.index.type: unknown type 'invrted'",
                "train.ft.encoder.model: ./nor/this: no such model folder",
                "train.ft.loss.type: unknown type 'infonce'",
                "rerankers.cross.x: ",
                "rerankers.cross.model: ./nor/that: no such model folder",
            ],
        ),
    ],
)
def test_all_of_them_at_once(
    good: dict[str, Any], changes: dict[str, Any], begins: list[str]
) -> None:
    found = problems(changed(good, changes))
    assert len(found) == len(begins), found
    for begin in begins:
        assert any(text.startswith(begin) for text in found), (begin, found)


def test_all_rules_that_a_training_run_breaks(good: dict[str, Any]) -> None:
    good["train"]["ft"] |= {
        "loss": {"type": "bce"}, "sparsity": {"target_doc_terms": 9},
        "scoring": "xtr", "head_learning_rate": 0.1,
    }  # fmt: skip
    found = problems(good)
    assert [text.partition(": ")[0].removeprefix("train.ft.") for text in found] == [
        "loss", "sparsity", "scoring", "head_learning_rate",
    ]  # fmt: skip


def test_of_one_training_run(good: dict[str, Any], tmp_path: Path) -> None:
    training = {"output": "x", "dataset": good["dataset"], **good["train"]["ft"]}
    training["negatives"] = {"type": "mined", "retriever": {"encoder": "bm25"}}
    assert problems(training) == []
    del training["output"]
    training |= {"loss": {"type": "infonce"}, "examples": str(tmp_path / "pairs.csv")}
    found = problems(training)
    assert [text.partition(":")[0] for text in found] == ["output", "examples.file", "loss.type"]


def test_folders_of_teachers_judges_and_negatives_are_opened(
    good: dict[str, Any], tmp_path: Path
) -> None:
    writer, empty = tmp_path / "writer", tmp_path / "empty"
    for folder in (writer, empty):
        folder.mkdir()
    (writer / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    training = good["train"]["ft"]
    training["teacher"] = str(writer)
    training["loss"] = {"type": "kl_div"}
    training["negatives"] |= {"retriever": ["bm25", str(empty)], "judge": str(empty)}
    found = problems(good)
    assert [text.partition(": ")[0] for text in found] == [
        "train.ft.teacher", "train.ft.negatives.retriever[1]", "train.ft.negatives.judge",
    ]  # fmt: skip
    for text, fault in zip(
        found, ("{type: generative", "retriever.json", "not a model folder"), strict=True
    ):
        assert fault in text
    Retriever.build("bm25", {"d0": "cats"}, path=tmp_path / "lists")
    bert = {"architectures": ["BertModel"], "model_type": "bert"}
    (writer / "config.json").write_text(json.dumps(bert))
    training["negatives"] |= {"retriever": str(tmp_path / "lists"), "judge": [str(writer)]}
    assert problems(good) == []


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_configs_of_the_project(
    file: Path, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "clicks.jsonl", [CLICK])  # that production-hybrid.yaml learns from
    monkeypatch.chdir(tmp_path)
    values = load_values(file, [f"dataset={beir}"])
    found = problems(values, file)
    if file.stem in NEEDS_A_MODEL:
        assert all("no such model folder" in text or "no model folder" in text for text in found)
    elif file.stem == "reference":  # its reranker starts from a checkpoint to be fetched
        [missing] = found
        assert "sluice model get splade-tiny brings it" in missing
    else:
        assert found == []


def test_on_the_command_line(
    sluice: Call, good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, out, err = sluice("config", "check", "bm25", "dataset=beir", "sed=1", "retrievers.x=3")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].endswith("bm25.yaml: 2 problems")
    assert err.splitlines()[1].startswith("  retrievers.x: 3")
    code, out, err = sluice("config", "check", "bm25", "dataset=beir")
    assert (code, err) == (0, "")
    assert "index bm25     bm25, 3 documents" in out
    assert "evaluate bm25  1 queries of test" in out
    fast = sluice("config", "check", "bm25", "dataset=beir", "--fast")[1]
    assert "index bm25     bm25, 3 documents" in fast
    assert sorted(tmp_path.iterdir()) == before  # nothing is written
    assert sluice("run", "bm25", "dataset=beir")[0] == 0
    code, out, err = sluice("config", "check", "bm25", "dataset=beir")
    assert out.count("there already, reused") == 2
    assert "in all: everything exists already\n" in out
    assert sluice("config", "check", "bmm25")[2] == (
        "error: bmm25: no such file; did you mean 'bm25'?\n"
    )
