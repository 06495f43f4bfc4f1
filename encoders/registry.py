"""The built-in encoder types, and opening a saved one whatever its type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from encoders.build import resolve
from encoders.errors import ModelError
from encoders.files import MANIFEST, read_json
from encoders.layout import SIDECAR
from encoders.models import model_folder

ENCODERS = {
    "bm25": "encoders.bm25:BM25Encoder",
    "dense": "encoders.dense:DenseEncoder.from_pretrained",
    "splade": "encoders.splade:SpladeEncoder.from_pretrained",
}
RERANKERS = {
    "cross_encoder": "encoders.cross_encoder:CrossEncoder.from_pretrained",
}


def kind_of(folder: Path) -> str:
    """Return the type name of a saved model: what Sluice noted, else what the folder looks like."""
    if (folder / MANIFEST).exists() and read_json(folder / MANIFEST).get("format") == "sluice.bm25":
        return "bm25"
    if (folder / SIDECAR).exists():
        return str(read_json(folder / SIDECAR)["type"])
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: neither config.json nor a Sluice manifest; not a model folder")
    modules = folder / "modules.json"
    if modules.exists() and any("Splade" in str(entry["type"]) for entry in read_json(modules)):
        return "splade"
    names = read_json(folder / "config.json").get("architectures") or [""]
    return "cross_encoder" if "SequenceClassification" in str(names[0]) else "dense"


def open_encoder(name: str | Path, **options: Any) -> Any:
    """Load a saved encoder or cross-encoder of any built-in type, by folder or hub id."""
    folder = model_folder(str(name))
    kind = kind_of(folder)
    if kind == "bm25":
        return resolve("encoders.bm25:BM25Encoder.from_pretrained")(folder, **options)
    table = {**ENCODERS, **RERANKERS}
    if kind not in table:
        raise ModelError(f"{folder}: saved by an encoder of type {kind!r}, which is not built in")
    return resolve(table[kind])(folder, **options)
