"""Whatever an argument may name is found: by keys, by trust, by needs, and by checks of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.table import DATABASES
from sluice.retrieval.config.names import ROLES, Place, Role
from sluice.retrieval.config.schema.catalogue import entry, published
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.config.trust import named_in, trusted
from sluice.retrieval.experiments.reuse import Dependencies, check_named
from sluice.retrieval.pipelines.table import READ, READ_BY_ALL, REMOTE, STAGES, WRITTEN
from sluice.retrieval.planning.problems import models

# Keys whose texts name no file, model, server or part of a config: words, prompts, formats. A new
# key of texts belongs here, or to ROLES.
PLAIN = re.findall(
    r"\w+",
    """
    address aggregate answers api_key_env backend_file baseline by collection correction device
    devices document_marker document_prompt expert experts factory features fidelity format forms
    head instruction labels language links lr_scheduler_type max_memory measure measures order
    places positive prompt query_marker query_prompt save_strategy scoring skip_words split store
    table targets test text tuning type values variance_token variant variants
""",
)
# Parts and sections, whose own keys are looked at; datasets, which keys hash and trust asks about
# by themselves; names of this file.
SECTIONS = re.findall(
    r"\w+",
    """
    candidates corpus dataset datasets index loss name negatives output pipelines qrels query
    stages
""",
)
ADDRESSES = {(name, key) for name, keys in DATABASES.items() for key in keys}
ADDRESSES |= {(name, "url") for name in REMOTE}
CASES = {  # where a component of a kind stands in a config, and the rest of what it needs
    "encoders": "retrievers.r.encoder",
    "trained_encoders": "train.t.encoder",
    "rerankers": "rerankers.z",
    "indexes": "retrievers.r.index",
    "losses": "train.t.loss",
    "examples": "train.t.examples",
    "negatives": "train.t.negatives",
    "teachers": "train.t.teacher",
    "PruneSection": "retrievers.r.prune",
    "TrainingSection": "train.t",
    "CachedEncoding": "retrievers.r.encoding",
    "trainer": "train.t.trainer",
}
NEEDED = {"clicks": {"file": "here"}, "PruneSection": {"share": 0.1}}


def arguments() -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the type and the name of every argument that may be any text."""
    definitions = published()["$defs"]
    for full, schema in definitions.items():
        kind, _, name = full.partition(".")
        if kind == "teachers" and "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        for key, each in schema.get("properties", {}).items():
            if _textual(each):
                yield kind, name, key


def _textual(schema: dict[str, Any]) -> bool:
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    open_one = not schema.keys() - {"description", "default"}
    return schema.get("type") == "string" or open_one or any(map(_textual, inner))


EVERY = list(arguments())
NAMING = [
    pytest.param(kind, name, key, id=f"{kind}.{name}.{key}")
    for kind, name, key in EVERY
    if kind in CASES and Place("", key, "x", {"type": name}).role is not None
]


def test_every_argument_of_texts_is_declared() -> None:
    known = {*PLAIN, *SECTIONS, *ROLES}
    unknown = {
        f"{kind}.{name}.{key}"
        for kind, name, key in EVERY
        if key not in known and (name, key) not in ADDRESSES
    }
    assert unknown == set(), "a file, a model, ...: ROLES of retrieval/config/names.py; else PLAIN"
    assert {key for _, _, key in EVERY} >= {*PLAIN, *SECTIONS}
    assert len(NAMING) > 60


@pytest.mark.parametrize("stage", STAGES)
def test_every_option_of_texts_of_a_stage_is_declared(stage: str) -> None:
    plain = {"language", "measure", "method", "methods", "name", "normalise", "prompt", "required"}
    plain |= {"rules"}
    declared = {option for name, option in READ if name == stage}
    declared |= {option for name, option, _ in WRITTEN if name == stage}
    options = entry("stages", stage).arguments
    textual = {key for key, schema in options.items() if _textual(schema)}
    assert textual - plain - {*READ_BY_ALL} == declared - {*READ_BY_ALL}


def planted(kind: str, name: str, key: str, value: Any) -> tuple[ExperimentConfig, str]:
    """Return a config in which one argument has this value, and its place."""
    part: dict[str, Any] = {**NEEDED.get(name or kind, {}), key: value}
    if name:
        part["type"] = name
    place = CASES[kind]
    section, own, *below = place.split(".")
    value = {below[0]: part} if below else part
    base = {
        "retrievers": {"encoder": "bm25"},
        "train": {"encoder": {"type": "dense", "model": "m"}, "loss": "info_nce"},
        "rerankers": {},
    }[section]
    values = {"dataset": "data", "output": "out", section: {own: {**base, **value}}}
    return checked(values, ExperimentConfig), place


@pytest.mark.parametrize(("kind", "name", "key"), NAMING)
def test_what_it_names_is_found(
    kind: str, name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_beir(tmp_path / "data", 2)
    (tmp_path / "here").write_text("x")
    role = ROLES[key]
    config, place = planted(kind, name, key, "here")
    node = ".".join(place.split(".")[:2])
    if role in (Role.WRITTEN, Role.DATABASE):
        with pytest.raises(ConfigError, match=r"outside|is a database"):
            trusted(planted(kind, name, key, "/elsewhere")[0], (), tmp_path / "out")
        assert "here" in named_in(config)
        return
    before = Dependencies(config).keys(node).key
    (tmp_path / "here").write_text("another")
    assert (Dependencies(config).keys(node).key != before) == (role is not Role.SETTING)
    (tmp_path / "here").unlink()
    if role is Role.FILE:
        with pytest.raises(ConfigError, match=f"{node}.*: no file or folder here"):
            check_named(getattr(config, node.split(".")[0])[node.split(".")[1]], f"{node}.")
    if role is Role.MODEL and "precomputed" not in name and not name.startswith("http"):
        assert "here" in [model for _, model in models(config)]


@pytest.mark.parametrize(("name", "key"), sorted(ADDRESSES))
def test_an_address_is_asked_about(name: str, key: str, tmp_path: Path) -> None:
    kinds = [kind for kind, own, _ in EVERY if own == name and kind in CASES]
    for kind in dict.fromkeys(kinds):
        config, _ = planted(kind, name, key, "http://there/v1")
        with pytest.raises(ConfigError, match=r"http://there/v1 is a (server|database)"):
            trusted(config, (), tmp_path)
        assert "http://there/v1" in json.dumps(sorted(named_in(config)))
