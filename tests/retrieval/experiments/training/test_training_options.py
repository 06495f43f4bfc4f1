"""Every option of a training section, from YAML to a model that opens, on a tiny collection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import BM25, INFO, MINED, TRAINER, short_training

from sluice.encoders import TowerEncoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import load_dataset, train


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return short_training(tmp_path, bert)


def lines(config: dict[str, Any]) -> list[dict[str, float]]:
    file = Path(config["output"]) / "training" / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_cache": 2},
        {"positives": 3, "loss": {"type": "decoupled_softmax"}},
        {"labels": "unit", "loss": {"type": "bixse"}},
        {"labels": "grades", "negatives": MINED, "loss": {"type": "lambda_loss"}},
        {"negatives": MINED, "loss": {"type": "clp"}},
        {"loss": {"type": "info_nce", "logq": True}},
        {"loss": {"type": "matryoshka", "loss": INFO, "dims": [32, 8]}},
        {"loss": {"type": "matryoshka_2d", "loss": INFO}, "gradient_cache": 3},
        {"loss": {"type": "momentum_queue", "loss": INFO, "size": 8}},
        {"tuning": {"type": "lora", "rank": 2}},
        {"tuning": {"type": "bitfit"}, "freeze": {"layers": 1}},
        {"examples": {"type": "bfs"}, "gradient_cache": 4},
    ],
    ids=lambda options: "-".join(str(v)[:28] for v in options.values()),
)
def test_an_option_trains_a_model_that_opens(
    config: dict[str, Any], options: dict[str, Any]
) -> None:
    folder = train({**config, **options})
    encoder = open_encoder(folder)
    assert encoder.encode_queries(["gold river"]).shape == (1, 32)
    assert all(np.isfinite(line["loss"]) for line in lines(config) if "loss" in line)
    assert train({**config, **options}) == folder  # made before


def test_a_deep_projection_is_trained_and_a_bad_one_refused_at_once(
    config: dict[str, Any], bert: Path
) -> None:
    def with_projection(**spec: Any) -> dict[str, Any]:
        return {**config, "encoder": {"type": "dense", "model": str(bert), "projection": spec}}

    encoder = open_encoder(train(with_projection(dim=8, layers=2, residual=True)))
    assert encoder.encode_queries(["gold river"]).shape == (1, 8)
    with pytest.raises(ConfigError, match=r"encoder\.projection\.layer: unknown.*'layers'"):
        train({**with_projection(dim=8, layer=2), "output": config["output"] + "-bad"})
    assert not Path(config["output"] + "-bad").exists()


@pytest.mark.parametrize(
    "sparsity",
    [
        {"document": {"type": "flops", "weight": 1e-2, "by_rank": True}},
        {"target_doc_terms": 8, "query": {"type": "l1", "weight": 1e-2, "idf_power": 1.0}},
    ],
)
def test_penalties_by_rank_and_idf_train_splade(
    config: dict[str, Any], masked_bert: Path, sparsity: dict[str, Any]
) -> None:
    encoder = {"type": "splade", "model": str(masked_bert), "start": True}
    changes = {"encoder": encoder, "sparsity": sparsity, "loss": INFO}
    train({**config, **changes, "negatives": MINED})
    assert all(line["loss_sparsity_document"] >= 0 for line in lines(config) if "loss" in line)


def test_a_start_with_idf_queries_and_term_frequency(
    config: dict[str, Any], masked_bert: Path
) -> None:
    spec = {
        "type": "splade", "model": str(masked_bert), "start": True, "query_model": "idf",
        "train_idf": True, "idf_learning_rate": 0.1, "term_frequency": {"length": 20},
    }  # fmt: skip
    sparsity = {"document": {"type": "flops", "weight": 1e-3, "idf_power": 1.0}}
    encoder = open_encoder(train({**config, "encoder": spec, "sparsity": sparsity}))
    assert encoder.settings()["term_frequency"] == {"k1": 0.9, "b": 0.4, "length": 20}
    query = encoder.encode_queries(["gold river gold"]).toarray()[0]
    vocabulary = encoder.tokenizer.get_vocab()
    assert set(np.flatnonzero(query)) == {vocabulary["gold"], vocabulary["river"]}
    assert not float(query[vocabulary["gold"]]).is_integer()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # torch says it once a process
def test_a_model_that_sentence_transformers_refuses_says_so(
    config: dict[str, Any], bert: Path, masked_bert: Path
) -> None:
    top = {"type": "dense", "model": str(bert), "top_layers": 2}
    frequent = {"type": "splade", "model": str(masked_bert), "term_frequency": {"length": 20}}
    towers = {"type": "towers", "query": top, "document": top}
    plain = config["encoder"]
    expected = ((top, False), (frequent, True), (towers, False), (plain, True))
    for number, (encoder, loads) in enumerate(expected):
        output = f"{config['output']}-{number}"
        folder = train({**config, "encoder": encoder, "output": output})
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert ("With sentence-transformers, equally" in card) == loads
        assert ('"FOLDER", trust_remote_code=True' in card) == (encoder is frequent)
        if loads:
            code = card.split("```python\n")[2].split("```")[0]
            exec(compile(code.replace("FOLDER", str(folder)), "card", "exec"), {})
        assert open_encoder(folder).encode_documents(["gold river"]).shape[0] == 1


def test_negatives_of_the_encoder_itself_are_refreshed(config: dict[str, Any]) -> None:
    negatives = {**MINED, "retriever": ["self", BM25], "refresh": 2, "sampling": "random"}
    train({**config, "negatives": negatives})
    work = Path(config["output"]) / "training"
    assert {p.name for p in work.glob("mining*.json")} == {"mining.json", "mining-2.json"}
    assert {p.name for p in work.glob("*.parquet")} == {
        "negatives.parquet", "negatives-2.parquet",
    }  # fmt: skip
    assert [line["negatives_age"] for line in lines(config) if "loss" in line] == [1, 2, 1, 2]
    for report in work.glob("mining*.json"):
        assert json.loads(report.read_text())["positive_share"] == 0.0


@pytest.mark.thorough
def test_fresh_negatives_every_epoch(config: dict[str, Any]) -> None:
    negatives = {**MINED, "refresh": "epoch", "sampling": "random"}
    trainer = {**TRAINER, "num_train_epochs": 2, "max_steps": -1}
    train({**config, "negatives": negatives, "trainer": trainer})
    ages = [line["negatives_age"] for line in lines(config) if "loss" in line]
    epoch = len(ages) // 2
    assert ages == [*range(1, epoch + 1)] * 2


def test_live_candidates_train_the_queries_tower(config: dict[str, Any], bert: Path) -> None:
    live = {"type": "live", "depth": 5, "append": "every", "index": {"type": "flat"}}
    folder = train({**config, "loss": {"type": "adore"}, "negatives": live})
    made = open_encoder(folder)
    assert isinstance(made, TowerEncoder)
    start = open_encoder(bert)
    texts = [document.full_text for document in load_dataset(config["dataset"]).corpus]
    np.testing.assert_array_equal(made.encode_documents(texts), start.encode_documents(texts))
    assert not np.array_equal(made.encode_queries(["gold"]), start.encode_queries(["gold"]))


@pytest.mark.thorough
def test_a_cross_encoder_teaches_on_the_spot(config: dict[str, Any], bert: Path) -> None:
    teacher = train(
        {
            **config, "output": config["output"] + "-teacher", "negatives": MINED,
            "encoder": {"type": "cross_encoder", "model": str(bert)}, "loss": {"type": "list_net"},
        }
    )  # fmt: skip
    loss = {"type": "sum", "losses": [{"type": "kl_div", "weight": 0.5}, INFO]}
    train({**config, "negatives": MINED, "loss": loss, "teacher": str(teacher)})
    assert (Path(config["output"]) / "training" / "teacher.parquet").exists()
    train(
        {
            **config, "output": config["output"] + "-dse", "negatives": MINED,
            "loss": {"type": "dse", "hidden": 8}, "teacher": str(teacher),
        }
    )  # fmt: skip
    assert (Path(config["output"] + "-dse") / "model" / "pair_head").is_dir()


def test_sparsity_by_target_and_idf_queries(config: dict[str, Any], masked_bert: Path) -> None:
    encoder = {
        "type": "splade", "model": str(masked_bert), "query_model": "idf", "train_idf": True,
        "idf_learning_rate": 0.1,
    }  # fmt: skip
    sparsity = {"target_doc_terms": 20, "ramp": 0.5}
    folder = train({**config, "encoder": encoder, "sparsity": sparsity})
    assert {"sparsity_weight_document", "postings_cost"} <= lines(config)[0].keys()
    weights = open_encoder(folder).queries.weights
    assert len(torch.unique(weights)) > 3  # counted in the corpus, then trained


def test_a_model_from_random_weights(config: dict[str, Any]) -> None:
    start = {"type": "fresh", "layers": 1, "hidden": 32, "heads": 2, "vocabulary": 120}
    encoder = {"type": "dense", "start": start}
    folder = train({**config, "encoder": encoder, "examples": {"type": "bfs"}})
    assert open_encoder(folder).encode_documents(["gold"]).shape == (1, 32)


def test_more_frozen_layers_than_there_are(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has 2 layers"):
        train({**config, "freeze": {"layers": 9}})


def test_a_teacher_file_that_lacks_every_pair(config: dict[str, Any], tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "scores.parquet"
    table = {"query_id": ["nobody"], "doc_id": ["nothing"], "score": [1.0]}
    parquet.write_table(pa.table(table), file)
    options = {"loss": {"type": "margin_mse"}, "negatives": MINED, "teacher": str(file)}
    with pytest.raises((ConfigError, DataError), match=r"teacher|scores"):
        train({**config, **options})
