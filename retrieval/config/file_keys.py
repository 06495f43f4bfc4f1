"""The keys of an artefact, and cheap hashes of the datasets and files that its config names.

A hash covers relative file names, sizes and modification times; no file is read. Of a hub id or an
ir_datasets id, which is not a path, it covers the name. Of loose files, which their owner edits,
copies and checks out, it covers the contents.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.retrieval.datasets.beir import BeirFolder, LooseFiles
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.datasets.source import find_split

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz", "collection.tsv")
QUERIES = ("queries.jsonl", "queries.jsonl.gz", "queries.train.tsv", "queries.dev.tsv")


class Keys(NamedTuple):
    """What decides an artefact: ``recipe`` hashes the settings, ``key`` also the files they name.

    An artefact is rebuilt when its key changes. To open it, the same recipe is enough: the files
    need not exist.
    """

    recipe: str
    key: str


def normalised_dataset(dataset: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's ``dataset`` as a mapping without defaults: equal for equal meanings.

    ``level`` is left out, which matters to evaluation only, and so are loose files of queries and
    judgements: no index depends on them, and training on their contents (``training_contents``).
    """
    settings = dict(dataset) if isinstance(dataset, Mapping) else {"name": dataset}
    for key in ("level", "queries", "qrels"):
        settings.pop(key, None)
    defaults = {"split": None, "ignore_identical_ids": "auto"}
    return {key: value for key, value in settings.items() if value != defaults.get(key, "")}


def collection_key(dataset: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells a collection from others, whichever of its splits is meant."""
    settings = normalised_dataset(dataset)
    return {key: settings[key] for key in settings if key not in ("split", "ignore_identical_ids")}


def corpus_contents(dataset: str | Mapping[str, Any]) -> str:
    """Return a hash of a dataset's corpus."""
    return _dataset_contents(dataset, CORPUS, ())


def training_contents(dataset: str | Mapping[str, Any]) -> str:
    """Return a hash of what training reads: corpus, queries, judgements of train and dev."""
    return _dataset_contents(dataset, (*CORPUS, *QUERIES), ("train", "dev"))


def path_contents(name: Any) -> str | None:
    """Return a hash of the file or folder ``name``, None if it does not exist."""
    path = expanded(name) if isinstance(name, str) and name else None
    if path is None or not path.exists():
        return None
    if path.is_file():
        return _hash(path.parent, [path])
    inside = (file for file in path.rglob("*") if file.is_file())
    return _hash(path, (f for f in inside if not _hidden(f.relative_to(path))))


def _dataset_contents(
    dataset: str | Mapping[str, Any], files: Iterable[str], splits: Iterable[str]
) -> str:
    name = str(dataset.get("name") if isinstance(dataset, Mapping) else dataset)
    if name == "pydocs":
        return f"pydocs of Python {platform.python_version()}"
    if name.startswith(("hf:", "ir_datasets:")):
        return path_contents(name.removeprefix("hf:")) or name
    source = load_dataset(dataset, None).source
    if isinstance(source, LooseFiles):
        return source.contents(splits)
    if not isinstance(source, BeirFolder):
        return name
    folder = source.path
    found = [find_split(split, source.splits()) for split in splits]
    parts = [folder / file for file in files]
    parts += [source.qrels_file(split) for split in found if split is not None]
    return _hash(folder, (part for part in parts if part.exists()))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _hash(folder: Path, files: Iterable[Path]) -> str:
    facts = []
    for file in sorted(files):
        stat = file.stat()
        facts.append([file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns])
    return fingerprint_of(facts)
