"""Retrievers whose SPLADE documents lose each term's lightest weights."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import documents, write_beir

from sluice.encoders import SpladeEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.splade.start import term_quantiles
from sluice.encoders.splade.terms import prune_terms
from sluice.retrieval import Document, Passages, Retriever, train
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import corpus_estimate

QUERY = "gold water"


def vectors_of(model: Path, docs: list[Document]) -> Any:
    encoder = SpladeEncoder.from_pretrained(model)
    return encoder.encode_documents([document.full_text for document in docs])


def stored(retriever: Retriever) -> Any:
    return retriever.index.documents(np.arange(retriever.index.rows)).toarray()


def test_documents_are_pruned_by_the_quantiles_of_their_corpus(
    masked_bert: Path, tmp_path: Path
) -> None:
    docs = documents()
    vectors = vectors_of(masked_bert, docs)
    floors = term_quantiles(vectors, 0.5)
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.5)
    Retriever.build(encoder, docs, path=tmp_path / "r")
    retriever = Retriever.open(tmp_path / "r")
    width = stored(retriever).shape[1]
    expected = prune_terms(vectors, floors).toarray()[:, :width]
    np.testing.assert_allclose(stored(retriever), expected, atol=1e-6)
    assert np.count_nonzero(stored(retriever)) == np.count_nonzero(expected)
    assert retriever.search(QUERY)
    new = Document("new", "", "gold water river gold")
    retriever.add([new])
    added = prune_terms(vectors_of(masked_bert, [new]), floors)
    assert np.count_nonzero(stored(retriever)[-1]) == added.nnz


def test_another_quantile_encodes_nothing_again(
    masked_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs, encoding = documents(), Encoding(cache=tmp_path / "cache")
    sizes = []
    for quantile in (None, 0.2, 0.6):
        encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=quantile)
        estimate = corpus_estimate(encoder, lambda: docs, encoding)
        assert estimate is not None
        assert estimate.missing == (len(docs) if quantile is None else 0)
        with caplog.at_level(logging.INFO, "sluice"):
            built = Retriever.build(encoder, docs, path=tmp_path / str(quantile), encoding=encoding)
        sizes.append(np.count_nonzero(stored(built)))
    assert sizes[0] > sizes[1] > sizes[2]
    assert caplog.text.count(f"all {len(docs)} documents are cached") == 2
    assert f"prune_quantile 0.6 fitted to {len(docs)} documents" in caplog.text


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_passages_are_pruned_too(aggregate: Any, masked_bert: Path, tmp_path: Path) -> None:
    passages = Passages(12, 3, aggregate=aggregate)
    sizes = []
    for quantile in (None, 0.6):
        encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=quantile)
        built = Retriever.build(encoder, documents(), path=tmp_path / "r", passages=passages)
        inner: Any = built.index.innermost
        sizes.append(inner.stats().postings)
    assert sizes[0] > sizes[1]


def test_where_it_would_prune_nothing_it_is_refused(masked_bert: Path, tmp_path: Path) -> None:
    docs = documents()
    encoder = SpladeEncoder.from_pretrained(masked_bert, prune_quantile=0.5)
    with pytest.raises(ConfigError, match="the documents' vectors are given"):
        Retriever.build(encoder, docs, vectors=[vectors_of(masked_bert, docs)], path=tmp_path / "r")
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "encoder": {"type": "splade", "model": str(masked_bert), "prune_quantile": 0.5},
        "loss": {"type": "info_nce"},
        "trainer": {"max_steps": 1},
    }
    with pytest.raises(ConfigError, match=r"encoder\.prune_quantile: .* nothing in training"):
        check_training(checked(config, TrainConfig), "")
    encoder.save_pretrained(tmp_path / "noted")
    config["encoder"] = {"type": "splade", "model": str(tmp_path / "noted")}
    with pytest.raises(ConfigError, match=r"encoder\.model: was saved with prune_quantile 0\.5"):
        train(config)
