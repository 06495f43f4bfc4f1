"""Finds the files that a YAML file's ``dataset`` names: from the current folder, then beside it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.input.bounded import expanded
from sluice.retrieval.datasets.beir import is_beir_folder
from sluice.retrieval.documents.readers.source import is_source

log = logging.getLogger("sluice")
FILES = ("corpus", "queries", "qrels")


def found_beside(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a config's values with the datasets' relative paths as seen from the current folder.

    A path that does not exist from there, and does exist beside ``file``, is replaced by the
    latter; a log line says so.
    """
    found = dict(values)
    for key in ("dataset", "datasets"):
        if key in values:
            found[key] = _dataset(values[key], file, key)
    trainings = values.get("train")
    if isinstance(trainings, Mapping):
        found["train"] = {
            name: {**each, "datasets": _dataset(each["datasets"], file, f"train.{name}.datasets")}
            if isinstance(each, Mapping) and "datasets" in each
            else each
            for name, each in trainings.items()
        }
    return found


def _dataset(dataset: Any, file: Path, key: str) -> Any:
    if isinstance(dataset, list):
        return [_dataset(each, file, f"{key}[{place}]") for place, each in enumerate(dataset)]
    if isinstance(dataset, Mapping):
        found = dict(dataset)
        if isinstance(found.get("name"), str) and "corpus" not in found:
            found["name"] = _named(found["name"], file, f"{key}.name")
        for part in FILES:
            found |= {part: _path(found[part], file, f"{key}.{part}")} if part in found else {}
        return found
    return _named(dataset, file, key) if isinstance(dataset, str) else dataset


def _named(name: str, file: Path, key: str) -> str:
    """Return a dataset's name, or the folder or file beside ``file`` that it names."""
    beside = file.parent / name
    if not name or expanded(name).exists():
        return name
    return _said(name, beside, key, file) if is_beir_folder(beside) or beside.is_file() else name


def _path(path: Any, file: Path, key: str) -> Any:
    if isinstance(path, Mapping):
        return {split: _path(each, file, f"{key}.{split}") for split, each in path.items()}
    if not isinstance(path, str) or not path or is_source(path):
        return path
    beside = file.parent / path
    return _said(path, beside, key, file) if is_source(beside) else path


def _said(name: str, beside: Path, key: str, file: Path) -> str:
    log.info("%s: %s: %s is not in the current folder; using %s", file, key, name, beside)
    return str(beside)
