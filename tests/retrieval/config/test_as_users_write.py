"""YAML as people write it: models by name alone, 2e-5, lengths that a model does not take."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.encoders.foundation.build import Core, types_listed
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.config.reading import load_config, load_values
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig
from sluice.retrieval.config.yaml_file import read_yaml, yaml_text
from sluice.retrieval.planning.problems import problems


def test_a_models_name_is_an_encoder(bert: Path, tmp_path: Path) -> None:
    splade = tmp_path / "splade"
    splade.mkdir()
    (splade / "sluice.json").write_text('{"version": 1, "type": "splade"}')
    config = ExperimentConfig.model_validate(
        {
            "dataset": "pydocs",
            "train": {"ft": {"encoder": {"type": "splade", "model": "m"}, "loss": "info_nce"}},
            "retrievers": {
                "bm25": "bm25",
                "hub": "owner/name",
                "here": str(bert),
                "sparse": {"encoder": str(splade)},
                "trained": "ft",
            },
            "rerankers": {"cross": "owner/ranker", "http": "http"},
        }
    )
    encoders = {name: each.encoder for name, each in config.retrievers.items()}
    assert encoders == {
        "bm25": {"type": "bm25"},
        "hub": {"type": "dense", "model": "owner/name"},
        "here": {"type": "dense", "model": str(bert)},
        "sparse": {"type": "splade", "model": str(splade)},
        "trained": {"type": "splade", "model": "ft"},
    }
    assert config.rerankers["cross"] == {"type": "cross_encoder", "model": "owner/ranker"}
    assert config.rerankers["http"] == {"type": "http"}


def test_a_misspelt_type_is_no_model() -> None:
    found = problems({"dataset": "pydocs", "retrievers": {"s": "splad"}})
    assert found == [
        "retrievers.s.encoder.type: unknown type 'splad'; did you mean 'splade'?; known: bm25, "
        f"dense, splade, tokens and {len(ENCODERS) - 4} more: sluice config list --all"
    ]


@pytest.mark.parametrize("text", ["2e-5", "2E-5", "2.e-5", ".2e-4", "+2e-05"])
def test_numbers_with_an_exponent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "output: o\nencoder: bm25\nloss: info_nce\nexamples: p.csv\n"
        f"head_learning_rate: {text}\ntrainer: {{learning_rate: {text}}}\n"
    )
    config = load_config(file, TrainConfig)
    assert config.head_learning_rate == config.trainer["learning_rate"] == pytest.approx(2e-5)
    assert load_values(file, [f"trainer.weight_decay={text}"])["trainer"]["weight_decay"] < 1


@pytest.mark.parametrize("text", ["0,5", "5%", "2e-5x", "e5", "1e"])
def test_other_texts_are_no_numbers(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"output: o\nencoder: e\nloss: info_nce\nhead_learning_rate: {text}\n")
    with pytest.raises(ConfigError, match=r"head_learning_rate: .*; expected a number"):
        load_config(file, TrainConfig)


def test_texts_that_look_like_numbers_are_kept(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a": "1e3", "b": 1e3, "c": "2E-5", "d": [2e-5, "x"]}
    file = tmp_path / "x.yaml"
    file.write_text(yaml_text(values))
    assert read_yaml(file) == values
    assert yaml.safe_load(file.read_text()) == values


def test_lengths_that_a_model_does_not_take(bert: Path) -> None:
    dense = {"type": "dense", "model": str(bert)}
    values = {
        "dataset": "pydocs",
        "train": {"ft": {"encoder": {**dense, "query_length": 100_000}, "loss": "info_nce"}},
        "retrievers": {
            "long": {"encoder": {**dense, "document_length": 65}},
            "short": {"encoder": {**dense, "query_length": 2}},
            "fits": {"encoder": {**dense, "document_length": 64}},
            "towers": {
                "encoder": {
                    "type": "towers",
                    "query": {**dense, "query_length": 65},
                    "document": dense,
                }
            },
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": str(bert), "max_length": 65}},
    }
    takes = "; the model takes 3 to 64 tokens"
    assert sorted(problems(values)) == [
        "rerankers.cross.max_length: 65; the model takes 5 to 64 tokens",
        f"retrievers.long.encoder.document_length: 65{takes}",
        f"retrievers.short.encoder.query_length: 2{takes}",
        f"retrievers.towers.encoder.query.query_length: 65{takes}",
        f"train.ft.encoder.query_length: 100000{takes}",
    ]


def test_a_list_of_types_begins_with_the_usual_ones() -> None:
    assert types_listed({**ENCODERS, **RERANKERS}).startswith("bm25, dense, splade, tokens, cross")
    assert types_listed({"b": "x", "a": "y"}) == "a, b"
    few = {"b": "x", "a": "y", "c": Core("z")}
    assert types_listed(few) == "c, a, b"
    assert types_listed({**few, "d": "x", "e": "x"}) == "c and 4 more: sluice config list --all"
