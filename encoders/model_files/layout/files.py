"""The small JSON files of a model folder, above all ``sluice.json``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import check_version, read_model_json, write_json
from sluice.encoders.foundation.errors import ModelError

SIDECAR = "sluice.json"
VERSION = 1  # of the sidecar
FLOORS = "term_floors.npy"  # what SPLADE's prune_quantile cuts weights at, float32 [vocab]
ADAPTER = "adapter"  # a folder: parts of a tuned model that could not be merged
SETTINGS = "sentence_bert_config.json"
OWN_HOME = "sluice.encoders.sentence_transformers"  # of modules that sentence-transformers lacks
RUN_THERE = frozenset({"SimilarityHead", "TermWeights"})  # by a class of that home
REFUSED = "OnlySluice"  # the one at whose name it refuses a folder; here it is passed over

_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "longformer"}


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model folder; {} if the file is missing."""
    value = read_model_json(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: a {type(value).__name__}, expected a JSON object")
    return value


def length_in(settings: dict[str, Any], key: str, folder: Path) -> int | None:
    """Return a length in tokens from a folder's settings, None without one."""
    value = settings.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ModelError(f"{folder}: {key} is {value!r}, expected a number of tokens")
    return value


def position_limit(positions: Any, model_type: Any, padding: Any) -> int | None:
    """Return the tokens that ``max_position_embeddings`` are for; None for a model without any."""
    if not isinstance(positions, int) or positions <= 0:
        return None  # RoBERTa's start after the padding index
    return positions - ((padding or 0) + 1 if model_type in _OFFSET_POSITIONS else 0)


def read_sidecar(folder: Path) -> dict[str, Any]:
    """Read ``sluice.json`` of a model folder, {} if it is missing; ``ModelError`` if newer."""
    facts = read_object(folder / SIDECAR)
    check_version(facts.get("version", VERSION), VERSION, folder / SIDECAR, ModelError)
    return facts


def write_sidecar(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``sluice.json``: the kind of encoder and what the layout cannot express."""
    adapter = {"adapter": ADAPTER} if (folder / ADAPTER).is_dir() else {}
    write_json(folder / SIDECAR, {"version": VERSION, **facts, **adapter})
    if adapter:
        append_module(folder, ADAPTER)


def own_modules(folder: Path) -> set[str]:
    """Return the names of the classes of ``OWN_HOME`` that a model is made of, all its parts'."""
    texts = [file.read_text(encoding="utf-8") for file in folder.rglob("modules.json")]
    return set(re.findall(rf"{re.escape(OWN_HOME)}\.(\w+)", "".join(texts)))


def append_module(folder: Path, name: str, target: str = "") -> Path:
    """Add a module of the class ``target`` to ``modules.json``; return its folder, not yet made.

    By default it is ours, and where we have none of that ``name`` other libraries refuse the model.
    """
    kinds = {"Transformer": "sentence_transformers.models.Transformer"}
    own = kinds.get(name, f"{OWN_HOME}.{name if name in RUN_THERE else REFUSED}")
    entries = read_model_json(folder / "modules.json") or []
    number = len(entries)
    entry = {"idx": number, "name": str(number), "path": f"{number}_{name}", "type": target or own}
    write_json(folder / "modules.json", [*entries, entry])
    return folder / f"{number}_{name}"
