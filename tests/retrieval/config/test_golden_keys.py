"""What decides whether a part is built anew is what it was: keys, files and trust of many configs.

``golden_keys.json`` holds hashes. One that changes has every user's models and indexes made again.
"""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.retrieval.config.reading import load_values
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, TuneConfig, checked
from sluice.retrieval.config.trust import named_in
from sluice.retrieval.config.yaml_file import recipes
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.planning import problems

GOLDEN = Path(__file__).with_name("golden_keys.json")
SERVER = {"type": "http", "url": "http://localhost:1/v1", "model": "m", "api_key_env": "KEY"}
WRITER = {"type": "generative", "model": "lm", "style": "graded", "cache": "answers.sqlite"}
CROSS = {"type": "cross_encoder", "model": "cross"}
LIVE = {"type": "live", "per_query": 2, "depth": 20}
MINED = {"type": "mined", "retriever": "bm25", "per_query": 2}
# Training sections: each form of teacher, judge, examples and negatives.
TRAININGS: dict[str, dict[str, Any]] = {
    "teacher-bm25": {"teacher": "bm25"},
    "teacher-bm25-k1": {"teacher": {"type": "bm25", "k1": 1.2}},
    "teacher-folder": {"teacher": "cross"},
    "teacher-hub": {"teacher": "who/what"},
    "teacher-trained": {"teacher": "other"},
    "teacher-scores": {"teacher": "scores.parquet"},
    "teacher-run": {"teacher": "lists.trec"},
    "teacher-cross": {"teacher": CROSS},
    "teacher-dense": {"teacher": {"type": "dense", "model": "dense", "dtype": "bfloat16"}},
    "teacher-http": {"teacher": SERVER},
    "teacher-generative": {"teacher": WRITER},
    "teacher-list": {"teacher": ["bm25", "examples", "scores.parquet", CROSS, "other", SERVER]},
    "teacher-ensemble": {"teacher": {
        "type": "ensemble", "teachers": [WRITER, {"type": "bm25"}, "lists.trec"],
        "weights": [1, 2, 3], "normalise": "z-score", "scale": 2.0,
    }},
    "judge-folder": {"negatives": {**MINED, "judge": "cross", "judge_ratio": 0.9}},
    "judge-reranker": {"negatives": {**MINED, "judge": "z"}},
    "judge-list": {"negatives": {**MINED, "judge": ["other", CROSS, SERVER, "lists.trec"]}},
    "judge-ensemble": {"negatives": {**MINED, "judge": {
        "type": "ensemble", "teachers": [CROSS, "scores.parquet"],
    }}},
    "mined": {"negatives": MINED},
    "mined-inline": {"negatives": {**MINED, "retriever": [
        {"encoder": {"type": "dense", "model": "dense"}, "index": {"type": "flat"}},
        "random", "lists.trec", "self",
    ], "refresh": {"every": 10}}},
    "live": {"negatives": LIVE},
    "examples-file": {"examples": "pairs.jsonl"},
    "examples-files": {"examples": {"file": ["pairs.jsonl", "more.jsonl"], "per_query": 1}},
    "examples-ict": {"examples": "ict"},
    "examples-corpus": {"examples": {"type": "corpus", "retriever": "bm25", "candidates": 5}},
    "examples-generated": {"examples": {"type": "generated", "model": "lm"}},
    "answered": {"answered": ["pairs.jsonl", "more.jsonl"]},
    "loss-adapter": {"loss": {"type": "rrra", "adapter": "dense", "loss": {"type": "info_nce"}}},
    "encoder-vocabulary": {
        "encoder": {"type": "concepts", "model": "dense", "vocabulary": "pairs.jsonl"},
    },
    "encoder-start": {"encoder": {"type": "splade", "model": "cross", "start": "scratch"}},
    "encoder-ids": {"encoder": {
        "type": "dsi", "model": "dense", "ids_by": {"type": "dense", "model": "cross"},
    }},
    "datasets": {"datasets": ["data", "data"]},
    "refresh-executor": {
        "negatives": {**MINED, "refresh": {"every": 10, "executor": "processes"}},
    },
    "reporting": {"trainer": {"max_steps": 2, "logging_steps": 5, "report_to": "none"}},
}  # fmt: skip
RETRIEVERS: dict[str, dict[str, Any]] = {
    "sparse": {"encoder": {"type": "splade", "model": "dense"}},
    "server": {"encoder": {"type": "http", "url": "http://localhost:2/v1", "model": "m"}},
    "auto": {"encoder": {"type": "dense", "model": "other"}, "index": {"type": "auto"}},
    "passages": {"encoder": "bm25", "passages": {"length": 60}},
    "towers": {"encoder": {
        "type": "towers", "query": {"type": "dense", "model": "dense"},
        "document": {"type": "dense", "model": "cross"},
    }},
    "pruned-scores": {"encoder": "bm25", "prune": {"scores": "scores.parquet", "share": 0.1}},
    "pruned-folder": {"encoder": "bm25", "prune": {"model": "cross", "share": 0.1}},
    "pruned-trained": {"encoder": "bm25", "prune": {"model": "other", "share": 0.1}},
    "graph": {"encoder": {"type": "dense", "model": "dense"}, "index": {"type": "query_graph"}},
    "database": {
        "encoder": {"type": "dense", "model": "dense"},
        "index": {"type": "pgvector", "dsn": "postgresql://one"},
    },
    "own-class": {"encoder": {"type": "mine.encoders:Mine", "model": "dense"}},
}  # fmt: skip
# Whole sections: what stages read and write, a measure of one's own, links of a dataset.
OTHERS: dict[str, dict[str, Any]] = {
    "token-vectors": {
        "retrievers": {"r": {"encoder": {"type": "tokens", "model": "dense"}}},
        "rerankers": {"m": {"type": "max_sim", "model": "dense", "retriever": "r"}},
        "pipelines": {"p": "bm25 % 5 >> m"},
    },
    "written": {"pipelines": {"p": "bm25 >> cached(z, file='cache.sqlite')"}},
    "own-measure": {"evaluate": {"measures": ["nDCG@10", "mine.measures:mine@5"]}},
    "links": {"dataset": {"corpus": "data/corpus.jsonl", "allow": ["elsewhere"]}},
}


