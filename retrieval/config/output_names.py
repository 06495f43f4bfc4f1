"""Names of folders that are made from a dataset's name: ``output: runs/beir-{dataset}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError

DATASET = "{dataset}"


LONGEST = 60  # characters of several datasets' names


def short_name(dataset: Any) -> str:
    """Return a dataset's name, short and as ``folder_name`` spells it.

    Of a path it is the last part. A mapping has a ``name``, or files: then it is that of the folder
    of the corpus or, for a file of another name than ``corpus``, of the file. Several datasets are
    joined by ``-``, or counted where that is long.
    """
    if isinstance(dataset, list):
        names = [short_name(each) for each in dataset]
        joined = "-".join(names)
        return joined if len(joined) <= LONGEST else f"{names[0]}-and-{len(names) - 1}-more"
    if isinstance(dataset, Mapping):
        name = dataset.get("name")
        if name is None:
            texts = [value for value in dataset.values() if isinstance(value, str)]
            corpus = Path(str(dataset.get("corpus") or next(iter(texts), "")))
            stem = corpus.name.partition(".")[0]
            name = corpus.absolute().parent.name if stem == "corpus" else stem
    else:
        name = dataset
    text = str(name).removeprefix("suite:")
    path = expanded(text)
    if path.is_absolute() or text.startswith((".", "~")) or path.is_dir():
        text = path.resolve().name
    return folder_name(text.removeprefix("beir/"))


def folder_name(text: str) -> str:
    """Return a text as a folder's name: letters, digits, ``.``, ``_`` and ``-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "dataset"


def expanded_output(output: str, dataset: Any) -> str:
    """Return ``output`` with ``{dataset}`` replaced by the short name of the dataset."""
    unknown = [name for name in re.findall(r"\{\w*\}", output) if name != DATASET]
    if unknown:
        raise ConfigError(
            f"output: unknown placeholder {unknown[0]} in {output!r}; expected {DATASET}"
        )
    if DATASET in output and dataset is None:
        raise ConfigError(f"output: {output!r} names {DATASET}, and no dataset is given; write one")
    return output.replace(DATASET, short_name(dataset)) if DATASET in output else output
