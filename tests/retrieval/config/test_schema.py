"""The published JSON schema: every shipped config is valid, and mistakes are not."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from places import ROOT

from sluice.encoders.table import ENCODERS, RERANKERS, TUNINGS
from sluice.indexing.table import INDEXES
from sluice.retrieval.config import json_schema
from sluice.retrieval.config.schema.arguments import SUMMARIES, component, components
from sluice.retrieval.config.schema.json_schema import MINING, TABLES
from sluice.retrieval.config.schema.words import WORDS
from sluice.retrieval.config.sections import (
    CachedEncoding,
    ExperimentConfig,
    TrainConfig,
    TuneConfig,
)
from sluice.retrieval.config.yaml_file import EDITOR_LINE, SCHEMA
from sluice.retrieval.pipelines.table import SCORERS, STAGES
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.training.losses import LOSSES

FILE = ROOT / "configs" / SCHEMA
PUBLISHED = json.loads(FILE.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED)


def properties(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every property of a schema by name; those of conditions describe nothing."""
    if isinstance(schema, list):
        for each in schema:
            yield from properties(each)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for key, inner in schema.items():
            if key != "if":
                yield from properties(list(inner.values()) if key == "properties" else inner)


def test_the_file_is_what_the_components_say() -> None:
    spec = importlib.util.spec_from_file_location("make_schema", ROOT / "scripts/make_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    Draft202012Validator.check_schema(json_schema())
    assert module.text() == FILE.read_text(encoding="utf-8"), "run python scripts/make_schema.py"


def test_every_property_has_a_description() -> None:
    every = list(properties(PUBLISHED))
    assert len(every) > 400
    assert [name for name, place in every if not place.get("description")] == []


def test_no_description_is_of_something_that_does_not_exist() -> None:
    tables = [*TABLES.values(), STAGES]
    every = [each for table in tables for each in components(table)]
    every.append(component("mined", MINING))
    plain = {key for each in every for key in each.arguments}
    plain |= {field.name for kind in (Passages, CachedEncoding) for field in fields(kind)}
    assert sorted(set(WORDS) - plain) == []
    targets = {target for table in tables for target in table.values()}
    assert sorted(set(SUMMARIES) - {each.name for each in every} - targets) == []


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_config_in_the_project_is_valid(file: Any) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"{EDITOR_LINE}{SCHEMA}\n# ")
    assert [each.message for each in VALIDATOR.iter_errors(yaml.safe_load(text))] == []


BM25 = {"dataset": "pydocs", "retrievers": {"bm25": {"encoder": {"type": "bm25"}}}}
TRAINING = {"dataset": "pydocs", "output": "x", "encoder": {"type": "dense"}, "loss": "info_nce"}


def indexed(**index: object) -> dict[str, Any]:
    return {**BM25, "retrievers": {"bm25": {"encoder": "bm25", "index": index}}}


def encoded(**encoder: object) -> dict[str, Any]:
    return {**BM25, "retrievers": {"x": {"encoder": encoder}}}


