"""Finds the small collections of a folder: NanoBEIR's, HAKARI-Bench's, and folders in BEIR layout.

On the hub both are Parquet files in ``corpus/``, ``queries/`` and ``qrels/``: a repository for each
collection, whose only split is ``train`` (zeta-alpha-ai/NanoSciFact), or one for all, a split and
so a file for each (sentence-transformers/NanoBEIR-en, hakari-bench/NanoMLDR).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.datasets.beir import is_beir_folder

NANO = "nano"  # the suite of any of these names, or of folders Nano* side by side
FOLDERS = (NANO, "NanoBEIR-en", "NanoBEIR")
SHARD = re.compile(r"(-\d{5}-of-\d{5})?\.parquet")

Spec = str | dict[str, Any]  # as ``dataset:`` names it


def collections_of(suite: str) -> list[Spec]:
    """Return the datasets of a suite: a folder, by path or by name under ``$SLUICE_DATA``.

    ``nano`` is the folder of that name there, or ``NanoBEIR-en``, or all folders ``Nano*``.
    ``ConfigError`` for a folder that is not there, or holds no collection.
    """
    data = expanded(os.environ.get("SLUICE_DATA") or ".")
    names = FOLDERS if suite == NANO else (suite,)
    places = [*(data / name for name in names), expanded(suite)]
    folder = next((place for place in places if place.is_dir()), None)
    found = [] if folder is None else list(_collections(folder, "*"))
    if folder is None and suite == NANO:
        found = list(_collections(data, "Nano*"))
    if not found:
        raise ConfigError(
            f"suite {suite!r}: no collection in {folder or ', '.join(map(str, places))}; expected "
            "folders in BEIR layout, or corpus/NAME.parquet, queries/... and qrels/... as in "
            f"NanoBEIR{suggest(suite, [each.name for each in data.glob('*')])}"
        )
    return found


def _collections(folder: Path, pattern: str) -> Iterator[Spec]:
    own = list(_of_parquet(folder))
    yield from own
    for each in sorted(folder.glob(pattern)) if not own else ():
        if is_beir_folder(each):
            yield str(each)
        else:
            yield from _of_parquet(each, f"{each.name}__")


def _of_parquet(folder: Path, before: str = "") -> Iterator[dict[str, Any]]:
    """Yield the collections whose parts are a folder's Parquet files; a single one has its name.

    ``DataError`` for one that lacks its queries or judgements, or has them in several files.
    """
    corpora = _files(folder / "corpus")
    for name, corpus in corpora.items():
        spec = {
            "name": folder.name if len(corpora) == 1 else before + name,
            "corpus": str(corpus[0]),
        }
        if len(corpus) > 1:
            spec["corpus"] = str(folder / "corpus" / f"{name}-*.parquet")
        for part in ("queries", "qrels"):
            files = _files(folder / part).get(name, [])
            if len(files) != 1:
                raise DataError(f"{folder / part}: {len(files)} files of {name}; expected one")
            spec[part] = str(files[0])
        yield spec


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return a folder's Parquet files by what their names begin with: the split they hold."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.parquet")):
        found.setdefault(SHARD.sub("", file.name), []).append(file)
    return found
