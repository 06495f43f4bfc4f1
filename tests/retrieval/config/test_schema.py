"""The published JSON schema: every shipped config is valid, and typing errors are not."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import yaml
from places import ROOT

from sluice.retrieval.config.sections import (
    CachedEncoding,
    ExperimentConfig,
    TrainConfig,
    TuneConfig,
    json_schema,
)
from sluice.retrieval.retrievers.corpus.passages import Passages

SCHEMA = json.loads(json_schema())
TYPES = {
    "array": list, "boolean": bool, "integer": int, "null": type(None), "number": (int, float),
    "object": dict, "string": str,
}  # fmt: skip
KNOWN = {
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "description", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maximum", "minItems", "minimum",
    "oneOf", "pattern", "properties", "required", "title", "type",
}  # fmt: skip


def valid(value: Any, schema: Any) -> bool:
    """Whether a value is valid by the part of JSON Schema that ours is written in."""
    if isinstance(schema, bool):
        return schema
    assert schema.keys() <= KNOWN
    if "$ref" in schema:
        return valid(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(
        isinstance(value, TYPES[kind]) and (kind == "boolean") == isinstance(value, bool)
        for kind in kinds
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "anyOf" in schema and not any(valid(value, each) for each in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(valid(value, each) for each in schema["oneOf"]) != 1:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if isinstance(value, list):
        items = schema.get("items", True)
        return len(value) >= schema.get("minItems", 0) and all(valid(each, items) for each in value)
    if isinstance(value, Mapping):
        properties, others = (
            schema.get("properties", {}),
            schema.get("additionalProperties", True),
        )
        return set(schema.get("required", [])) <= value.keys() and all(
            valid(each, properties.get(key, others)) for key, each in value.items()
        )
    return not isinstance(value, (int, float)) or (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
    )


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda f: f.stem)
def test_every_config_in_the_project_is_valid(file: Any) -> None:
    assert valid(yaml.safe_load(file.read_text(encoding="utf-8")), SCHEMA)


BM25 = {"dataset": "pydocs", "retrievers": {"bm25": {"encoder": {"type": "bm25"}}}}
TRAINING = {"dataset": "pydocs", "output": "x", "encoder": {"type": "dense"}, "loss": "info_nce"}


@pytest.mark.parametrize(
    "config",
    [
        BM25,
        {**BM25, "retrievers": {"own": {"encoder": {"type": "my_encoders:Mine"}}}},
        {**BM25, "retrievers": {"bm25": {"encoder": "bm25", "index": "inverted"}}},
        {**BM25, "tune": {"budget": {"p95_ms": 5}}},
        TRAINING,
        {**TRAINING, "examples": "pairs.csv"},
    ],
)
def test_what_it_accepts(config: object) -> None:
    assert valid(config, SCHEMA)


@pytest.mark.parametrize(
    "config",
    [
        {"retrievers": BM25["retrievers"]},
        {**BM25, "retriever": {}},
        {**BM25, "retrievers": {"bm25": {"encoder": {"type": "bm-25"}}}},
        {**BM25, "retrievers": {"bm25": {"encoder": "bm25", "index": {"type": "hnsw"}}}},
        {**BM25, "rerankers": {"cross": {"type": "dense"}}},
        {**BM25, "seed": "x"},
        {**TRAINING, "loss": {"type": "info_nec"}},
        {**TRAINING, "negatives": {"retriever": "bm25"}},
        {**TRAINING, "evaluate": {"every": 0}},
    ],
)
def test_what_it_refuses(config: object) -> None:
    assert not valid(config, SCHEMA)


def test_it_knows_the_sections() -> None:
    for kind in (ExperimentConfig, TrainConfig, TuneConfig):
        assert set(SCHEMA["$defs"][kind.__name__]["properties"]) == set(kind.model_fields)


def test_it_knows_the_settings_that_are_dataclasses() -> None:
    parts = SCHEMA["$defs"]
    for kind in (Passages, CachedEncoding):
        part = parts[kind.__name__]
        assert set(part["properties"]) == {field.name for field in fields(kind)}
        assert part["additionalProperties"] is False
    assert parts["Passages"]["properties"]["length"] == {
        "default": 200, "minimum": 1, "title": "Length", "type": "integer",
    }  # fmt: skip
    assert parts["CachedEncoding"]["properties"]["cache"]["default"] is True
