"""``export``, ``import``, ``search-vectors``: sparse indexes to and from other engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Format = Annotated[str, typer.Option("--format", help="ciff, impact-json or vectors.")]


def export(
    retriever: Annotated[Path, typer.Argument(help="A retriever folder (BM25 or SPLADE).")],
    output: Annotated[Path, typer.Argument(help="The file or folder to write; .gz compresses.")],
    form: Format,
    quantise: Annotated[
        int | None, typer.Option(help="The largest weight becomes this. [default: 255 for ciff]")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="weight = round(SCALE x impact). [default: 100 for impact-json]"),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Queries whose vectors go to OUTPUT.queries.jsonl."),
    ] = None,
) -> None:
    """Write a sparse index for other engines; says what rounding to whole numbers lost.

    ciff: the Common Index File Format; impact-json: Lucene's {"id", "contents", "vector"};
    vectors: a folder with a CSR matrix, ids and terms, lossless. Deleted documents are left out.

    Example:  sluice export runs/x/retrievers/bm25 bm25.ciff.gz --format ciff
    """
    from retrieval.beir_files import read_queries
    from retrieval.exchange import export_retriever
    from retrieval.retriever import Retriever

    report = export_retriever(
        Retriever.open(retriever),
        output,
        form,
        quantise=quantise,
        scale=scale,
        queries=None if queries is None else dict(read_queries(queries)),
    )
    typer.echo(f"{output}: {report}")
    if queries is not None:
        typer.echo(f"{output}.queries.jsonl: the queries' vectors")


def import_(
    inputs: Annotated[list[Path], typer.Argument(help="What to read; impact-json takes several.")],
    output: Annotated[Path, typer.Argument(help="The retriever folder to write.")],
    form: Format,
    language: Annotated[
        str | None,
        typer.Option(help="Analyse queries as BM25 does (en, ...); else split at white space."),
    ] = None,
) -> None:
    """Make a retriever of another engine's sparse index or of precomputed vectors.

    Example:  sluice import anserini.ciff.gz runs/imported --format ciff --language en
    """
    from retrieval.exchange import import_retriever

    made = import_retriever(inputs, output, form, language=language)
    typer.echo(f"{output}: {made.head.documents:,} documents, {made.encoder.dim:,} terms")


def search_vectors(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A retriever folder.")],
    queries: Annotated[
        Path, typer.Argument(help='JSON lines {"id", "vector": {token: weight}}; .gz too.')
    ],
    output: Annotated[Path, typer.Option(help="The TREC run to write (.gz compresses).")],
    k: Annotated[int, typer.Option("-k", min=1, help="Documents for each query.")] = 1000,
) -> None:
    """Search with precomputed query vectors into a TREC run.

    Example:  sluice search-vectors runs/imported queries.jsonl --output run.trec
    """
    from retrieval.query_vectors import read_query_vectors, run_vectors, terms_of
    from retrieval.retriever import Retriever

    retriever = Retriever.open(path)
    columns = {term: column for column, term in enumerate(terms_of(retriever.encoder))}
    ids, vectors = read_query_vectors(queries, columns)
    run = run_vectors(retriever, ids, vectors, k)
    run.name = path.name
    run.save(output)
    typer.echo(f"{output}: {len(run):,} queries")


import_.__name__ = "import"  # the command's name is a keyword of Python

COMMANDS = (export, import_, search_vectors)
