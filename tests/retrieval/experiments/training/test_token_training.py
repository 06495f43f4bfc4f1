"""Token encoders trained from YAML: a journey, teachers, several datasets, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from sentence_transformers import MultiVectorEncoder
from small_world import documents, write_beir

from sluice.encoders import TokenEncoder
from sluice.encoders.foundation.tokens import TokenVectors, max_sim
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import Dataset, train
from sluice.retrieval.config.sections import DevSection, TrainConfig, checked
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.experiments.training.dev_evaluation import dev_evaluation
from sluice.retrieval.runs.run import Run
from sluice.training.negatives.false_negatives import JudgedPair

BM25 = {"encoder": {"type": "bm25"}, "index": {"type": "inverted"}}
MINED = {"type": "mined", "retriever": BM25, "per_query": 1, "mode": "naive"}


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "encoder": {
            "type": "tokens", "model": str(bert), "dim": 16, "query_length": 12,
            "document_length": 24,
        },
        "loss": "info_nce",
        "negatives": MINED,
        "trainer": {
            "max_steps": 4, "per_device_train_batch_size": 6, "learning_rate": 1.0e-3,
            "logging_steps": 1,
        },
    }  # fmt: skip


def logged(config: dict[str, Any], name: str) -> list[float]:
    file = Path(config["output"]) / "training" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line[name] for line in lines if name in line]


PAIRS = {"gold": "vector", "river": "model", "stone": "train", "water": "learn", "sluice": "rank"}


def write_synonyms(folder: Path) -> Path:
    """Write a collection whose queries and documents have no word in common; see ``PAIRS``."""
    (folder / "qrels").mkdir(parents=True)
    words = list(PAIRS)
    corpus, queries = [], []
    splits: dict[str, list[str]] = {split: ["query-id\tcorpus-id\tscore"] for split in
                                    ("train", "dev", "test")}  # fmt: skip
    for a, b in itertools.permutations(words, 2):
        corpus.append({"_id": a + b, "title": "", "text": f"the {a} and {a} of {b}"})
        one, two = PAIRS[a], PAIRS[b]
        texts = {"train": f"{one} {one} {two}", "dev": f"{one} to {one} {two}", "test": one}
        for split, text in texts.items():
            queries.append(
                {"_id": f"{split}{a}{b}", "text": f"{text} {a if split == 'test' else ''}"}
            )
            splits[split].append(f"{split}{a}{b}\t{a}{b}\t1")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, lines in splits.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("scoring", ["max_sim", "xtr"])
def test_the_dev_measure_rises_and_the_model_is_everybodys(
    config: dict[str, Any], tmp_path: Path, sluice: Call, scoring: str
) -> None:
    del config["negatives"]
    config |= {
        "dataset": str(write_synonyms(tmp_path / "synonyms")),
        "scoring": scoring, "gradient_cache": 4, "head_learning_rate": 5.0e-3,
        "evaluate": {"measures": ["nDCG@10"], "every": 20, "margin": 0, "shares": [0.5]},
    }  # fmt: skip
    config["trainer"] |= {"max_steps": 60, "learning_rate": 2.0e-3, "bf16": scoring == "xtr"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    code, out, err = sluice("train", tmp_path / "mine.yaml")
    assert code == 0, err
    dev = logged(config, "eval_nDCG@10")
    assert max(dev) > dev[0] + 0.2
    assert out.startswith("token encoder from bert, trained with info_nce")
    folder = Path(config["output"]) / "model"
    ours = TokenEncoder.from_pretrained(folder, device="cpu")
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    texts = [document.full_text for document in documents(6)]
    for one, other in zip(ours.encode_documents(texts), theirs.encode_document(texts), strict=True):
        assert np.allclose(one, np.asarray(other), atol=1e-5)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "16 dimensions of each token, compared by max_sim" in card
    assert "MultiVectorEncoder" in card
    for code_block in re.findall(r"```python\n(.*?)```", card, re.S):
        exec(code_block.replace("FOLDER", str(folder)), {})


@pytest.mark.parametrize("attend", [False, True])
def test_parts_of_a_batch_are_filled_up_again(bert: Path, attend: bool) -> None:
    """The gradient cache cuts texts to those that are seen; unseen mask tokens have vectors too."""
    encoder = TokenEncoder.from_pretrained(
        bert, dim=16, query_length=12, attend_to_expansion=attend, device="cpu"
    )
    features = encoder.tokenize(["gold", "the river of stone"], "query")
    longest = int(features["attention_mask"].sum(1).max())
    cut = {name: values[:, :longest] for name, values in features.items()}
    assert (longest < 12) is not attend
    whole, part = encoder.embed(features, "query"), encoder.embed(cut, "query")
    assert whole.shape == part.shape == (2, 12, 16)
    assert np.allclose(whole.detach().numpy(), part.detach().numpy(), atol=1e-6)
    assert whole.any(2).all()


def test_dev_evaluation_is_exact_max_sim(bert: Path) -> None:
    docs = documents()
    queries = {"a": "gold river", "b": "the index of stone", "c": "rank"}
    qrels = {"a": {docs[3].id: 1}, "b": {docs[12].id: 1, docs[2].id: 1}, "c": {docs[8].id: 1}}
    data = Dataset.from_memory(docs, queries, qrels, split="dev")
    encoder = TokenEncoder.from_pretrained(bert, dim=16, device="cpu")
    section = DevSection(measures=["nDCG@10", "RR"])
    measured = dev_evaluation(data, section, seed=1, candidates=None)(encoder)
    texts = encoder.encode_documents([document.full_text for document in docs])
    run = {}
    for name, query in queries.items():
        (vectors,) = encoder.encode_queries([query])
        sums = [sum(max(float(q @ d) for d in text) for q in vectors) for text in texts]
        run[name] = [
            (d.id, s) for s, d in sorted(zip(sums, docs, strict=True), key=lambda p: -p[0])
        ]
    expected = evaluate(Run(run), qrels, section.measures).mean
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "loss",
    [
        {"type": "kl_div", "temperature": 0.25, "teacher_temperature": 0.25},
        {"type": "margin_mse"},
        {"type": "sum", "losses": [{"type": "kl_div"}, {"type": "info_nce"}]},
        {"type": "matryoshka", "dims": [16, 8]},
        {"type": "kl_div", "negatives": "all", "teacher_temperature": 5.0},
    ],
)
def test_losses_and_teachers_of_every_kind(
    config: dict[str, Any], masked_bert: Path, pair_bert: Path, bert: Path, loss: dict[str, Any]
) -> None:
    """Scored before training by a cross-encoder beside others, or batch by batch by encoders."""
    config["loss"] = loss
    dense, tokens = ({"type": kind, "model": str(bert)} for kind in ("dense", "tokens"))
    if loss.get("negatives") == "all":
        config["teacher"] = ["bm25", dense, tokens]
    elif loss["type"] != "matryoshka":
        splade = {"type": "splade", "model": str(masked_bert)}
        config["teacher"] = ["bm25", dense, splade, tokens, str(pair_bert)]
    folder = train(config)
    assert len(logged(config, "loss")) == 4
    assert isinstance(open_encoder(folder), TokenEncoder)


def test_a_token_encoder_as_a_teacher_of_pairs(bert: Path) -> None:
    from sluice.retrieval.training_data.teachers.teachers import ModelTeacher

    encoder = TokenEncoder.from_pretrained(bert, dim=16, device="cpu")
    texts = [d.full_text for d in documents(5)]
    cells = [(1, 4), (0, 0), (1, 2), (0, 3)]
    queries = ["gold river", "water"]
    pairs = [JudgedPair(f"q{q}", queries[q], f"d{d}", texts[d]) for q, d in cells]
    scores = ModelTeacher(encoder, "tokens").scores(pairs)
    every = max_sim(encoder.encode_queries(queries), encoder.encode_documents(texts))
    assert scores.tolist() == pytest.approx([every[cell] for cell in cells])
    empty = TokenVectors(np.zeros((0, 16), np.float32), np.zeros(2, np.int64))
    encoder.encode_documents = lambda texts: empty  # type: ignore[method-assign]
    width = int(encoder.encode_queries(queries[:1]).lengths[0])
    (least,) = ModelTeacher(encoder, "tokens").scores(pairs[1:2])
    assert least == -width


@pytest.mark.thorough
def test_negatives_of_its_own_and_several_datasets(config: dict[str, Any], tmp_path: Path) -> None:
    del config["dataset"]
    config["datasets"] = [str(tmp_path / "data"), str(write_synonyms(tmp_path / "synonyms"))]
    config["negatives"] = {**MINED, "retriever": [BM25, "self"], "refresh": 2, "per_query": 2}
    config["evaluate"] = {"measures": ["nDCG@10"], "every": 2}
    train(config)
    assert len(logged(config, "eval_nDCG@10 synonyms")) == 3
    reports = list((Path(config["output"]) / "training").rglob("mining*.json"))
    assert len(reports) == 2 * 2  # of each dataset, at the start and after two steps


@pytest.mark.parametrize("settings", [{"tuning": "lora"}, {"freeze": {"layers": 1}}])
def test_parts_are_trained(config: dict[str, Any], bert: Path, settings: dict[str, Any]) -> None:
    config |= settings
    after = TokenEncoder.from_pretrained(train(config), device="cpu")
    start = TokenEncoder.from_pretrained(bert, dim=16, device="cpu")
    assert after.projection is not None
    assert start.projection is not None
    moved = {
        name
        for (name, one), (_, other) in zip(
            after.module.named_parameters(), start.module.named_parameters(), strict=True
        )
        if not np.allclose(one.detach().numpy(), other.detach().numpy(), atol=1e-7)
    }
    assert any("projection" in name for name in moved)
    lowest = [name for name in moved if "layer.0." in name]
    assert bool(lowest) == ("tuning" in settings)
    assert any("word_embeddings" in name for name in moved) != ("tuning" in settings)


def test_what_fits(config: dict[str, Any]) -> None:
    for changes in ({"scoring": "mean_max_sim", "loss": {"type": "psl"}},
                    {"scoring": "xtr", "xtr_top_k": 40}, {"scoring": "max_sim"}):  # fmt: skip
        check_training(checked({**config, **changes}, TrainConfig), "")