@pytest.mark.parametrize(
    "config",
    [
        BM25,
        indexed(type="my_indexes:Mine", anything=1),
        encoded(type="my_encoders:Mine", anything=1),
        {**BM25, "retrievers": {"bm25": {"encoder": "bm25", "index": "inverted"}}},
        {**BM25, "tune": {"budget": {"p95_ms": 5}}},
        {**BM25, "dataset": ["scifact", {"name": "nfcorpus", "split": "dev"}]},
        {**BM25, "dataset": {"corpus": "c.csv", "columns": {"text": "body"}}},
        {**BM25, "dataset": {"corpus": "c.jsonl", "queries": {"dev": "d.tsv"}, "qrels": "q.txt"}},
        TRAINING,
        {**TRAINING, "examples": "pairs.csv"},
        {"output": "x", "encoder": "dense", "loss": "info_nce", "examples": ["a.csv", "b.csv"]},
        {**TRAINING, "examples": {"file": "pairs.csv", "positives": "together"}},
        {**TRAINING, "encoder": {"type": "dense", "start": {"type": "fresh", "layers": 2}}},
        {**TRAINING, "loss": {"type": "matryoshka", "loss": {"type": "info_nce"}}},
        {**TRAINING, "negatives": {"type": "live", "index": {"type": "flat"}}},
        {**TRAINING, "trainer": {"max_steps": 3, "adam_beta1": 0.8}},
        {**TRAINING, "teacher": {"type": "ensemble", "teachers": ["a/b", {"type": "dense"}]}},
    ],
)
def test_what_it_accepts(config: object) -> None:
    assert [each.message for each in VALIDATOR.iter_errors(config)] == []


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"retrievers": BM25["retrievers"]}, ""),
        ({**BM25, "retriever": {}}, ""),
        ({**BM25, "datset": "x"}, ""),
        ({**BM25, "dataset": {"name": "x", "splits": "dev"}}, "dataset"),
        ({**BM25, "dataset": {"queries": "x"}}, "dataset"),
        (encoded(type="bm-25"), "retrievers.x.encoder"),
        (encoded(type="bm25", k3=1), "retrievers.x.encoder"),
        (encoded(type="dense"), "retrievers.x.encoder"),
        (encoded(type="dense", model="m", dtype="fp16"), "retrievers.x.encoder"),
        (indexed(type="hnsw"), "retrievers.bm25.index"),
        (indexed(type="faiss"), "retrievers.bm25.index"),
        (indexed(type="flat", dept=10), "retrievers.bm25.index"),
        ({**BM25, "rerankers": {"cross": {"type": "dense"}}}, "rerankers.cross"),
        ({**BM25, "rerankers": {"x": {"type": "cross_encoder"}}}, "rerankers.x"),
        ({**BM25, "seed": "x"}, "seed"),
        ({**TRAINING, "loss": {"type": "info_nec"}}, "loss"),
        ({**TRAINING, "loss": {"type": "info_nce", "temprature": 0.1}}, "loss"),
        ({**TRAINING, "loss": {"type": "matryoshka", "loss": {"type": "infonce"}}}, "loss"),
        ({**TRAINING, "negatives": {"retriever": "bm25"}}, "negatives"),
        ({**TRAINING, "negatives": {"type": "mined", "retriever": "x", "mode": "y"}}, "negatives"),
        ({**TRAINING, "evaluate": {"every": 0}}, "evaluate"),
        ({**TRAINING, "sparsity": {"document": {"type": "flop", "weight": 1}}}, "sparsity"),
        ({**TRAINING, "trainer": {"max_steps": "ten"}}, "trainer.max_steps"),
    ],
)
def test_what_it_refuses_and_where(config: object, place: str) -> None:
    faults = [".".join(map(str, each.absolute_path)) for each in VALIDATOR.iter_errors(config)]
    assert faults
    assert all(fault.startswith(place) for fault in faults)


def test_it_knows_every_section_and_every_type() -> None:
    definitions = PUBLISHED["$defs"]
    for kind in (ExperimentConfig, TrainConfig, TuneConfig):
        assert set(definitions[kind.__name__]["properties"]) == set(kind.model_fields)
    for settings in (Passages, CachedEncoding):
        part = definitions[settings.__name__]
        assert set(part["properties"]) == {field.name for field in fields(settings)}
        assert part["additionalProperties"] is False
    assert definitions["CachedEncoding"]["properties"]["cache"]["default"] is True
    tables = {
        "encoders": ENCODERS, "rerankers": SCORERS, "indexes": INDEXES, "losses": LOSSES,
        "tunings": TUNINGS, "trained_encoders": [*ENCODERS, *RERANKERS],
    }  # fmt: skip
    for kind, names in tables.items():
        types = {name.partition(".")[2] for name in definitions if name.startswith(f"{kind}.")}
        assert types == set(names)
        assert set(definitions[kind]["properties"]["type"]["anyOf"][0]["enum"]) == set(names)
    temperature = definitions["losses.info_nce"]["properties"]["temperature"]
    assert temperature["anyOf"] == [{"type": "number"}, {"type": "null"}]
    assert definitions["encoders.dense"]["required"] == ["model"]


def test_the_dataset_section_has_every_key_that_a_dataset_takes() -> None:
    from sluice.encoders.foundation.errors import ConfigError
    from sluice.retrieval.datasets.dataset import load_dataset

    with pytest.raises(ConfigError, match="a dataset takes ") as error:
        load_dataset({"nothing": 1})
    taken = str(error.value).partition("takes ")[2].partition(";")[0].split(", ")
    assert set(taken) <= set(PUBLISHED["$defs"]["dataset"]["properties"])
