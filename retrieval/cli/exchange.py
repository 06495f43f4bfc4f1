"""The verbs that read and write other engines' indexes and vectors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import echo
from sluice.retrieval.cli.terminal.options import Allow, allowed, plural, refuse_options
from sluice.retrieval.cli.terminal.verbs import Command, Shown

DENSE = "Dense vectors"


def import_(
    inputs: Annotated[list[Path], "The files or folder to read; impact-json takes several."],
    output: Annotated[Path, "OUTPUT", "The retriever's folder to write."],
    *,
    form: Annotated[
        str,
        "Sparse: ciff, impact-json or vectors. Dense: npy, parquet, safetensors or "
        "jsonl. Token vectors: npz or parquet.",
    ],
    language: Annotated[
        str | None,
        "CODE",
        "Analyse queries as BM25 does in this language, as en.",
        Shown("split at white space", panel="Sparse indexes"),
    ] = None,
    documents: Annotated[
        str | None, "SOURCE", "Texts by id: a corpus .jsonl, or a dataset.", Shown(panel=DENSE)
    ] = None,
    encoder: Annotated[
        str | None,
        "MODEL",
        "The model that produced the vectors; it encodes queries.",
        Shown(panel=DENSE),
    ] = None,
    metric: Annotated[str | None, "ip, cosine or l2.", Shown("ip", panel=DENSE)] = None,
    index: Annotated[
        str | None,
        "flat, a FAISS factory, or YAML: '{type: ...}'.",
        Shown("flat; tokens for token vectors", panel=DENSE),
    ] = None,
    query_vectors: Annotated[
        Path | None, "Vectors of the queries that will be searched.", Shown(panel=DENSE)
    ] = None,
    queries: Annotated[Path | None, "Texts of --query-vectors, by id.", Shown(panel=DENSE)] = None,
) -> None:
    """Make a retriever from other tools' files.

    The files are another engine's sparse index (ciff, impact-json), `vectors` of sluice export, or
    ids and vectors from any model or service: one a text (dense), or one a token.

    Examples:
      sluice import anserini.ciff.gz runs/imported --format ciff --language en
      sluice import vectors.npy runs/mine --format npy --documents scifact --metric cosine
    """
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_retrievers import DenseImport, import_job
    from sluice.retrieval.exchange.sparse_retrievers import import_retriever
    from sluice.retrieval.exchange.token_retrievers import import_token_job
    from sluice.retrieval.exchange.tokens.vectors import FORMS as TOKEN_FORMS, holds_token_vectors

    job = DenseImport(documents, encoder, metric, index, query_vectors, queries)
    reason = f"not for --format {form}"
    if form in FORMS or form in TOKEN_FORMS:
        refuse_options(reason, language=language)
        if len(inputs) == 1 and holds_token_vectors(inputs[0], form):
            retriever = import_token_job(inputs[0], output, form, job)
        else:
            retriever = import_job(inputs, output, form, job)
        width = f"{retriever.index.width or 0:,} dimensions"
    else:
        refuse_options(reason, **asdict(job))
        retriever = import_retriever(inputs, output, form, language=language)
        width = plural(retriever.encoder.dim, "term")
    echo(f"{output}: {plural(retriever.head.documents, 'document')}, {width}")


def export(
    retriever: Annotated[Path, "FOLDER", "A retriever's folder, sparse or dense."],
    output: Annotated[Path, "OUTPUT", "The file or folder to write; .gz compresses."],
    *,
    form: Annotated[
        str,
        "Sparse: ciff, impact-json or vectors. Dense: npy, parquet or safetensors. Token "
        "vectors: npz or parquet. Databases: opensearch, elasticsearch, vespa, weaviate "
        "or lancedb. From PostgreSQL or Qdrant: retriever.",
    ],
    quantise: Annotated[
        int | None, "The largest weight becomes N.", Shown("255 for ciff", panel="Sparse indexes")
    ] = None,
    scale: Annotated[
        float | None,
        "A weight becomes round(X impact).",
        Shown("100 for impact-json", panel="Sparse indexes"),
    ] = None,
    queries: Annotated[
        Path | None,
        "Queries whose vectors go to OUTPUT.queries.jsonl; for databases their searches, "
        "to queries.jsonl in OUTPUT.",
        Shown(panel="Sparse indexes"),
    ] = None,
    texts: Annotated[bool, "parquet: titles and texts too.", Shown(panel=DENSE)] = False,
    beside: Annotated[
        Path | None,
        "FOLDER",
        "A second retriever of the same documents, which then have a dense vector and "
        "weights of terms.",
        Shown(panel="Databases", names=("--with",)),
    ] = None,
    allow: Allow = None,
) -> None:
    """Write an index in other tools' formats.

    ciff: the Common Index File Format. impact-json: Lucene's {"id", "contents", "vector"}. vectors:
    a folder with a CSR matrix, ids and terms, lossless. npy, parquet, safetensors: ids and float32
    vectors. npz, parquet: ids and the float32 vectors of all tokens (late interaction). The loss
    from rounding to integers is printed; deleted documents are left out. For models see `sluice
    model export`.

    opensearch, elasticsearch, vespa, weaviate, lancedb: a folder with the database's settings, the
    documents with texts and metadata, templates of queries, and a README with the commands.

    retriever: a copy of a retriever whose index is in PostgreSQL or Qdrant, with an index of ours.

    Examples:
      sluice export runs/x/retrievers/bm25 bm25.ciff.gz --format ciff
      sluice export runs/x/retrievers/dense out --format opensearch --with runs/x/retrievers/bm25
    """
    from sluice.retrieval.datasets.beir import read_queries
    from sluice.retrieval.exchange.database_export import DATABASES, export_database
    from sluice.retrieval.exchange.dense.vectors import FORMS
    from sluice.retrieval.exchange.dense_retrievers import export_dense
    from sluice.retrieval.exchange.own_index import FORM, export_home
    from sluice.retrieval.exchange.token_retrievers import export_tokens
    from sluice.retrieval.exchange.tokens.vectors import FORMS as TOKEN_FORMS
    from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
    from sluice.retrieval.retrievers.retriever import Retriever

    if form == "onnx":
        raise ConfigError("--format onnx: is for models; use sluice model export MODEL OUTPUT")
    reason = f"not for --format {form}"
    may = allowed(allow)
    asked = None if queries is None else dict(read_queries(queries))
    if form in DATABASES:
        refuse_options(reason, quantise=quantise, scale=scale, texts=texts or None)
        second = None if beside is None else Retriever.open(beside, allow=may)
        first = Retriever.open(retriever, allow=may)
        made = export_database(first, output, form, beside=second, queries=asked)
        echo(f"{output}: {made}")
        return
    refuse_options(reason, **{"with": beside})
    if form == FORM:
        refuse_options(reason, quantise=quantise, scale=scale, queries=queries, texts=texts or None)
        opened = Retriever.open(retriever, allow=may)
        echo(f"{output}: {export_home(opened, output, may)}")
        return
    if form in FORMS or form in TOKEN_FORMS or texts:
        refuse_options(reason, quantise=quantise, scale=scale, queries=queries)
        opened = Retriever.open(retriever, allow=may)
        tokens = holds_tokens(opened.index)
        if form in TOKEN_FORMS and form not in FORMS and not tokens:
            raise ConfigError(
                f"--format {form}: is for token vectors, and {retriever} has none; dense vectors "
                "are exported as npy, parquet or safetensors, sparse ones as ciff, impact-json or "
                "vectors"
            )
        write = export_tokens if tokens else export_dense
        echo(f"{output}: {write(opened, output, form, texts=texts)}")
        return
    from sluice.retrieval.exchange.sparse_retrievers import export_retriever

    report = export_retriever(
        Retriever.open(retriever, allow=may),
        output,
        form,
        quantise=quantise,
        scale=scale,
        queries=asked,
    )
    echo(f"{output}: {report}")
    if queries is not None:
        echo(f"{output}.queries.jsonl: the queries' vectors")


COMMANDS: dict[str, Command] = {"import": import_, "export": export}
