"""RRRA from fit to search: an adapter as a judge, a reranker, and the start of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from small_training import MINED, refused, short_training
from small_world import documents, write_beir
from static_embeddings import save_static

from sluice.encoders import SpladeEncoder, StaticEncoder
from sluice.encoders.dense.error_adapter import FILE, ErrorAdapter
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.rerankers.rrra import AdaptedScorer
from sluice.retrieval import Dataset, Retriever, load_dataset
from sluice.retrieval.training_data.false_negatives import fit_adapter

SMALL = {"hidden": 4, "steps": 3}
PAIRS = [(f"gold {document.text[:9]}", document.full_text) for document in documents(12)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, a static encoder, its retriever, and an adapter of both."""
    folder = tmp_path_factory.mktemp("rrra")
    data = load_dataset(str(write_beir(folder / "data")), "train")
    save_static(folder / "static")
    encoder = StaticEncoder.from_pretrained(folder / "static")
    retriever = Retriever.build(encoder, data.corpus, path=folder / "retriever")
    fit_adapter(retriever, data, **SMALL).save_pretrained(folder / "adapter")
    return folder


def test_scores_are_the_adapters_over_the_encoders_vectors(home: Path, tmp_path: Path) -> None:
    scorer = AdaptedScorer.from_pretrained(home / "adapter", weight=2.0)
    encoder, adapter = StaticEncoder.from_pretrained(home / "static"), scorer.adapter
    left = encoder.encode_queries([query for query, _ in PAIRS])
    right = encoder.encode_documents([document for _, document in PAIRS])
    scores = scorer.score(PAIRS)
    np.testing.assert_allclose(scores, adapter.scores(left, right, 2.0), atol=1e-6)
    turned = scorer.score(PAIRS[::-1])[::-1]
    np.testing.assert_allclose(turned, scores, atol=1e-6)
    np.testing.assert_allclose(scorer.score(PAIRS[3:4]), scores[3:4], atol=1e-6)
    assert scorer.score([]).shape == (0,)
    own = AdaptedScorer.from_pretrained(home / "adapter", weight=0.0)
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    np.testing.assert_allclose(own.score(PAIRS), (1 + cosines) / 2, atol=1e-6)
    assert own.fingerprint != scorer.fingerprint
    scorer.save_pretrained(tmp_path / "again")
    again = open_encoder(tmp_path / "again", weight=2.0)
    assert again.fingerprint == scorer.fingerprint
    np.testing.assert_array_equal(again.score(PAIRS), scores)


def test_a_journey(sluice: Call, home: Path, tmp_path: Path) -> None:
    """Fit, mine and audit by the command line; tests/test_every_kind.py trains and reranks."""
    adapter, data, retriever = tmp_path / "adapter", home / "data", home / "retriever"
    options = ["--steps", 3, "--hidden", 4, "--output", adapter]
    code, out, err = sluice("fit", "adapter", retriever, data, *options)
    assert code == 0, err
    assert "an adapter of 4 units" in out
    assert "from 12 train queries" in out
    file = tmp_path / "n.jsonl"
    judged = ["--judge", adapter, "--judge-gamma", 1, "--mode", "naive", "--per-query", 2]
    code, out, err = sluice("mine", retriever, data, "--output", file, *judged, "--audit", 0.2)
    assert code == 0, err
    assert len(file.read_text().splitlines()) >= 12
    modes = json.loads((tmp_path / "n.audit.json").read_text())["modes"]
    assert [each["signal"] for each in modes if each["mode"] == "as set"] == ["judge"]
    code, out, err = sluice("verify", adapter)
    assert code == 0, err


def test_what_is_refused(sluice: Call, home: Path, masked_bert: Path, tmp_path: Path) -> None:
    data = load_dataset(str(home / "data"), "train")
    retriever = Retriever.open(home / "retriever")
    foreign = Dataset.from_memory(data.corpus, {"q": "gold"}, {"q": {"elsewhere": 1}})
    with pytest.raises(DataError, match="none of the documents that are relevant to the 1 quer"):
        fit_adapter(retriever, foreign)
    with pytest.raises(ConfigError, match="depth"):
        fit_adapter(retriever, data, top=20, depth=10)
    sparse = SpladeEncoder.from_pretrained(masked_bert)
    with pytest.raises(ConfigError, match="reads one dense vector of each text"):
        AdaptedScorer(sparse, ErrorAdapter(4, 4))
    encoder = StaticEncoder.from_pretrained(home / "static")
    with pytest.raises(ModelError, match="the adapter is for vectors of 3 dimensions"):
        AdaptedScorer(encoder, ErrorAdapter(3, 4))
    with pytest.raises(ConfigError, match="weight"):
        AdaptedScorer.from_pretrained(home / "adapter", weight=-1.0)
    with pytest.raises(ModelError, match=f"{FILE}: no such file; `sluice fit adapter`"):
        AdaptedScorer.from_pretrained(home / "static")
    code, _, err = sluice("fit", "adapter", home / "retriever", home / "data", "--split", "test",
                          "--output", tmp_path / "a")  # fmt: skip
    assert code == 2
    assert "nothing is learnt from test queries" in err
    settings: dict[str, Any] = {"encoder": {"type": "rrra", "model": str(home / "adapter")}}
    refused(
        short_training(tmp_path, home / "static", **settings), "fitted, by `sluice fit adapter`"
    )
    no_judge = {**MINED, "judge_gamma": 1.0}
    refused(short_training(tmp_path, home / "static", negatives=no_judge), "needs 'judge'")
    judged = {**no_judge, "judge": str(home / "adapter")}
    for lists, message in ((["bm25", "base"], "scores of one list"), ("random", "have no scores")):
        negatives = {**judged, "retriever": lists}
        refused(short_training(tmp_path, home / "static", negatives=negatives), message)
    with pytest.raises(ConfigError, match=r"learning_rate: 0\.0; expected a number above 0"):
        fit_adapter(retriever, data, learning_rate=0.0)
