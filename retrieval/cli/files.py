"""The verbs for datasets, cached vectors, and other engines' indexes and vectors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    COLUMNS,
    Allow,
    Columns,
    Command,
    Json,
    Links,
    Shown,
    allowed,
    picked,
    plural,
    refuse_options,
    takes,
)

DATA = "Describe a dataset; find repetitions.\n\n`sluice data DATASET` is `... describe DATASET`."


@takes(COLUMNS)
def describe(
    name: Annotated[
        str,
        "DATASET",
        "A BEIR folder, an ir_datasets id, hf:owner/name, pydocs, ...; or documents: a "
        "folder of files, a table.",
    ],
    *,
    split: Annotated[str, "The split to describe."] = "test",
    allow: Links = None,
    **columns: Any,
) -> None:
    """Describe a dataset.

    Prints sizes, lengths, splits, grades and oddities as JSON; of documents without judgements,
    sizes and lengths, and how they are read.

    Examples:
      sluice data pydocs
      sluice data describe docs.csv
    """
    from sluice.retrieval.datasets.report import describe as described

    report = described(_read_as(name, columns, allow), split)
    typer.echo(json.dumps(report, indent=2, ensure_ascii=False))


def _read_as(name: str, columns: dict[str, Any], allow: list[str] | None) -> Any:
    own = {key: each for key, each in (("columns", columns), ("allow", allow)) if each}
    return {"corpus": name, **own} if own else name


@takes("sluice.retrieval.training_data.duplicates:deduplicate", COLUMNS)
def dedupe(
    source: Annotated[str, "DATASET", "A dataset, or documents: a folder of files, a table."],
    *,
    output: Annotated[
        Path | None, "Also write the documents that stay, as corpus.jsonl; .gz compresses."
    ] = None,
    allow: Links = None,
    as_json: Json = False,
    **values: Any,
) -> None:
    """Find documents that repeat others.

    Two documents are as alike as the share of words that they have in common, by MinHash; the first
    of those that are alike stays. The judgements of a dataset are not changed.

    Examples:
      sluice data dedupe docs.csv
      sluice data dedupe scifact --duplicates 0.9 --output corpus.jsonl
    """
    from sluice.retrieval.training_data.duplicates import deduplicate

    documents = _read_as(source, picked(values, Columns), allow)
    _report(deduplicate(documents, output=output, **picked(values, deduplicate)), as_json)
    if output is not None and not as_json:
        echo(f"written: {output}")


def contamination(
    train: Annotated[str, "A file of training examples, or a dataset: its train split."],
    test: Annotated[str, "The dataset with the tested queries."],
    *,
    split: Annotated[str, "The split of the tested queries."] = "test",
    as_json: Json = False,
) -> None:
    """Look for test queries in training texts.

    A test query is in a training text that has 13 of its words in a row (Brown et al., 2020), or
    all of them if it has 8 to 12; a shorter one must be a training query. A relevant document is
    counted if a positive of training has the same text. Training reports the same by itself.

    Ends with 1 if a training query holds a tested one.

    Examples:
      sluice data contamination pairs.jsonl scifact
      sluice data contamination nfcorpus scifact --json
    """
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.training_data.contamination import contamination_of, training_examples

    report = contamination_of(training_examples(train), [load_dataset(test, split)])
    _report(report, as_json)
    if report.in_queries:
        raise typer.Exit(1)


def _report(report: Any, as_json: bool) -> None:
    typer.echo(json.dumps(report.as_dict(), indent=2)) if as_json else echo(str(report))


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


DENSE, SPARSE = "Dense vectors", "Sparse indexes"


@takes(
    "sluice.retrieval.exchange.jobs:import_job",
    panels={DENSE: "documents encoder metric index query_vectors queries"},
    metric=Shown("ip"),
    index=Shown("flat; tokens for token vectors"),
)
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
        Shown("split at white space", panel=SPARSE),
    ] = None,
    **values: Any,
) -> None:
    """Make a retriever from other tools' files.

    The files are another engine's sparse index (ciff, impact-json), `vectors` of sluice export, or
    ids and vectors from any model or service: one a text (dense), or one a token.

    Examples:
      sluice import anserini.ciff.gz runs/imported --format ciff --language en
      sluice import vectors.npy runs/mine --format npy --documents scifact --metric cosine
    """
    from sluice.retrieval.exchange.jobs import import_job
    from sluice.retrieval.exchange.vector_files import format_names

    sparse = form in format_names("sparse")
    refuse_options(f"not for --format {form}", **values if sparse else {"language": language})
    retriever = import_job(inputs, output, form, language=language, **values)
    width = f"{retriever.index.width or 0:,} dimensions"
    if sparse:
        width = plural(retriever.encoder.dim, "term")
    echo(f"{output}: {plural(retriever.head.documents, 'document')}, {width}")


@takes(
    "sluice.retrieval.exchange.jobs:Rounding",
    panels={SPARSE: "quantise scale"},
    quantise=Shown("255 for ciff"),
    scale=Shown("100 for impact-json"),
)
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
    queries: Annotated[
        Path | None,
        "Queries whose vectors go to OUTPUT.queries.jsonl; for databases their searches, "
        "to queries.jsonl in OUTPUT.",
        Shown(panel=SPARSE),
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
    **values: Any,
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
    from sluice.retrieval.exchange.adapters.database_export import (
        DATABASES,
        FORM,
        export_database,
        export_home,
    )
    from sluice.retrieval.exchange.retriever_files import export_retriever
    from sluice.retrieval.exchange.vector_files import format_names
    from sluice.retrieval.retrievers.retriever import Retriever

    if form == "onnx":
        raise ConfigError("--format onnx: is for models; use sluice model export MODEL OUTPUT")
    reason = f"not for --format {form}"
    may = allowed(allow)
    texts_by_id = None if queries is None else dict(read_queries(queries))
    if form in DATABASES:
        refuse_options(reason, **values, texts=texts or None)
        second = None if beside is None else Retriever.open(beside, allow=may)
        first = Retriever.open(retriever, allow=may)
        files = export_database(first, output, form, beside=second, queries=texts_by_id)
        echo(f"{output}: {files}")
        return
    refuse_options(reason, **{"with": beside})
    if form == FORM:
        refuse_options(reason, **values, queries=queries, texts=texts or None)
        opened = Retriever.open(retriever, allow=may)
        echo(f"{output}: {export_home(opened, output, may)}")
        return
    if form in format_names("dense", "tokens"):
        refuse_options(reason, **values, queries=queries)
    report = export_retriever(
        Retriever.open(retriever, allow=may), output, form, texts=texts, queries=texts_by_id,
        **values,
    )  # fmt: skip
    echo(f"{output}: {report}")
    if queries is not None:
        echo(f"{output}.queries.jsonl: the queries' vectors")


COMMANDS: dict[str, Command] = {"cache": cache, "import": import_, "export": export}
DATA_COMMANDS: dict[str, Command] = {
    "describe": describe, "dedupe": dedupe, "contamination": contamination,
}  # fmt: skip
