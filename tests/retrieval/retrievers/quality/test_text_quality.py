"""Quality of documents by models of their text: trained from YAML, scored, and pruned before."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Call
from families import t5_whole
from small_training import TRAINER
from small_world import write_beir
from tiny_generators import save_t5

from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.generative.true_false import TrueFalseRanker
from sluice.retrieval import Experiment, load_dataset, train
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.summary import training_summary
from sluice.retrieval.retrievers.quality.scorers import (
    ANSWERS,
    AnswerQuality,
    TextQuality,
    text_quality,
    trained_on_quality,
)
from sluice.retrieval.retrievers.quality.scores import QualityScores
from sluice.retrieval.training_data.files.document_examples import QualityExamples

DOCUMENTS = [Document(str(n), "", text) for n, text in enumerate(
    ["the river of gold", "stone", "", "water in the sluice " * 40])]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tmp_path_factory.mktemp("world") / "data")


@pytest.fixture(scope="module")
def config(world: Path, pair_bert: Path, bert: Path, tmp_path_factory: Any) -> dict[str, Any]:
    """An experiment that trains a quality model and prunes by it before encoding."""
    return {
        "dataset": str(world),
        "output": str(tmp_path_factory.mktemp("out") / "run"),
        "train": {
            "worth": {
                "encoder": {"type": "cross_encoder", "model": str(pair_bert)},
                "loss": "rank_net",
                "examples": {"type": "quality", "labels": "any", "negatives": 2},
                "trainer": TRAINER,
            }
        },
        "retrievers": {
            "whole": {"encoder": {"type": "dense", "model": str(bert)}},
            "pruned": {
                "encoder": {"type": "dense", "model": str(bert)},
                "prune": {"model": "worth", "share": 0.3},
            },
        },
    }


@pytest.fixture(scope="module")
def made(config: dict[str, Any]) -> Experiment:
    experiment = Experiment(checked(config, ExperimentConfig))
    experiment.retriever("pruned")
    return experiment


def shares(dataset: Dataset) -> Counter[str]:
    found: Counter[str] = Counter()
    for grades in dataset.qrels.values():
        relevant = [name for name, grade in grades.items() if grade > 0]
        for name in relevant:
            found[name] += 1 / len(relevant)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("labels", ["share", "any"])
def test_examples_set_documents_beside_lesser_ones(world: Path, labels: Any) -> None:
    data = load_dataset(world, "train")
    expected = shares(data)
    top = max(expected.values())
    source = QualityExamples(labels, 2)
    first, again, second = (source.examples(data, 13, epoch) for epoch in (0, 0, 1))
    assert first == again != second
    texts = {document.id: document.full_text for document in data.corpus}
    for example in first:
        assert example.query.text == ""
        assert 2 <= len(example.documents) <= 3
        assert all(texts[document.id] == document.text for document in example.documents)
        own = [expected[document.id] for document in example.documents]
        goals = [value / top if labels == "share" else float(value > 0) for value in own]
        assert example.labels == pytest.approx(goals)
        assert all(example.labels[0] > label for label in example.labels[1:])
    learnt = {example.documents[0].id for example in first}
    assert learnt == set(expected)  # there are documents without any


@torch.no_grad()
def test_text_quality_is_the_logit_without_a_query(pair_bert: Path) -> None:
    from sluice.encoders import CrossEncoder

    encoder = CrossEncoder.from_pretrained(pair_bert, max_length=32)
    found = TextQuality(encoder).quality(DOCUMENTS)
    for document, value in zip(DOCUMENTS, found.tolist(), strict=True):
        tokens = encoder.tokenizer(
            [""], [document.full_text], truncation=True, max_length=32, return_tensors="pt"
        )
        assert value == pytest.approx(float(encoder.model(**tokens).logits), abs=1e-4)
    shuffled = TextQuality(encoder).quality(DOCUMENTS[::-1])[::-1]
    np.testing.assert_allclose(shuffled, found, atol=1e-5)
    assert len(TextQuality(encoder).quality([])) == 0


@torch.no_grad()
def test_a_seq2seq_model_answers_true_or_false(tmp_path: Path) -> None:
    scorer: Any = text_quality(t5_whole(tmp_path / "t5"))
    found = scorer.quality(DOCUMENTS[:2])
    tokenizer, model = scorer._model.tokenizer, scorer._model.model
    first = [tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in ANSWERS]
    same = next(n for n in range(9) if first[0][n] != first[1][n])
    for document, value in zip(DOCUMENTS, found.tolist(), strict=False):
        ids = tokenizer(f"Document: {document.full_text} Relevant:", return_tensors="pt")
        start = torch.tensor([[model.config.decoder_start_token_id, *first[0][:same]]])
        logits = model(**ids, decoder_input_ids=start).logits[0, -1].double()
        both = logits[[first[0][same], first[1][same]]].log_softmax(0)
        assert value == pytest.approx(float(both[0]), rel=1e-4, abs=1e-8)  # of float32
    assert scorer.name == "answer"

    class Silent:
        fingerprint = "none"

        def answers(self, prompts: Any, choices: Any) -> Any:
            return np.full((len(prompts), 2), np.nan)

    with pytest.raises(ModelError, match="answers neither true nor false to 'Document:"):
        AnswerQuality(Silent()).quality(DOCUMENTS[:1])  # type: ignore[arg-type]


@pytest.mark.thorough
def test_yaml_prunes_before_anything_is_encoded(
    sluice: Call, made: Experiment, config: dict[str, Any], world: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = made.model("worth")
    assert trained_on_quality(Path(folder))
    assert "answers nothing: prune: {model: " in training_summary(Path(folder))
    data = load_dataset(world, None)
    expected = text_quality(folder).quality(list(data.corpus))
    pruned = made.retriever("pruned")
    assert len(pruned) == 28  # of 40
    kept = {document.id for document in pruned}
    order = np.argsort(expected, kind="stable")
    names = [document.id for document in data.corpus]
    assert kept == {names[place] for place in order[12:].tolist()}
    # The command writes the same scores; so pruned, the index is the same.
    file = tmp_path / "q.parquet"
    words = ("fit", "quality", world, "--by", "text", "--model", folder, "--output", file)
    code, out, err = sluice(*words)
    assert code == 0, err
    assert "quality of 40 documents by text" in out
    np.testing.assert_allclose(QualityScores.load(file).scores, expected, atol=1e-5)
    # Nothing is built twice: the folder's key knows the model.
    before = json.loads((pruned.path / "retriever.json").read_text())
    again = Experiment(checked(config, ExperimentConfig))
    again.retriever("pruned")
    assert json.loads((pruned.path / "retriever.json").read_text()) == before
    assert "was not trained by examples" not in caplog.text


@pytest.mark.thorough
def test_yaml_trains_a_model_that_answers_true_or_false(
    sluice: Call, world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = save_t5(tmp_path / "t5", d_model=32, initializer_factor=1.0, dropout_rate=0.0)
    config = {
        "dataset": str(world),
        "output": str(tmp_path / "run"),
        "train": {
            "worth": {
                "encoder": {"type": "true_false", "model": str(start)},
                "loss": "bce",
                "examples": {"type": "quality", "labels": "any", "negatives": 2},
                "trainer": {**TRAINER, "max_steps": 60, "learning_rate": 0.01},
            }
        },
        "retrievers": {"pruned": {"encoder": "bm25", "prune": {"model": "worth", "share": 0.3}}},
        "rerankers": {"asked": {"type": "true_false", "model": "worth"}},
        "pipelines": {"asked": "pruned % 10 >> asked(depth=5)"},
    }
    (tmp_path / "x.yaml").write_text(json.dumps(config))
    code, _, err = sluice("config", "check", tmp_path / "x.yaml", "--fast")
    assert code == 0, err
    code, _, err = sluice("index", tmp_path / "x.yaml")
    assert code == 0, err
    folder = tmp_path / "run" / "models" / "worth"
    assert trained_on_quality(folder)
    data = load_dataset(world, "train")
    relevant = shares(data)
    told = []
    for model in (start, folder):
        encoder = TrueFalseRanker.from_pretrained(model)
        texts = [("", document.full_text) for document in data.corpus]
        found = dict(zip([d.id for d in data.corpus], encoder.score(texts).tolist(), strict=True))
        lesser = [found[name] for name in found.keys() - relevant.keys()]
        above = [found[name] > other for name in relevant for other in lesser]
        told.append(sum(above) / len(above))
    assert told[1] > max(0.9, told[0])
    quality = text_quality(folder).quality(list(data.corpus))
    np.testing.assert_allclose(quality, list(found.values()), atol=1e-4)
    worst = {list(found)[place] for place in np.argsort(quality, kind="stable")[:12].tolist()}
    kept = {
        document.id
        for document in Experiment(checked(config, ExperimentConfig)).retriever("pruned")
    }
    assert kept == found.keys() - worst
    assert "was not trained by examples" not in caplog.text
    code, out, err = sluice(
        "search", tmp_path / "run", "gold river", "--pipeline", "asked", "-k", "2"
    )
    assert (code, "d" in out) == (0, True), err
    card = (folder / "README.md").read_text()
    assert "# True/false ranker trained" in card
    assert "64 of a pair" in card


def test_a_model_with_queries_is_warned_of(
    pair_bert: Path, bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        text_quality(pair_bert)
    assert "was not trained by examples: {type: quality}; what it makes" in caplog.text
    with pytest.raises(ModelError, match=r"a dense encoder; expected a cross_encoder trained by"):
        text_quality(bert)


def test_data_that_tells_nothing_apart_is_refused(world: Path) -> None:
    with pytest.raises(DataError, match="no train split, and examples of type quality learn fr"):
        QualityExamples().examples(load_dataset(world, None), 13)
    corpus = [Document("a", "", "gold"), Document("b", "", "stone")]
    same = Dataset.from_memory(corpus, {"q": "x"}, {"q": {"a": 1, "b": 1}}, split="train")
    with pytest.raises(DataError, match="all 2 documents are as relevant to train queries"):
        QualityExamples().examples(same, 13)
    empty = Dataset.from_memory(corpus, {"q": "x"}, {"q": {"gone": 1}}, split="train")
    with pytest.raises(DataError, match="no text of a document relevant to a train query"):
        QualityExamples().examples(empty, 13)


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        ({"share": 0.3}, "expected either scores, a file, or model, which makes them"),
        ({"share": 0.3, "scores": "a", "model": "b"}, "expected either scores, a file, or model"),
        (
            {"share": 0.3, "model": "dense"},
            r"one.prune.model: .*: a dense encoder; expected a cros",
        ),
        ({"share": 0.3, "scores": "none"}, "prune.scores: no file 'none'; sluice fit quality"),
    ],
)
def test_a_prune_section_that_cannot_be(
    config: dict[str, Any], bert: Path, prune: dict[str, Any], message: str
) -> None:
    plain = {"encoder": {"type": "dense", "model": str(bert)}, "loss": "info_nce"}
    other = {**config, "train": {**config["train"], "plain": plain}}
    if prune.get("model") == "dense":
        prune = {**prune, "model": str(bert)}
    other["retrievers"] = {"one": {"encoder": "bm25", "prune": prune}}
    with pytest.raises(ConfigError, match=message):
        check_experiment(checked(other, ExperimentConfig))


def test_a_training_without_a_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dataset: missing: examples of type quality are made"):
        train({
            "output": "o", "encoder": {"type": "cross_encoder", "model": "m"}, "loss": "rank_net",
            "examples": {"type": "quality"},
        })  # fmt: skip
