"""Training on pairs of the user's own, without a dataset, up to a search with the model."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import Call
from sentence_transformers import SentenceTransformer
from small_world import documents, write_beir

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import Retriever, index, jobs, train
from sluice.retrieval.experiments.training.summary import training_summary, without_folders

WORLD = documents(40)
PAIRS = [(" ".join(d.text.split()[:3]), d.full_text, WORLD[n - 7].full_text)
         for n, d in enumerate(WORLD)]  # fmt: skip
BM25 = {"encoder": {"type": "bm25"}}


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    frame = pd.DataFrame(PAIRS, columns=["question", "good", "bad"])
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    return {
        "output": str(tmp_path / "out"),
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": "info_nce",
        "examples": {
            "file": str(tmp_path / "pairs.csv"), "columns": {"positive": "good", "negative": "bad"},
        },
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1},
    }  # fmt: skip


@pytest.mark.thorough
def test_a_file_of_pairs_trains_a_model_that_searches(
    config: dict[str, Any], tmp_path: Path, sluice: Call, caplog: pytest.LogCaptureFixture
) -> None:
    config["evaluate"] = {"measures": ["ndcg@10"], "every": 1}
    with caplog.at_level(logging.INFO, "sluice"):
        folder = train(config)
    assert "query 'question', positive 'good', negative 'bad'" in caplog.text
    assert "evaluate: 4 of 40 queries are held out of training as dev queries" in caplog.text
    assert read_json(folder / "manifest.json")["examples"] == 36
    encoder = open_encoder(folder)
    texts = [document.full_text for document in WORLD[:5]]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.allclose(encoder.encode_documents(texts), theirs, atol=1e-5)
    retriever = Retriever.build(encoder, WORLD)
    assert len(list(retriever.search(PAIRS[0][0], k=3))) == 3
    check_card((folder / "README.md").read_text(encoding="utf-8"), folder, tmp_path)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    code, out, err = sluice("train", tmp_path / "mine.yaml")
    assert (code, "already trained with these settings" in err) == (0, True)
    assert out == f"{training_summary(folder)}\n"
    lines = out.splitlines()
    assert lines[:2] == [
        "dense encoder from bert, trained with info_nce",
        "  examples  36 from pairs.csv; 4 queries held out for dev",
    ]
    assert re.fullmatch(r"  training  .* in .*, at most \d+\.\d GB of memory", lines[2])
    assert lines[4].startswith("  nDCG@10   0.")
    assert lines[6].endswith(f"{{encoder: {{type: dense, model: {folder}}}}} under retrievers:")


def check_card(card: str, folder: Path, private: Path) -> None:
    """Check a card's metadata and table, that its code runs, and that no folder is in it."""
    assert str(private) not in card
    assert str(private.parent) not in card
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["library_name"] == "sentence-transformers"
    assert "base_model" not in metadata  # a folder of this machine
    assert "| trained on | 36 examples from pairs.csv |" in card
    assert "| step | nDCG@10 |" in card
    codes = [part.split("```")[0] for part in card.split("```python\n")[1:]]
    for code in codes:
        exec(compile(code.replace("FOLDER", str(folder)), "card", "exec"), {})
    assert len(codes) == 2


def test_without_dev_evaluation_every_pair_is_trained_on(config: dict[str, Any]) -> None:
    rows = pd.DataFrame([pair[:2] for pair in PAIRS], columns=["query", "positive"])
    folder = train({**config, "examples": rows})
    assert read_json(folder / "manifest.json")["examples"] == 40
    experiment = {"output": config["output"], "train": {"ft": {"examples": rows}, "x": None}}
    trained = jobs._with_rows_written(experiment)["train"]
    written = Path(config["output"]) / "training" / "ft" / "pairs.jsonl"
    assert trained == {"ft": {"examples": {"type": "file", "file": str(written)}}, "x": None}
    before = (folder / "manifest.json").stat().st_mtime_ns
    assert train({**config, "examples": rows}) == folder
    assert (folder / "manifest.json").stat().st_mtime_ns == before  # made before: the same rows


def test_a_cross_encoder_reranks_what_bm25_finds_among_the_pairs(
    config: dict[str, Any], pair_bert: Path
) -> None:
    folder = train({
        **config, "encoder": {"type": "cross_encoder", "model": str(pair_bert)}, "loss": "bce",
        "evaluate": {"measures": ["RR@10"], "every": 2},
    })  # fmt: skip
    assert read_json(folder / "manifest.json")["best_value"] > 0


