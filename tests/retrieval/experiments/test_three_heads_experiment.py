"""One model, three first stages: each text goes through the transformer once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_world import write_beir
from tiny_architectures import save_architecture

from sluice.encoders.own.three_heads.encoder import HeadEncoder
from sluice.encoders.own.three_heads.trunk import Trunk
from sluice.encoders.transformer.tokens import TokenBatch
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment

HEADS = ("dense", "sparse", "tokens")


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A model of its own for each test: equal copies share passes while one of them is open."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_architecture(folder, "Bert", "dense")
    drawn = torch.Generator().manual_seed(len(request.node.name))
    sparse = {"weight": torch.randn(1, 32, generator=drawn), "bias": torch.tensor([0.1])}
    tokens = {"weight": torch.randn(12, 32, generator=drawn), "bias": torch.randn(12)}
    save_file(sparse, folder / "sparse_linear.safetensors")
    save_file(tokens, folder / "colbert_linear.safetensors")
    return folder


@pytest.mark.parametrize("shard", [7, 8192])
def test_a_corpus_and_its_queries_are_encoded_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int
) -> None:
    passes: list[int] = []
    ordinary = Trunk.output

    def output(self: Trunk, batch: TokenBatch, network: Any) -> Any:
        passes.append(len(batch.rows))
        return ordinary(self, batch, network)

    monkeypatch.setattr(Trunk, "output", output)
    config = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "out"),
        "retrievers": {
            head: {
                "encoder": {"type": "three_heads", "model": str(folder), "head": head},
                "encoding": {"cache": str(tmp_path / "cache"), "shard": shard},
            }
            for head in HEADS
        },
        "pipelines": {"all": "dense | sparse | tokens"},
    }  # fmt: skip
    experiment = Experiment(checked(config, ExperimentConfig))
    stage = experiment.stage("all")
    corpus = {document.full_text for document in experiment.dataset(None).corpus}
    assert sum(passes) == len(corpus)
    passes.clear()
    queries = {"a": "gold in the river", "b": "deep water"}
    run = stage.run(queries, k=5)
    assert sum(passes) == len(queries)
    assert all(len(run[query]) == 5 for query in queries)
    # The vectors are those that each head makes alone.
    for head in HEADS:
        retriever = experiment.retriever(head)
        alone = HeadEncoder.from_pretrained(folder, head=head).encode_documents(
            [document.full_text for document in retriever.store]
        )
        found = retriever.index.documents(np.arange(len(retriever)))
        dense = [each.values if head == "tokens" else each for each in (found, alone)]
        plain = [each.toarray() if head == "sparse" else each for each in dense]
        np.testing.assert_allclose(*plain, atol=0.02 if head == "tokens" else 1e-5)
