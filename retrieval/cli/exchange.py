"""``export``, ``import``, ``search-vectors``: sparse indexes to and from other engines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError

Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="Sparse: ciff, impact-json, vectors. Dense: npy, parquet, safetensors, and jsonl to "
        "import. Of models: onnx, to export.",
    ),
]


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
    quantise_model: Annotated[
        str | None, typer.Option(help="onnx: int8 also writes the model in 8 bits, with its loss.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="onnx: measure nDCG@10 with the graph and with torch on it.")
    ] = None,
    documents: Annotated[
        int | None, typer.Option(help="onnx: of the dataset, with all judged. [default: 2000]")
    ] = None,
    sample_queries: Annotated[
        int | None, typer.Option(help="onnx: of the dataset's test queries. [default: 300]")
    ] = None,
    texts: Annotated[bool, typer.Option("--texts", help="parquet: titles and texts too.")] = False,
) -> None:
    """Write a sparse index for other engines; says what rounding to whole numbers lost.

    ciff: the Common Index File Format; impact-json: Lucene's {"id", "contents", "vector"};
    vectors: a folder with a CSR matrix, ids and terms, lossless. Deleted documents are left out.

    npy, parquet, safetensors: the ids and float32 vectors of a dense retriever.

    onnx: RETRIEVER is a model's folder or hub id; OUTPUT becomes a model folder with its graph, for
    `backend: onnx` and `openvino`; says how far the graph's vectors are from torch's.

    Example:  sluice export runs/x/retrievers/bm25 bm25.ciff.gz --format ciff
    """
    if form == "onnx":
        from sluice.retrieval.exchange.graph_export import export_model

        refuse_options(form, quantise=quantise, scale=scale, queries=queries, texts=texts or None)
        exported = export_model(
            retriever, output, quantise=quantise_model, dataset=dataset,
            documents=documents, queries=sample_queries,
        )  # fmt: skip
        typer.echo(f"{output}:\n{exported}")
        return
    refuse_options(
        form, quantise_model=quantise_model, dataset=dataset, documents=documents,
        sample_queries=sample_queries,
    )  # fmt: skip
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_retrievers import export_dense
    from sluice.retrieval.retrievers.retriever import Retriever

    if form in FORMS or texts:
        refuse_options(form, quantise=quantise, scale=scale, queries=queries)
        dense = export_dense(Retriever.open(retriever), output, form, texts=texts)
        typer.echo(f"{output}: {dense}")
        return
    from sluice.retrieval.datasets.beir_files import read_queries
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


def import_(
    inputs: Annotated[list[Path], typer.Argument(help="What to read; impact-json takes several.")],
    output: Annotated[Path, typer.Argument(help="The retriever folder to write.")],
    form: Format,
    language: Annotated[
        str | None,
        typer.Option(help="Analyse queries as BM25 does (en, ...); else split at white space."),
    ] = None,
    documents: Annotated[
        str | None, typer.Option(help="Dense: texts by id: a corpus .jsonl, or a dataset.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Dense: the model that made the vectors, for queries.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Dense: ip, cosine or l2. [default: ip]")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(help="Dense: flat, a FAISS factory, or '{type: ...}'. [default: flat]"),
    ] = None,
    query_vectors: Annotated[
        Path | None, typer.Option(help="Dense: the vectors of queries that will be searched.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Dense: the texts of --query-vectors, by id.")
    ] = None,
) -> None:
    """Make a retriever of another engine's sparse index or of precomputed vectors.

    npy, parquet, safetensors, jsonl: dense vectors with ids, of any model or service.

    Example:  sluice import anserini.ciff.gz runs/imported --format ciff --language en

    Example:  sluice import vectors.npy runs/mine --format npy --documents scifact --metric cosine
    """
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_import import DenseImport, import_job
    from sluice.retrieval.exchange.sparse_retrievers import import_retriever

    job = DenseImport(documents, encoder, metric, index, query_vectors, queries)
    if form in FORMS:
        refuse_options(form, language=language)
        found = import_job(inputs, output, form, job)
        width = f"{getattr(found.index, 'width', None) or 0:,} dimensions"
        typer.echo(f"{output}: {found.head.documents:,} documents, {width}")
        return
    refuse_options(form, **asdict(job))
    made = import_retriever(inputs, output, form, language=language)
    typer.echo(f"{output}: {made.head.documents:,} documents, {made.encoder.dim:,} terms")


def search_vectors(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A retriever folder.")],
    queries: Annotated[
        Path,
        typer.Argument(
            help='JSON lines {"id", "vector": {token: weight}}; of a dense index .npy, .parquet, '
            ".safetensors, or lines with embeddings."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The TREC run to write (.gz compresses).")],
    k: Annotated[int, typer.Option("-k", min=1, help="Documents for each query.")] = 1000,
) -> None:
    """Search with precomputed query vectors into a TREC run.

    Example:  sluice search-vectors runs/imported queries.jsonl --output run.trec
    """
    from sluice.retrieval.exchange.query_vectors import queries_of, run_vectors
    from sluice.retrieval.retrievers.retriever import Retriever

    retriever = Retriever.open(path)
    ids, vectors = queries_of(retriever, queries)
    run = run_vectors(retriever, ids, vectors, k)
    run.name = path.name
    run.save(output)
    typer.echo(f"{output}: {len(run):,} queries")


def refuse_options(form: str, **given: object) -> None:
    """Raise ``ConfigError`` for options that are for other formats than ``form``."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is not for --format {form}")


import_.__name__ = "import"  # the command's name is a keyword of Python

COMMANDS = (export, import_, search_vectors)
