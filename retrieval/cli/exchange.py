"""``import`` and ``export``: indexes and vectors from and to other engines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.options import Command, plural, refuse_options

DENSE = "Dense vectors"
SPARSE = "Sparse indexes"


def import_(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="The files or folder to read; impact-json takes several."
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="The retriever's folder to write.")
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORM",
            help="Sparse: ciff, impact-json or vectors. Dense: npy, parquet, safetensors or jsonl.",
        ),
    ],
    language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            show_default="split at white space",
            help="Analyse queries as BM25 does in this language, as en.",
            rich_help_panel=SPARSE,
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Texts by id: a corpus .jsonl, or a dataset.",
            rich_help_panel=DENSE,
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model that made the vectors; it encodes queries.",
            rich_help_panel=DENSE,
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", show_default="ip", help="ip, cosine or l2.", rich_help_panel=DENSE
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="INDEX",
            show_default="flat",
            help="flat, a FAISS factory, or YAML: '{type: ...}'.",
            rich_help_panel=DENSE,
        ),
    ] = None,
    query_vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of the queries that will be searched.",
            rich_help_panel=DENSE,
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Texts of --query-vectors, by id.", rich_help_panel=DENSE
        ),
    ] = None,
) -> None:
    """Make a retriever from other tools' files.

    The files are another engine's sparse index (ciff, impact-json), `vectors` of sluice export, or
    dense vectors with ids of any model or service.

    Examples:
      sluice import anserini.ciff.gz runs/imported --format ciff --language en
      sluice import vectors.npy runs/mine --format npy --documents scifact --metric cosine
    """
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_retrievers import DenseImport, import_job
    from sluice.retrieval.exchange.sparse_retrievers import import_retriever

    job = DenseImport(documents, encoder, metric, index, query_vectors, queries)
    reason = f"not for --format {form}"
    if form in FORMS:
        refuse_options(reason, language=language)
        retriever = import_job(inputs, output, form, job)
        width = f"{getattr(retriever.index, 'width', None) or 0:,} dimensions"
    else:
        refuse_options(reason, **asdict(job))
        retriever = import_retriever(inputs, output, form, language=language)
        width = plural(retriever.encoder.dim, "term")
    typer.echo(f"{output}: {plural(retriever.head.documents, 'document')}, {width}")


def export(
    retriever: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A retriever's folder, sparse or dense.")
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="The file or folder to write; .gz compresses.")
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORM",
            help="Sparse: ciff, impact-json or vectors. Dense: npy, parquet or safetensors.",
        ),
    ],
    quantise: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="255 for ciff",
            help="The largest weight becomes N.",
            rich_help_panel=SPARSE,
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            show_default="100 for impact-json",
            help="A weight becomes round(X impact).",
            rich_help_panel=SPARSE,
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Queries whose vectors go to OUTPUT.queries.jsonl.",
            rich_help_panel=SPARSE,
        ),
    ] = None,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="parquet: titles and texts too.", rich_help_panel=DENSE),
    ] = False,
) -> None:
    """Write an index in other tools' formats.

    ciff: the Common Index File Format. impact-json: Lucene's {"id", "contents", "vector"}. vectors:
    a folder with a CSR matrix, ids and terms, lossless. npy, parquet, safetensors: ids and float32
    vectors. It says what rounding to whole numbers lost; deleted documents are left out. For models
    see `sluice model export`.

    Example:
      sluice export runs/x/retrievers/bm25 bm25.ciff.gz --format ciff
    """
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_retrievers import export_dense
    from sluice.retrieval.retrievers.retriever import Retriever

    if form == "onnx":
        raise ConfigError("--format onnx: is for models; write sluice model export MODEL OUTPUT")
    if form in FORMS or texts:
        reason = f"not for --format {form}"
        refuse_options(reason, quantise=quantise, scale=scale, queries=queries)
        dense = export_dense(Retriever.open(retriever), output, form, texts=texts)
        typer.echo(f"{output}: {dense}")
        return
    from sluice.retrieval.datasets.beir import read_queries
    from sluice.retrieval.exchange.sparse_retrievers import export_retriever

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


COMMANDS: dict[str, Command] = {"import": import_, "export": export}
