"""GRL from YAML: trained, indexed, searched, and opened as what writes."""

from pathlib import Path

import pytest
import torch
import yaml
from command_line import Call
from small_world import write_beir
from tiny_generators import save_gpt2
from transformers import GPT2LMHeadModel

from sluice.encoders import DenseEncoder
from sluice.encoders.generative.own_writing import OwnWriting
from sluice.encoders.rerankers.local_language_model import LocalLanguageModel


def test_a_journey(sluice: Call, tmp_path: Path) -> None:
    gpt2 = save_gpt2(tmp_path / "gpt2", initializer_range=0.3)
    section = {
        "encoder": {"type": "dense", "model": str(gpt2), "attention": "bidirectional"},
        "loss": {"type": "grl"},
        "negatives": {"type": "mined", "retriever": "bm25", "per_query": 1, "mode": "naive"},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1},
    }
    config = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "train": {"both": section},
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "both": {"encoder": {"type": "dense", "model": "both"}},
        },
        "pipelines": {"both": "both"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip
    file, model = tmp_path / "x.yaml", tmp_path / "out" / "models" / "both"
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err
    (curves,) = tmp_path.rglob("metrics.jsonl")
    for name in ("loss_contrast", "loss_writing", "loss_agreement"):
        assert f'"{name}"' in curves.read_text("utf-8")
    code, _, err = sluice("search", tmp_path / "out", "gold", "--pipeline", "both", "-k", 3)
    assert code == 0, err
    saved = DenseEncoder.from_pretrained(model)
    table = saved.model.get_input_embeddings().weight
    assert not torch.equal(table, GPT2LMHeadModel.from_pretrained(gpt2).lm_head.weight)
    texts = {"query": saved.tokenize(["river gold"], "query"),
             "document": saved.tokenize(["deep water"], "document")}  # fmt: skip
    row = torch.zeros(1, dtype=torch.long)
    own, count = OwnWriting(saved).log_probabilities(texts, row, row)
    writer = LocalLanguageModel.from_pretrained(model).model
    ids = torch.cat([texts["query"]["input_ids"], texts["document"]["input_ids"]], dim=1)
    with torch.no_grad():
        chances = writer(input_ids=ids).logits[0].double().log_softmax(dim=1)
    start = ids.shape[1] - int(count)
    expected = sum(chances[at - 1, ids[0, at]].item() for at in range(start, ids.shape[1]))
    assert own.item() == pytest.approx(expected, rel=1e-4)
    rows = tmp_path / "q.jsonl"
    code, out, err = sluice(
        "teach", "generate", model, tmp_path / "data", "--output", rows, "--documents", 2,
        "--length", 4,
    )  # fmt: skip
    assert code == 0, err
    assert "for 2 documents" in out
    del section["negatives"]
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    code, _, err = sluice("run", file)
    assert code == 2
    assert "grl prefers a positive to a negative" in err
