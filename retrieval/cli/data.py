"""The verbs for datasets and cached vectors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import (
    IdColumn,
    Links,
    MetadataColumns,
    TextColumns,
    TitleColumn,
    named_columns,
)
from sluice.retrieval.cli.terminal.verbs import Command, Shown


def data(
    name: Annotated[
        str,
        "DATASET",
        "A BEIR folder, an ir_datasets id, hf:owner/name, pydocs, ...; or documents: a "
        "folder of files, a table.",
    ],
    *,
    split: Annotated[str, "The split to describe."] = "test",
    id: IdColumn = None,
    text: TextColumns = None,
    title: TitleColumn = None,
    metadata: MetadataColumns = None,
    allow: Links = None,
) -> None:
    """Describe a dataset.

    Prints sizes, lengths, splits, grades and oddities as JSON; of documents without judgements,
    sizes and lengths, and how they are read.

    Examples:
      sluice data pydocs
      sluice data docs.csv
    """
    from sluice.retrieval.datasets.report import describe

    columns = named_columns(id=id, text=text, title=title, metadata=metadata)
    own = named_columns(columns=columns or None, allow=allow)
    dataset = {"corpus": name, **own} if own else name
    typer.echo(json.dumps(describe(dataset, split), indent=2, ensure_ascii=False))


def cache(
    action: Annotated[
        Literal["list", "clear"],
        "list, or clear, which removes vectors that no process is using.",
        Shown("list"),
    ] = "list",
    *,
    path: Annotated[
        Path | None, "FOLDER", "The cache's folder.", Shown("$SLUICE_CACHE/vectors")
    ] = None,
    encoder: Annotated[
        str | None, "FINGERPRINT", "Only encoders whose fingerprint begins with this."
    ] = None,
) -> None:
    """List or clear cached document vectors.

    One line for each encoder and storage format. The cache holds 20 GB ($SLUICE_CACHE_BYTES); when
    it is full, the least recently used vectors are removed.

    Examples:
      sluice cache
      sluice cache clear --encoder 3fa9
    """
    from sluice.encoders.vectors.cache import cache_root, cached_keys, removed

    root = path or cache_root()
    keys = [key for key in cached_keys(root) if key.fingerprint.startswith(encoder or "")]
    for key in keys:
        state = ""
        if action == "clear":
            state = "removed  " if removed(key) else "in use   "
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.used))
        name = key.encoder.rpartition(":")[2]
        echo(
            f"{state}{key.fingerprint[:12]}  {name:<16}  {key.store:<8}"
            f"  {key.bytes / 1e6:>10,.1f} MB  {used}"
        )
    if action == "clear" and not keys:
        echo(f"{root}: no vectors{f' of encoder {encoder}' if encoder else ''} are cached")
    if action == "list":
        echo(f"{root}: {sum(key.bytes for key in keys) / 1e6:,.1f} MB")


COMMANDS: dict[str, Command] = {"data": data, "cache": cache}
