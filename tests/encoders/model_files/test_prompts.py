"""Prompts of published models: from the folder, or from what is known of their family."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from static_embeddings import save_static

from sluice.encoders import DenseEncoder, StaticEncoder, as_encoder
from sluice.encoders.model_files.layout import read_layout
from sluice.encoders.model_files.prompts import FAMILIES, family_of, side_prompts

IDS = [(family, model) for family in FAMILIES for model in family.models]


def folder_of(path: Path, prompts: Any = None, **config: Any) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    if prompts is not None:
        facts = {"prompts": prompts, "default_prompt_name": None}
        (path / "config_sentence_transformers.json").write_text(json.dumps(facts))
    return path


def prompts_of(folder: Path) -> tuple[str, str]:
    found = side_prompts(read_layout(folder), folder)
    return found["query"], found["document"]


def test_every_id_is_known_in_the_hubs_cache_by_name_and_in_its_config(tmp_path: Path) -> None:
    for number, (family, model) in enumerate(IDS):
        owner, name = model.split("/")
        base = tmp_path / str(number)
        cached = base / f"models--{owner}--{name}" / "snapshots" / "0f3a"
        for place, config in (
            (cached, {}), (base / name.upper(), {}), (base / "m", {"_name_or_path": model})
        ):  # fmt: skip
            folder = folder_of(place, **config)
            assert family_of(folder) == family, place
            assert prompts_of(folder) == (family.query, family.document)
    assert family_of(folder_of(tmp_path / "my-e5-base-v2-finetuned")) is None
    other = tmp_path / "models--somebody--e5-base-v2" / "snapshots" / "0f3a"
    assert family_of(folder_of(other)) is None
    assert family_of(folder_of(tmp_path / "n", _name_or_path="somebody/e5-base-v2")) is None
    noted = folder_of(tmp_path / "p", _name_or_path="/models/intfloat/e5-base-v2")
    assert family_of(noted) is not None
    assert len({model.lower() for _, model in IDS}) == len(IDS)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({"query": "a: ", "document": "b: "}, ("a: ", "b: ")),
        ({"query": "a: ", "passage": "b: "}, ("a: ", "b: ")),
        ({"query": "a: ", "document": "", "passage": "b: "}, ("a: ", "b: ")),
        ({"query": "", "passage": "b: "}, ("", "b: ")),
        ({"web_search_query": "a: ", "sts_query": "c: "}, ("a: ", "")),
        ({"s2s_query": "c: ", "s2p_query": "a: "}, ("a: ", "")),
        ({"retrieval.query": "a: ", "retrieval.passage": "b: "}, ("a: ", "b: ")),
        ({"search_query": "a: ", "search_document": "b: "}, ("a: ", "b: ")),
    ],
)
def test_prompts_that_a_folder_names(
    prompts: dict[str, str], expected: tuple[str, str], tmp_path: Path
) -> None:
    assert prompts_of(folder_of(tmp_path / "e5-base-v2", prompts)) == expected


def test_a_family_supplies_what_a_folder_lacks_and_says_so_once(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(bert, tmp_path / "e5-small-v2")
    texts = ["gold in the river", "deep water"]
    with caplog.at_level(logging.WARNING, "sluice"):
        ours = as_encoder(tmp_path / "e5-small-v2")
        as_encoder(tmp_path / "e5-small-v2")
    [record] = caplog.records
    assert "E5 models are used with 'query: ' before queries, 'passage: ' before" in record.message
    caplog.clear()
    plain = DenseEncoder.from_pretrained(
        tmp_path / "e5-small-v2", query_prompt="", document_prompt=""
    )
    for side in ("query", "document"):
        mark = {"query": "query: ", "document": "passage: "}[side]
        marked = [mark + text for text in texts]
        encode = {"query": ours.encode_queries, "document": ours.encode_documents}[side]
        np.testing.assert_allclose(encode(texts), plain.encode_documents(marked), atol=1e-6)
    # saved without, it stays without
    plain.save_pretrained(tmp_path / "saved" / "e5-small-v2")
    again = DenseEncoder.from_pretrained(tmp_path / "saved" / "e5-small-v2")
    assert again.prompts == {"query": "", "document": ""}
    assert not caplog.records


@pytest.mark.parametrize("kind", ["dense", "static"])
def test_texts_that_bring_a_prompt(
    kind: str, bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"query_prompt": "query: ", "document_prompt": "passage: "}
    if kind == "static":
        save_static(tmp_path / "static")
        encoder: Any = StaticEncoder.from_pretrained(tmp_path / "static", **options)
    else:
        encoder = DenseEncoder.from_pretrained(bert, **options)
    with caplog.at_level(logging.WARNING, "sluice"):
        encoder.encode_queries(["gold", "what is a query: a text"])
        assert not caplog.records
        for _ in range(2):
            encoder.encode_queries(["gold", "query: gold"])
            encoder.encode_queries(["passage: gold"])
    own, other = (record.message for record in caplog.records)
    assert own == (
        "a query begins with 'query:', which is put before it once more; remove it from the texts, "
        "or set query_prompt: ''"
    )
    assert "a query begins with 'passage:', the prompt of a document" in other