def test_a_splade_encoder_starts_from_the_documents_of_the_pairs(
    config: dict[str, Any], bert: Path
) -> None:
    encoder = {"type": "splade", "model": str(bert), "start": True}
    folder = train({**config, "encoder": encoder})
    assert open_encoder(folder).encode_documents(["gold river"]).shape[0] == 1


def test_training_begins_with_drawn_weights_in_a_models_shape(
    config: dict[str, Any], pair_bert: Path
) -> None:
    encoder = {"type": "cross_encoder", "model": str(pair_bert), "layers": 1}
    frozen = {
        **config,
        "encoder": encoder,
        "loss": "bce",
        "freeze": {"layers": 1, "embeddings": True},
    }
    weights = []
    for name, start in (("whole", {}), ("drawn", {"start": {"type": "drawn"}})):
        changed = {
            **frozen,
            "encoder": {**encoder, **start},
            "output": f"{config['output']}-{name}",
        }
        folder = train(changed)
        weights.append(open_encoder(folder).model.bert.embeddings.word_embeddings.weight)
    assert not weights[0].allclose(weights[1])
    with pytest.raises(ConfigError, match="type fresh or drawn"):
        train({**frozen, "encoder": {**encoder, "start": True}})


def test_a_dataset_without_judgements_leaves_dev_queries_to_the_pairs(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_beir(tmp_path / "data")
    for split in (data / "qrels").iterdir():
        split.unlink()
    mined = {"type": "mined", "retriever": BM25, "per_query": 1, "mode": "naive"}
    with caplog.at_level(logging.INFO, "sluice"):
        folder = train({
            **config, "dataset": str(data), "negatives": mined, "evaluate": {"every": 2},
        })  # fmt: skip
    assert "4 of 40 queries are held out" in caplog.text
    assert read_json(folder / "manifest.json")["examples"] == 36


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"examples": None}, r"^dataset: missing: it has the queries and judgements.*examples: pa"),
        ({"examples": "ict"}, r"^dataset: missing: examples of type ict are made from a corpus; n"),
        ({"loss": "masked_language", "examples": None, "encoder": {"type": "splade", "model": "m"}},
         r"^dataset: missing: examples of type texts are made"),
        ({"evaluate": {"by": "judgements"}}, r"^dataset: missing: evaluate.by: judgements: the"),
        ({"negatives": {"type": "mined", "retriever": BM25}},
         r"^dataset: missing: negatives are documents of a corpus; name the dataset"),
    ],
)  # fmt: skip
def test_what_needs_a_corpus_names_the_key(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train({**config, **changes})


def test_ids_without_texts_need_a_dataset(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "ids.tsv").write_text("q1\td00\td03\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ids.tsv:1 has ids whose texts are a corpus's; name th"):
        train({**config, "examples": str(tmp_path / "ids.tsv")})


def test_a_file_of_no_known_columns_is_refused_before_any_work(
    config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "odd.jsonl").write_text(json.dumps({"a": "b", "c": "d", "e": "f"}) + "\n")
    config["encoder"] = {"type": "dense", "model": "no/model"}
    with pytest.raises(DataError, match=r"odd\.jsonl:1: unknown format.*say which column is which"):
        train({**config, "examples": str(tmp_path / "odd.jsonl")})


def test_splade_from_a_plain_model_is_refused_before_any_work(
    config: dict[str, Any], bert: Path
) -> None:
    encoder = {"type": "splade", "model": str(bert)}
    with pytest.raises(ConfigError, match=r"^encoder.model: .*write start: true beside model"):
        train({**config, "encoder": encoder})
    values = {"dataset": "no such dataset", "retrievers": {"s": {"encoder": encoder}}}
    with pytest.raises(ConfigError, match=r"^retrievers.s.encoder.model: .*train one under train"):
        index(values)


def test_too_few_pairs_to_hold_out(config: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="1 distinct judged query; holding out a dev split takes"):
        train({**config, "examples": [PAIRS[0]], "evaluate": {}})


def test_settings_are_told_without_folders() -> None:
    settings = {"a": ["/home/me/x.csv", "~/m", "../up/y", "owner/model", "C:\\d\\z"], "b": {"c": 1}}
    assert without_folders(settings) == {
        "a": ["x.csv", "m", "y", "owner/model", "z"], "b": {"c": 1},
    }  # fmt: skip
