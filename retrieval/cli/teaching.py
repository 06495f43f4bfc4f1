"""``distil``: a teacher's scores, for a training to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def distil(
    dataset: Annotated[str, typer.Argument(help="A dataset: folder, ir_datasets id, name.")],
    teacher: Annotated[
        list[str],
        typer.Option(
            help="A cross-encoder or encoder (folder or hub id), or a run file; several times "
            "for an ensemble."
        ),
    ],
    candidates: Annotated[
        str,
        typer.Option(help="A run, a retriever's folder, or a training file (sluice mine)."),
    ],
    output: Annotated[Path, typer.Option(help="The parquet file of scores to write.")],
    depth: Annotated[
        int, typer.Option(help="Candidates of each query, of a run or retriever.")
    ] = 50,
    split: Annotated[str, typer.Option(help="The split whose queries are scored.")] = "train",
    weight: Annotated[
        list[float] | None, typer.Option(help="One for each teacher. [default: all the same]")
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Each teacher's scores as z-scores of the query.")
    ] = False,
    shard: Annotated[int, typer.Option(help="Pairs kept together; a kill loses one shard.")] = 2048,
) -> None:
    """Score each query's positives and candidates by a teacher, into parquet.

    The columns are query_id, doc_id and score. The same command goes on after a kill. A training
    reads the file by `teacher: scores.parquet`, for margin_mse, kl_div and other losses.

    Example:
      sluice distil scifact --teacher runs/x/models/cross --candidates bm25.trec --output s.parquet
    """
    from sluice.retrieval.training_data.teachers.distil_dataset import (
        distil_dataset,
        teacher_weights,
    )

    typer.echo(
        str(
            distil_dataset(
                teacher,
                dataset,
                candidates,
                output,
                depth=depth,
                split=split,
                weights=teacher_weights(weight, teacher),
                normalise=normalise,
                shard=shard,
            )
        )
    )


COMMANDS = (distil,)