def experiment(**parts: Any) -> ExperimentConfig:
    encoder, trainer = {"type": "dense", "model": "dense"}, {"max_steps": 2}
    section = {"encoder": encoder, "loss": "info_nce", "trainer": trainer}
    train = {name: {**section, **part} for name, part in parts.pop("train", {}).items()}
    values = {
        "dataset": "data", "output": "out", "train": {"other": section, **train},
        "rerankers": {"z": SERVER, "c": CROSS}, "pipelines": {"p": "bm25 % 5 >> z"},
    }  # fmt: skip
    values["retrievers"] = {"bm25": "bm25", **parts.pop("retrievers", {})}
    return checked({**values, **parts}, ExperimentConfig)


def facts_of(config: Any) -> dict[str, str]:
    """Return hashes of all that is decided by a config without a model."""
    if isinstance(config, TrainConfig):
        alone = checked({"dataset": "data", "output": "out"}, ExperimentConfig)
        keys = Dependencies(alone).keys_of(config)
        facts = {"recipes": keys.recipe, "keys": keys.key, "models": list(problems.models(config))}
        return hashes(facts)
    graph = Dependencies(config)
    nodes = [
        f"{kind}.{name}"
        for kind in ("train", "retrievers", "rerankers", "pipelines")
        for name in getattr(config, kind)
    ]
    return hashes({
        "recipes": [graph.recipe(node) for node in nodes],
        "keys": [graph.keys(node).key for node in nodes],
        "needs": [list(graph.needs(node)) for node in nodes],
        "models": list(problems.models(config)),
        "trust": [sorted(named_in(config, only_open=searching)) for searching in (False, True)],
    })  # fmt: skip


def hashes(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: fingerprint_of(value)[:16] for name, value in facts.items()}


def shipped(name: str) -> Any:
    """Return a config that comes with the package, over the small collection."""
    values = load_values(name, ["dataset=data"], variables=False)
    kind = TrainConfig if "loss" in values else TuneConfig if "tune" in values else ExperimentConfig
    return checked(values, kind)


def test_keys_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platform, "python_version", lambda: "3")
    write_beir(tmp_path / "data")
    for model in ("cross", "dense", "lm"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(json.dumps({"name": model}))
    for file in ("pairs.jsonl", "more.jsonl"):
        (tmp_path / file).write_text(json.dumps({"query": file, "pos": ["a"], "neg": ["b"]}))
    for file in ("scores.parquet", "lists.trec"):
        (tmp_path / file).write_text("q1 Q0 d1 1 2.0 x\n")
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    configs = {f"train {name}": experiment(train={"t": part}) for name, part in TRAININGS.items()}
    configs |= {
        f"retriever {name}": experiment(retrievers={"r": part}) for name, part in RETRIEVERS.items()
    }
    configs |= {f"sections {name}": experiment(**parts) for name, parts in OTHERS.items()}
    configs |= {f"recipe {name}": shipped(name) for name in recipes()}
    found = {name: facts_of(config) for name, config in configs.items()}
    # To record: GOLDEN.write_text(json.dumps(found, indent=0) + "\n")
    assert found == json.loads(GOLDEN.read_text())
