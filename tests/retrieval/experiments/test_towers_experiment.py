"""Separate towers and inference-free queries from YAML to results."""

from pathlib import Path
from typing import Any

import numpy as np
from small_world import write_beir

from sluice.encoders import SpladeEncoder, fit_idf
from sluice.indexing import InvertedIndex
from sluice.retrieval import Retriever, load_dataset, train
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.reuse import Dependencies

TRAINER = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


def towers(query: str | Path, document: str | Path, **options: Any) -> dict[str, Any]:
    return {
        "type": "towers",
        "query": {"type": "dense", "model": str(query), "query_length": 16},
        "document": {"type": "dense", "model": str(document)},
        **options,
    }


def test_what_towers_are_made_of_is_needed_first(tmp_path: Path, bert: Path) -> None:
    trained = {"encoder": {"type": "dense", "model": str(bert)}, "loss": {"type": "info_nce"}}
    config = checked(
        {
            "dataset": str(write_beir(tmp_path / "data")),
            "train": {"a": trained, "b": trained},
            "retrievers": {"both": {"encoder": towers("a", "b")}},
        },
        ExperimentConfig,
    )
    found = set(Dependencies(config).needs("retrievers.both"))
    assert {"train.a", "train.b"} <= found


def test_inference_free_queries_search_an_index(tmp_path: Path, masked_bert: Path) -> None:
    dataset = load_dataset(write_beir(tmp_path / "data"), "test")
    encoder = SpladeEncoder.from_pretrained(masked_bert, query_model="idf", document_top_k=30)
    fit_idf(encoder, (document.full_text for document in dataset.corpus))
    made = Retriever.build(encoder, dataset.corpus, index=InvertedIndex(), path=tmp_path / "r")
    opened = Retriever.open(tmp_path / "r")
    assert opened.encoder.fingerprint == encoder.fingerprint
    for query in dataset.queries.values():
        expected = [(hit.doc_id, hit.score) for hit in made.search(query, k=5)]
        assert [(hit.doc_id, hit.score) for hit in opened.search(query, k=5)] == expected


def test_an_idf_training_gives_a_folder_for_sentence_transformers(
    tmp_path: Path, masked_bert: Path
) -> None:
    from sentence_transformers import SparseEncoder

    encoder = {
        "type": "splade", "model": str(masked_bert), "query_model": "idf", "train_idf": True,
        "idf_learning_rate": 0.01,
    }  # fmt: skip
    folder = train(
        {
            "dataset": str(write_beir(tmp_path / "data")),
            "output": str(tmp_path / "out"),
            "encoder": encoder,
            "loss": {"type": "info_nce", "similarity": "dot"},
            "sparsity": {"document": {"type": "flops", "weight": 1.0e-3}},
            "trainer": TRAINER,
        }
    )
    theirs = SparseEncoder(str(folder), device="cpu")
    found = theirs.encode_query(["gold river"], convert_to_sparse_tensor=False).numpy()
    ours = SpladeEncoder.from_pretrained(folder).encode_queries(["gold river"]).toarray()
    np.testing.assert_allclose(ours, found, atol=1e-6)
