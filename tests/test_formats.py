"""Of every file with a format number unknown keys are ignored, and a newer number is refused."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders.foundation.errors import SluiceError

RESERVED = {
    "replicas": [{"folder": "s1"}],
    "probes": [{"text": "gold"}],
    "of_tomorrow": 1,
}
NEWER = r"made by a newer version of Sluice, in format 99 \(this one reads up to \d\); upgrade"


class Format(NamedTuple):
    """A file with a number: where it is, and what opens it."""

    file: str
    opened: Callable[[Path], object]


def _index(folder: Path) -> object:
    from sluice.indexing import open_index

    return open_index(folder / "r/index").search(np.zeros((1, 64), np.float32), 1)


def _retriever(folder: Path) -> object:
    from sluice.retrieval import Retriever

    return Retriever.open(folder / "r", encoder=WordEncoder()).search("gold")


def _bm25(folder: Path) -> object:
    from sluice.retrieval import Retriever

    return Retriever.open(folder / "bm25").search("gold")


def _pipeline(folder: Path) -> object:
    from sluice.retrieval import load_pipeline

    return load_pipeline(folder / "pipeline").search("gold")


def _fusion(folder: Path) -> object:
    from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit

    return FusionFit.load(folder / "fusion.json")


def _exit(folder: Path) -> object:
    from sluice.retrieval.stages.confidence_exit import exit_rule

    return exit_rule(str(folder / "exit.json"))


def _depth(folder: Path) -> object:
    from sluice.retrieval.stages.adaptive_depth import PredictedDepth

    return PredictedDepth.load(folder / "depth.json")


def _model(folder: Path) -> object:
    from sluice.encoders.model_files.registry import open_encoder

    return open_encoder(folder / "model").encode_queries(["gold"])


def _terms(folder: Path) -> object:
    from sluice.retrieval.stages.ltr.collection_terms import CollectionTerms

    return CollectionTerms.open(folder / "terms")


FORMATS = {
    "index": Format("r/index/manifest.json", _index),
    "pinned index": Format("r/index/g*/manifest.json", _retriever),
    "documents": Format("r/documents/g*/manifest.json", _retriever),
    "retriever": Format("r/retriever.json", _retriever),
    "bm25": Format("bm25/encoder/g*/manifest.json", _bm25),
    "pipeline": Format("pipeline/pipeline.json", _pipeline),
    "fusion": Format("fusion.json", _fusion),
    "exit": Format("exit.json", _exit),
    "depth": Format("depth.json", _depth),
    "model": Format("model/sluice.json", _model),
    "terms": Format("terms/manifest.json", _terms),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each format."""
    from sluice.encoders.dense.precomputed import PrecomputedEncoder
    from sluice.retrieval import Retriever
    from sluice.retrieval.evaluation.fitted_file import write_fitted
    from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
    from sluice.retrieval.pipelines.fusion.fusion import Fusion
    from sluice.retrieval.stages.adaptive_depth import PredictedDepth
    from sluice.retrieval.stages.confidence_exit import FILE
    from sluice.retrieval.stages.ltr.collection_terms import collection_terms

    folder = tmp_path_factory.mktemp("formats")
    Retriever.build(WordEncoder(), documents(), path=folder / "r")
    bm25 = Retriever.build("bm25", documents(), path=folder / "bm25")
    (bm25 % 10).save(folder / "pipeline")
    FusionFit(
        Fusion("weighted", weights=(0.5, 0.5)),
        ("a", "b"),
        "nDCG@10",
        0.5,
        0.5,
        0.5,
        (0.4, 0.4),
        3,
        1,
    ).save(folder / "fusion.json")
    write_fitted(folder / "exit.json", FILE, {"threshold": 0.5, "kind": "margin", "width": 10})
    PredictedDepth((0.5,), 1.0, 1, 9, 0).save(folder / "depth.json")
    PrecomputedEncoder(["gold"], np.ones((1, 4), np.float32)).save_pretrained(folder / "model")
    collection_terms(bm25.store).save(folder / "terms")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "formats"))


def noted(folder: Path, pattern: str, facts: dict[str, Any]) -> None:
    (file,) = folder.glob(pattern)
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_unknown_keys_are_ignored(folder: Path, form: Format) -> None:
    noted(folder, form.file, RESERVED)
    form.opened(folder)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_newer_format_is_refused(folder: Path, form: Format) -> None:
    noted(folder, form.file, {"version": 99})
    with pytest.raises(SluiceError, match=NEWER):
        form.opened(folder)


@pytest.mark.parametrize("version", [None, "1", True, 0, -1, 1.0])
def test_a_format_that_is_no_number_is_damage(folder: Path, version: Any) -> None:
    noted(folder, "r/retriever.json", {"version": version})
    with pytest.raises(SluiceError, match=r"its format version is .* edited or damaged"):
        _retriever(folder)


def test_a_newer_cache_of_scores_is_refused(tmp_path: Path) -> None:
    from sluice.retrieval.stages.rerankers.score_cache import ScoreCache

    with pytest.raises(SluiceError, match=NEWER):
        cache = ScoreCache(tmp_path / "c.sqlite")
        cache.get("f", [("a", "b")])
        cache.close()
        database = sqlite3.connect(tmp_path / "c.sqlite")
        database.execute("PRAGMA user_version = 99")
        database.close()
        ScoreCache(tmp_path / "c.sqlite").get("f", [("a", "b")])


def test_a_cache_of_vectors_ignores_unknown_keys(tmp_path: Path) -> None:
    from sluice.encoders.vectors.cache import MANIFEST, VectorCache

    cache = VectorCache(tmp_path, {"fingerprint": "model", "store": "float32"})
    with cache:
        noted(cache.folder, MANIFEST, RESERVED)
    with cache:
        noted(cache.folder, MANIFEST, {"store": "int8"})
    with pytest.raises(SluiceError, match="edited or moved"), cache:
        pass
