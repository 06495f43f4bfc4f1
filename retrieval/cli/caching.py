"""``cache``: the vectors that are kept for later indexes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer


def cache(
    action: Annotated[
        Literal["list", "clear"], typer.Argument(help="list, or clear: remove what is not in use.")
    ] = "list",
    path: Annotated[
        Path | None, typer.Option(help="The folder; $SLUICE_CACHE/vectors without.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Clear only the encoder whose fingerprint begins so.")
    ] = None,
) -> None:
    """List or clear the cached vectors of documents, one line an encoder and form.

    The cache holds 20 GB ($SLUICE_CACHE_BYTES); what was used longest ago goes first.

    Examples:
      sluice cache
      sluice cache clear --encoder 3fa9
    """
    from sluice.encoders.vectors.cache_limit import cache_root, cached_keys, removed

    root = path or cache_root()
    wanted = [key for key in cached_keys(root) if key.fingerprint.startswith(encoder or "")]
    for key in wanted:
        state = ""
        if action == "clear":
            state = "removed  " if removed(key) else "in use   "
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.used))
        name = key.encoder.rpartition(":")[2]
        typer.echo(
            f"{state}{key.fingerprint[:12]}  {name:<16}  {key.store:<8}"
            f"  {key.bytes / 1e6:>10,.1f} MB  {used}"
        )
    if action == "clear" and not wanted:
        typer.echo(f"{root}: nothing{f' of encoder {encoder}' if encoder else ''} is cached here")
    if action == "list":
        typer.echo(f"{root}: {sum(key.bytes for key in wanted) / 1e6:,.1f} MB")


COMMANDS = (cache,)
