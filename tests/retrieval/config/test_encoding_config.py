"""How a corpus is encoded, from YAML and on the command line: keys, estimates, the cache."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.vectors.cache import cached_keys
from sluice.retrieval import Encoding, Retriever, index, load_dataset, run
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.jobs import estimate


def experiment(tmp_path: Path, model: Path, **retrievers: dict[str, Any]) -> dict[str, Any]:
    dense = {"type": "dense", "model": str(model)}
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {name: {"encoder": dense, **section} for name, section in retrievers.items()},
        "evaluate": {"latency_queries": 0},
    }


@pytest.mark.thorough
def test_two_retrievers_of_one_encoder_encode_once(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    values = experiment(
        tmp_path, bert, flat={"index": {"type": "flat"}},
        hnsw={"index": {"type": "faiss", "factory": "HNSW8"}},
    )  # fmt: skip
    before = estimate(values)["flat"]
    assert before is not None
    assert (before.documents, before.missing) == (40, 40)
    assert before.tokens
    assert before.seconds
    assert before.disk_bytes == 40 * (32 * 4 + 16)
    assert before.memory_bytes
    assert not (tmp_path / "cache").exists()
    run(values)
    assert "encode: all 40 documents are cached" in caplog.text
    after = estimate(values)["hnsw"]
    assert after is not None
    assert (after.documents, after.missing) == (40, 0)
    assert len(cached_keys(tmp_path / "cache" / "vectors")) == 1


@pytest.mark.thorough
def test_the_command_line_estimates_lists_and_clears(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from sluice.retrieval.cli import app

    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    values = experiment(tmp_path, bert, flat={})
    values["retrievers"]["bm25"] = {"encoder": {"type": "bm25"}}
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    said = CliRunner().invoke(app, ["index", str(file), "--dry-run"])
    assert said.exit_code == 0, said.output
    assert "flat: 40 documents, 40 to encode, about " in said.output
    assert "bm25: nothing to encode" in said.output
    assert not (tmp_path / "out").exists()
    index(values)
    said = CliRunner().invoke(app, ["cache"])
    assert "DenseEncoder" in said.output
    assert "float32" in said.output
    assert "removed" in CliRunner().invoke(app, ["cache", "clear"]).output
    assert cached_keys(tmp_path / "cache" / "vectors") == []


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"shards": 5}, r"retrievers.flat.encoding.shards: unknown key.*'shard'"),
        ({"shard": 0}, r"retrievers.flat.encoding.shard: 0"),
        ({"store": "float8"}, r"retrievers.flat.encoding.store: 'float8'"),
        ({"workers": "two"}, r"retrievers.flat.encoding.workers: 'two'"),
        ({"devices": "cuda"}, r"retrievers.flat.encoding.devices: 'cuda'"),
    ],
)
def test_wrong_keys_are_named(section: dict[str, Any], message: str) -> None:
    values = {"dataset": "x", "retrievers": {"flat": {"encoder": {}, "encoding": section}}}
    with pytest.raises(ConfigError, match=message):
        checked(values, ExperimentConfig)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="devices: 'cpu'; expected a list"):
        Encoding(devices="cpu")


def test_only_the_form_on_disk_makes_another_retriever(tmp_path: Path) -> None:
    write_beir(tmp_path / "data")

    def key(**encoding: Any) -> str:
        section = {"encoder": {"type": "dense", "model": "x"}, "encoding": encoding or None}
        values = {"dataset": str(tmp_path / "data"), "retrievers": {"r": section}}
        return Dependencies(checked(values, ExperimentConfig)).keys("retrievers.r").key

    same = [key(), key(cache=False), key(shard=10, workers=2), key(store="float32")]
    assert len(set(same)) == 1
    assert len({same[0], key(store="float16"), key(store="int8")}) == 3


def test_an_experiment_measures_with_queries_that_are_not_tested(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    build = Retriever.build

    def noted(*given: Any, queries: Any, **rest: Any) -> Retriever:
        asked.append(len(queries))
        return build(*given, queries=queries, **rest)

    monkeypatch.setattr(Retriever, "build", noted)
    values = experiment(tmp_path, bert, auto={"index": {"type": "auto"}})
    (built,) = index(values)
    tested = load_dataset(values["dataset"], "test").queries.values()
    others = [load_dataset(values["dataset"], split).queries for split in ("train", "dev")]
    wanted = [text for queries in others for text in queries.values() if text not in set(tested)]
    assert asked == [len(wanted)]
    assert "auto" in built.index.notes
