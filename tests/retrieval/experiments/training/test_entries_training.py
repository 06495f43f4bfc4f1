"""Training by entries from a file of definitions and names, up to a search, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from sentence_transformers import SentenceTransformer
from small_world import documents, write_beir

from sluice.encoders.model_files.registry import open_encoder

WORLD = documents(40)


def written(folder: Path, bert: Path, count: int, **loss: Any) -> Path:
    """Write a training over the first so many definitions and names."""
    pairs = [(d.text, f"name {d.id} of {d.text.split()[2]}") for d in WORLD[:count]]
    lines = [json.dumps({"query": text, "positive": name}) for text, name in pairs]
    (folder / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    config = {
        "output": str(folder / "out"),
        "encoder": {"type": "dense", "model": str(bert)},
        "loss": {"type": "entries", **loss},
        "examples": {"file": str(folder / "pairs.jsonl")},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1},
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder / "train.yaml"


@pytest.mark.thorough
def test_definitions_train_a_dense_encoder_that_searches(
    tmp_path: Path, bert: Path, sluice: Call
) -> None:
    code, out, err = sluice("train", written(tmp_path, bert, 40))
    assert code == 0, err
    assert "trained with entries" in out
    model = next((tmp_path / "out").rglob("manifest.json")).parent
    texts = [document.text for document in WORLD[:5]]
    own = open_encoder(model).encode_documents(texts)
    plain = SentenceTransformer(str(model), device="cpu").encode(texts)
    np.testing.assert_allclose(own, plain, atol=1e-5)
    assert not np.allclose(own, open_encoder(bert).encode_documents(texts), atol=1e-3)
    retriever = {"encoder": {"type": "dense", "model": str(model)}, "index": {"type": "flat"}}
    config = {"dataset": str(write_beir(tmp_path / "data")), "retrievers": {"names": retriever},
              "output": str(tmp_path / "index")}  # fmt: skip
    (tmp_path / "index.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, _, err = sluice("index", tmp_path / "index.yaml")
    assert code == 0, err
    title = WORLD[7].full_text
    code, out, err = sluice("search", tmp_path / "index" / "retrievers" / "names", title, "--json")
    assert (code, '"d07"' in out.splitlines()[0]) == (0, True), err


@pytest.mark.parametrize(("count", "loss", "said"), [
    (8, {}, "8 vectors of"),
    (40, {"temperature": -1.0}, "loss.temperature: -1.0; expected a number above 0"),
    (40, {"of": "vocabulary"}, "definitions"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(
    tmp_path: Path, bert: Path, sluice: Call, count: int, loss: dict[str, Any], said: str
) -> None:
    code, _, err = sluice("train", written(tmp_path, bert, count, **loss))
    assert (code, said in err) == (2, True), err
