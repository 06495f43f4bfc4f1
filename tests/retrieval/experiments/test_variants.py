"""Variants of one retriever over vectors that are encoded once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Call
from scipy import stats
from small_world import write_beir

from sluice.encoders import DenseEncoder, SpladeEncoder, TokenEncoder
from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import load_dataset, run
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run


def settings(folder: Path, model: Path, **parts: Any) -> dict[str, Any]:
    return {
        "dataset": str(write_beir(folder / "data")),
        "output": str(folder / "out"),
        "retrievers": {
            "dense": {
                "encoder": {"type": "dense", "model": str(model)},
                "encoding": {"cache": str(folder / "cache")},
            }
        },
        "variants": "dense",
        "evaluate": {"measures": ["nDCG@10", "R@5"], "latency_queries": 2},
        **parts,
    }


def retrievers(values: dict[str, Any]) -> dict[str, Any]:
    config = checked(values, ExperimentConfig)
    return {name: each.model_dump() for name, each in config.retrievers.items()}


def test_vectors_are_made_of_those_of_the_whole_encoder(bert: Path, texts: list[str]) -> None:
    pooled = TokenEncoder.from_pretrained(bert, dim=8, pool_factor=2.0)
    for encoder in (
        DenseEncoder.from_pretrained(bert, dim=8),
        DenseEncoder.from_pretrained(bert, dim=8, normalize=False),
        pooled,
    ):
        derived = hooks_of(encoder).derived
        assert derived is not None
        whole, make = derived
        assert hooks_of(whole).derived is None
        assert whole.fingerprint != encoder.fingerprint
        own, made = (
            encoder.encode_documents(texts),
            make(whole.encode_documents(texts)),
        )
        if encoder is pooled:
            np.testing.assert_array_equal(own.bounds, made.bounds)
            own, made = own.values, made.values
        np.testing.assert_allclose(made, own, atol=1e-6)
    assert hooks_of(DenseEncoder.from_pretrained(bert)).derived is None


def test_all_declared_variants_by_one_name(tmp_path: Path, bert: Path) -> None:
    made = retrievers(settings(tmp_path, bert))  # 32 dimensions: no declared ones are fewer
    assert set(made) == {"dense", *(f"dense-{name}" for name in (
        "int8-first", "binary-first", "bfloat16", "int8", "binary", "binary-rescored",
    ))}  # fmt: skip
    assert made["dense-binary"]["index"] == {"type": "faiss", "factory": "BFlat"}
    bm25 = {"type": "bm25"}
    cosine = {"type": "flat", "metric": "cosine", "first_pass": "int8"}
    others = settings(tmp_path, bert, retrievers={
        "bm25": {"encoder": bm25, "search": {"alpha": 0.9}},
        "dense": {"encoder": {"type": "dense", "model": "nowhere/to-be-found"}, "index": cosine},
    })  # fmt: skip
    made = retrievers({**others, "variants": {"retriever": "bm25", "forms": ["terms-32"]}})
    assert made["bm25-terms-32"]["index"] == {"type": "inverted", "top_terms": 32}
    assert made["bm25-terms-32"]["search"] == {"alpha": 0.9}
    made = retrievers(others)
    assert {"dense-dim-512", "dense-dim-64"} <= set(made)
    assert "dense-int8-first" not in made  # which it is
    assert made["dense-int8"]["index"] == {"type": "faiss", "metric": "cosine", "factory": "SQ8"}


def test_one_table_of_a_corpus_that_is_encoded_once(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    encode = DenseEncoder.encode_documents

    def counted(self: DenseEncoder, texts: list[str]) -> Any:
        passes.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(DenseEncoder, "encode_documents", counted)
    small = {"encoder": {"dim": 8}}
    forms = {"dim-8": small, "dim-8-int8": {**small, "index": {"type": "faiss", "factory": "SQ8"}}}
    values = settings(tmp_path, bert, variants={"retriever": "dense", "forms": forms})
    table, experiment = run(values)
    assert passes.count(40) == 1  # beside ten probes of each model that is saved
    assert list(table.rows) == ["dense", "dense-dim-8", "dense-dim-8-int8"]
    assert list(table.columns)[:4] == ["nDCG@10", "R@5", "difference", "p corrected"]
    assert {"p50 ms", "index MB", "resident MB"} <= set(table.columns)
    assert table.rows["dense"]["difference"] is None

    monkeypatch.undo()
    dataset = load_dataset(values["dataset"])
    encoder = DenseEncoder.from_pretrained(bert, dim=8)
    alone = Retriever.build(encoder, dataset.corpus, path=tmp_path / "alone")
    scores = evaluate(alone.run(dataset.queries, k=40), dataset, ["nDCG@10"])
    assert table.rows["dense-dim-8"]["nDCG@10"] == pytest.approx(scores["nDCG@10"], abs=1e-9)

    full = evaluate(Run.load(experiment.output / "runs" / "dense.trec.gz"), dataset, ["nDCG@10"])
    pairs = [np.array(list(s.per_query["nDCG@10"].values())) for s in (scores, full)]
    low, high = stats.ttest_rel(*pairs).confidence_interval(0.95)
    assert table.rows["dense-dim-8"]["difference"] == f"[{low:+.4f}, {high:+.4f}]"

    saved = experiment.output / "experiment.yaml"
    again, _ = run(saved)
    assert again.rows == table.rows


def test_pruned_postings_are_of_the_same_vectors(tmp_path: Path, masked_bert: Path) -> None:
    section = {
        "encoder": {"type": "splade", "model": str(masked_bert)},
        "encoding": {"cache": str(tmp_path / "cache")},
    }
    values = settings(tmp_path, masked_bert, retrievers={"splade": section}, variants={
        "retriever": "splade", "forms": ["pruned-50", "terms-32"],
    })  # fmt: skip
    table, _ = run(values)
    assert len(table.rows) == 3
    assert len([each for each in (tmp_path / "cache").iterdir() if each.is_dir()]) == 1
    assert SpladeEncoder.from_pretrained(masked_bert).derived is None


def test_variants_stand_beside_pipelines(tmp_path: Path, bert: Path) -> None:
    values = settings(tmp_path, bert, pipelines={"cut": "dense % 3"})
    config = checked(
        {**values, "variants": {"retriever": "dense", "forms": ["int8"]}}, ExperimentConfig
    )
    assert config.pipelines == {"dense": "dense", "dense-int8": "dense-int8", "cut": "dense % 3"}
    assert config.evaluate.baseline == "dense"


@pytest.mark.parametrize(("variants", "words"), [
    ("dens", "variants.retriever: no retriever 'dens'; did you mean 'dense'?"),
    ({"retriever": "dense", "forms": ["binari"]}, "variants.forms: 'binari'; declared for"),
    ({"retriever": "dense", "forms": {"x": {"indx": {}}}}, "variants.forms"),
    ({"forms": ["int8"]}, "variants.retriever"),
])  # fmt: skip
def test_bad_variants(variants: Any, words: str, tmp_path: Path, bert: Path) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.").replace("?", r"\?")):
        retrievers(settings(tmp_path, bert, variants=variants))


def test_a_name_that_is_taken(tmp_path: Path, bert: Path, sluice: Call) -> None:
    values = settings(tmp_path, bert)
    values["retrievers"]["dense-int8"] = {"encoder": {"type": "bm25"}}
    with pytest.raises(ConfigError, match="dense-int8 is another retriever's name; rename one"):
        retrievers(values)
