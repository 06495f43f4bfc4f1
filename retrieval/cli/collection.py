"""``data``: what a dataset holds."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def data(
    name: Annotated[
        str, typer.Argument(help="A BEIR folder, an ir_datasets id, hf:owner/name, pydocs, ...")
    ],
    split: Annotated[str, typer.Option(help="The split to describe.")] = "test",
) -> None:
    """Describe a dataset: sizes, lengths, splits, grades, and what looks odd.

    Example:  sluice data pydocs
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.datasets.report import describe

    typer.echo(json.dumps(describe(load_dataset(name, split)), indent=2, ensure_ascii=False))


COMMANDS = (data,)
